"""A processor over a feed that a test has written, run until it is level."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from bank import Bank

from penstock.client.processing import KeyChange, Options, Processor, Progress, open_store
from penstock.client.view_rows import Changes

DEADLINE_S = 60.0


def row(song: str, amount: str) -> dict[str, Any]:
    return {"song": song, "amount": amount}


class PlayedFeed:
    """Batches that a test has put there; a position is the number of batches before it."""

    def __init__(self, *batches: Changes, key: tuple[str, ...] = ("song",)) -> None:
        self.view = "royalties"
        self.batches = list(batches)
        self._key = key
        self.more = asyncio.Event()

    def add(self, *rows: dict[str, Any], deletes: tuple[dict[str, Any], ...] = (), **more: Any) -> None:
        self.batches.append(Changes(self.view, str(len(self.batches) + 1), rows, deletes, **more))
        self.more.set()

    async def key(self) -> tuple[str, ...]:
        return self._key

    async def watch(self, since: str | None) -> AsyncGenerator[Changes, None]:
        at = int(since or 0)
        while True:
            while at < len(self.batches):
                at += 1
                yield self.batches[at - 1]
            self.more.clear()
            await self.more.wait()

    async def level(self, since: str | None) -> AsyncGenerator[Changes, None]:
        for batch in self.batches[int(since or 0) :]:
            yield batch


def feed(*amounts: tuple[str, str]) -> PlayedFeed:
    made = PlayedFeed()
    made.add(*(row(song, amount) for song, amount in amounts), snapshot=True)
    return made


def run(path: Path, source: PlayedFeed, handler: Any, **options: Any) -> Progress:
    """Process until level."""
    chosen = {"once": True, "settle_s": 0.0, "backoff_most_s": 0.02, "random": Random(1)} | options

    async def play() -> Progress:
        with closing(open_store(path, "pay")) as store:
            async with asyncio.timeout(DEADLINE_S):
                return await Processor(source, handler, store, Options(**chosen)).run()

    return asyncio.run(play())


def paying(bank: Bank, calls: int = 1) -> Callable[[KeyChange, Any], None]:
    def pay(change: KeyChange, ctx: Any) -> None:
        for _ in range(calls):
            assert change.row is not None
            ctx.call(bank.url, {"to": change.key["song"], "amount": change.row["amount"]})

    return pay


def paid(bank: Bank) -> list[tuple[str, str]]:
    return sorted((body["to"], body["amount"]) for _, body in bank.charges)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
