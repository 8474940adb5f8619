"""A crash before and after every single transaction of a processor: each call still has its effect once."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bank import Bank
from played_feed import DEADLINE_S, PlayedFeed, row

from penstock.client.processing import NOT_APPLIED, Call, KeyChange, Options, Processor, open_store

CHANGES = ("acquire", "take", "next", "calls", "intend", "settle", "finish", "put_back", "progress")
PARTS = ("artist", "label")


class Crash(BaseException):
    """The process is gone: nothing may catch it."""


class CrashingStore:
    """A store whose process dies at the n-th use, before or after the transaction; afterwards it does nothing more."""

    def __init__(self, store: Any, at: int, after: bool) -> None:
        self._store, self._at, self._after = store, at, after
        self._uses = itertools.count(1)
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._counted(found) if name in CHANGES else found

    def _counted(self, use: Any) -> Any:
        def used(*values: Any) -> Any:
            is_last = next(self._uses) == self._at
            if self.dead or (is_last and not self._after):
                raise self._die()
            done = use(*values)
            if is_last:
                raise self._die()
            return done

        return used

    def ensure(self) -> None:
        if self.dead:
            raise Crash

    def release(self) -> None:
        """Nobody who is dead does."""

    def _die(self) -> Crash:
        self.dead = True
        return Crash()


def played() -> PlayedFeed:
    """A song; the view is rebuilt with the same row and another one, which then changes."""
    source = PlayedFeed()
    source.add(row("a", "1"), snapshot=True)
    source.add(row("a", "1"), row("b", "1"), snapshot=True, reset="rebuilt")
    source.add(row("b", "3"))
    return source


EXPECTED = [("a", "1"), ("b", "1"), ("b", "3")]


async def one_life(path: Path, bank: Bank, at: int, after: bool) -> bool:
    """Whether it came to the end; else it died at its `at`-th use of the store."""

    def pay(change: KeyChange, ctx: Any) -> None:
        assert change.row is not None
        for part in PARTS:
            ctx.call(bank.url, {"to": change.key["song"], "amount": change.row["amount"], "part": part})

    def confirm(call: Call) -> Any:
        return bank.find(call.key) or NOT_APPLIED

    with closing(open_store(path, "pay")) as kept:
        options = Options(once=True, settle_s=0.0, backoff_most_s=0.01, confirm=confirm, random=Random(1))
        try:
            await Processor(played(), pay, CrashingStore(kept, at, after), options).run()
        except Crash:
            return False
        return True


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_transaction_pays_each_once(tmp_path: Path, after: bool) -> None:
    """Every second request is cut off too, so that `confirm` has something to say."""
    async with asyncio.timeout(DEADLINE_S * 3):
        at, ended = 0, False
        while not ended:
            at += 1
            path = tmp_path / f"{at}.db"
            with Bank() as bank:
                bank.next.extend(["die", "charge", "die_first"])
                ended = await one_life(path, bank, at, after)
                assert await one_life(path, bank, 10**6, after)
                paid = sorted((body["to"], body["amount"], body["part"]) for _, body in bank.charges)
            assert paid == sorted((*pair, part) for pair in EXPECTED for part in PARTS), f"crash {at}"
        assert at > 25, "the processor used its store less often than it must have"


async def test_a_processor_that_dies_again_and_again_still_gets_there(tmp_path: Path) -> None:
    random, lives = Random(7), 0
    with Bank() as bank:
        bank.next.extend(random.choices(["die", "die_first", "charge", 500], k=30))
        async with asyncio.timeout(DEADLINE_S):
            while not await one_life(tmp_path / "work.db", bank, random.randint(6, 14), random.random() < 0.5):
                lives += 1
    assert lives >= 3
    assert len(bank.charges) == len({key for key, _ in bank.charges}) == 2 * len(EXPECTED)
