"""A handler over a view: each change is handed over once. The feed is played, all else is real."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from bank import Bank
from played_feed import PlayedFeed, feed, paid, paying, row, run

from penstock.client.processing import KeyChange, Options, open_store
from penstock.clock import SystemClock
from penstock.errors import (
    BadRequestError,
    StoreMismatchError,
)


def test_each_row_is_handed_over_once_over_restarts(path: Path, bank: Bank) -> None:
    source = feed(("a", "1"), ("b", "2"))
    for _ in range(3):
        done = run(path, source, paying(bank))
    assert paid(bank) == [("a", "1"), ("b", "2")]
    assert (done.waiting, done.failed, done.handled) == (0, 0, "1")


def test_a_coroutine_handler_and_a_function_are_handed_the_same(tmp_path: Path, bank: Bank) -> None:
    async def pay(change: KeyChange, ctx: Any) -> None:
        assert change.row is not None
        answers = await asyncio.gather(
            *(ctx.call(bank.url, {"to": change.key["song"], "amount": "1"}) for _ in range(3))
        )
        assert all(answer.status == 201 for answer in answers)

    run(tmp_path / "a.db", feed(("a", "1")), pay)
    assert len(bank.charges) == 3
    assert len({key for key, _ in bank.charges}) == 3


def test_a_whole_batch_may_be_handed_over(path: Path) -> None:
    seen: list[tuple[KeyChange, ...]] = []
    run(path, feed(("a", "1"), ("b", "2")), lambda changes, ctx: seen.append(changes), each="batch")
    assert [[change.key["song"] for change in changes] for changes in seen] == [["a", "b"]]


def test_existing_rows_may_be_left_out(path: Path) -> None:
    source = feed(("a", "1"))
    source.add(row("b", "2"))
    seen: list[str] = []
    run(path, source, lambda change, ctx: seen.append(change.key["song"]), existing=False)
    assert seen == ["b"]


def test_a_wall_clock_that_is_put_back_puts_nothing_off(path: Path) -> None:
    class PutBack(SystemClock):
        def now_us(self) -> int:
            return super().now_us() - 86_400_000_000 * len(failed)

    tries: list[str] = []
    failed: list[int] = []

    def failing_once(change: KeyChange, ctx: Any) -> None:
        tries.append(ctx.key)
        if len(tries) == 1:
            raise OSError("not now")

    options = {"clock": PutBack(), "on_error": lambda task, error, tried: failed.append(tried)}
    done = run(path, feed(("a", "1")), failing_once, stop=ended_after(20), **options)
    assert (len(tries), len(set(tries)), done.waiting) == (2, 1, 0)


def ended_after(seconds: float) -> threading.Event:
    """Set then, so that a test which fails ends."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    return stop


def test_another_key_of_the_view_is_refused(path: Path) -> None:
    run(path, feed(("a", "1")), lambda change, ctx: None)
    with pytest.raises(StoreMismatchError):
        run(path, PlayedFeed(key=("song", "day")), lambda change, ctx: None)


def test_a_view_that_was_rebuilt_with_another_key_is_refused(path: Path) -> None:
    source = feed(("a", "1"))
    run(path, source, lambda change, ctx: None)

    async def changed() -> tuple[str, ...]:
        keys.append(("song",) if not keys else ("song", "day"))
        return keys[-1]

    keys: list[tuple[str, ...]] = []
    source.key = changed  # type: ignore[method-assign]
    source.add(row("a", "1") | {"day": 1}, row("a", "2") | {"day": 2}, snapshot=True, reset="rebuilt")
    with pytest.raises(StoreMismatchError, match="song, day"):
        run(path, source, lambda change, ctx: pytest.fail("nothing can be compared"))


@pytest.mark.parametrize("option", [{"on": "deletes"}, {"each": "day"}, {"at_once": 0}])
def test_options_that_make_no_sense_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        Options(**option)


def test_a_coroutine_in_disguise_is_not_taken_for_success(path: Path) -> None:
    async def pay(change: KeyChange, ctx: Any) -> None: ...

    done = run(path, feed(("a", "1")), lambda change, ctx: pay(change, ctx), give_up_after=2)
    assert done.failed == 1


def test_a_name_that_cannot_begin_a_header_is_refused(path: Path) -> None:
    with pytest.raises(BadRequestError):
        open_store(path, "pay\nme")
