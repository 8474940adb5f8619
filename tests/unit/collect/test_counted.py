from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from penstock.collect.counted import Counted, Tally, write
from penstock.collect.counts import Counts
from penstock.log.log import Append, Appended, Stream
from penstock.position import Position

STREAM = Stream("orders", "e", 1, True, "events", (), pa.schema([]))
TAKEN = Appended(Position("stream", "orders", "e", (1,)), 0, 1, (0, 1))


class Log:
    """Asks what to remember as often as it likes, and then writes or fails."""

    def __init__(self, asks: int, error: Exception | None = None) -> None:
        self.asks, self.error = asks, error
        self.remembered: Any = None

    async def append(self, append: Append) -> Appended:
        assert append.remember is not None
        for _ in range(self.asks):
            self.remembered = append.remember(TAKEN)
        if self.error:
            raise self.error
        return TAKEN

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
