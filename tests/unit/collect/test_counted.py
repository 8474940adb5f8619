from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.collect.counted import Counted, Tally, write
from penstock.collect.counts import Counts
from penstock.config import sqlite_place
from penstock.log import log as log_
from penstock.log.group import GroupCommit
from penstock.log.log import Append, Appended, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.position import Position
from penstock.testing.contracts.log_events import SCHEMA, events

STREAM = Stream("orders", "e", 1, True, "events", (), pa.schema([]), "memory://unit")
TAKEN = Appended(Position("stream", "orders", "e", (1,)), 0, 1, (0, 1))


class Log:
    """Asks what to remember as often as it likes, and then writes or fails."""

    def __init__(self, asks: int, error: Exception | None = None) -> None:
        self.asks, self.error = asks, error
        self.remembered: Any = None

    def append(self, appends: Sequence[Append]) -> asyncio.Future[list[Appended | Exception]]:
        (append,) = appends
        assert append.remember is not None
        written: asyncio.Future[list[Appended | Exception]] = asyncio.get_running_loop().create_future()
        for _ in range(self.asks):
            self.remembered = append.remember(TAKEN)
        if self.error:
            assert append.undo is not None
            append.undo()
            written.set_exception(self.error)
        else:
            written.set_result([TAKEN])
        return written

    def submit(self, appends: Any) -> Future[Any]:
        raise AssertionError("counted events go through append")

    def run(self, work: Any) -> Future[Any]:
        raise AssertionError("counted events go through append")


def counted(counts: Counts) -> Counted:
    def remember(appended: Appended, tally: Tally) -> dict[str, Any]:
        return tally.add("orders", duplicates=len(appended.duplicates))

    return Counted.make(STREAM, pa.RecordBatch.from_pylist([], STREAM.schema), counts, remember)


async def test_a_log_that_asks_twice_counts_once() -> None:
    counts, log = Counts({"count/orders": {"duplicates": 5, "dead": 1}}), Log(asks=3)
    await write(log, [counted(counts)])
    assert counts.of("orders") == {"duplicates": 7, "dead": 1, "shed": 0}
    assert log.remembered == {"count/orders": {"duplicates": 7, "dead": 1}}


async def test_a_commit_that_fails_counts_nothing() -> None:
    counts = Counts({})
    with pytest.raises(OSError, match="full"):
        await write(Log(asks=1, error=OSError("full")), [counted(counts)])
    assert counts.of("orders") == {"duplicates": 0, "dead": 0, "shed": 0}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[log_.Log]:
    with closing(open_log(sqlite_place(tmp_path / "log.db"), app="unit")) as log:
        yield log


@pytest.fixture
def group(log: log_.Log) -> Iterator[GroupCommit]:
    with closing(GroupCommit(log)) as group:
        yield group


def hold_the_loop_until_written(log: log_.Log) -> None:
    while "count/orders" not in log.memory():
        time.sleep(0.001)


def shed(stream: Stream, counts: Counts, number: int, *, breaks: bool = False) -> Counted:
    def remember(_: Appended, tally: Tally) -> dict[str, Any]:
        keys = tally.add("orders", shed=number)
        if breaks:
            raise KeyError("broken")
        return keys

    return Counted.make(stream, events([number]), counts, remember)


async def test_a_commit_writes_nothing_of_what_the_failed_one_before_it_counted(
    log: log_.Log, group: GroupCommit
) -> None:
    stream, counts, let = log.create(StreamSpec("numbers", SCHEMA)), Counts({}), threading.Event()
    held = group.run(lambda: let.wait(60))
    bad = asyncio.ensure_future(write(group, [shed(stream, counts, 100, breaks=True)]))
    good = asyncio.ensure_future(write(group, [shed(stream, counts, 3)]))
    await asyncio.sleep(0.05)
    let.set()
    hold_the_loop_until_written(log)  # the writer goes on before anybody hears of the failure
    await good
    with pytest.raises(KeyError):
        await bad
    assert held.result(10)
    assert log.memory()["count/orders"]["shed"] == counts.of("orders")["shed"] == 3


async def test_a_caller_that_has_gone_takes_nothing_back_of_what_was_written(log: log_.Log, group: GroupCommit) -> None:
    stream, counts = log.create(StreamSpec("numbers", SCHEMA)), Counts({})
    asked, let = threading.Event(), threading.Event()

    def remember(_: Appended, tally: Tally) -> dict[str, Any]:
        asked.set()
        assert let.wait(60)
        return tally.add("orders", shed=5)

    gone = asyncio.ensure_future(write(group, [Counted.make(stream, events([1]), counts, remember)]))
    assert await asyncio.to_thread(asked.wait, 10)
    let.set()
    hold_the_loop_until_written(log)  # the commit is made before anybody hears of it
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await write(group, [shed(stream, counts, 2)])
    assert log.memory()["count/orders"]["shed"] == counts.of("orders")["shed"] == 7
