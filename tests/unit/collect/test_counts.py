from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from penstock.collect.counts import StreamCounts, counted
from penstock.log.group_commit import GroupCommit, first_taken
from penstock.log.log import Append, Log, Share, Stream, StreamSpec
from penstock.log.logs.memory import temporary_place
from penstock.log.opening import open_log
from penstock.testing.contracts.log_events import SCHEMA, events


@pytest.fixture
def log() -> Iterator[Log]:
    with temporary_place() as place, closing(open_log(place, app="unit")) as log:
        yield log


@pytest.fixture
def group(log: Log) -> Iterator[GroupCommit]:
    with closing(GroupCommit(log)) as group:
        yield group


@pytest.fixture
def stream(log: Log) -> Stream:
    return log.create(StreamSpec("orders", SCHEMA, unique=True))


def hold_the_loop_until_written(log: Log) -> None:
    while "count/orders" not in log.memory():
        time.sleep(0.001)


async def test_numbers_of_an_earlier_process_are_added_to(log: Log, group: GroupCommit, stream: Stream) -> None:
    log.append([Append(sets={"count/orders": {"duplicates": 5, "dead": 1}}), Append(stream, events([1, 2]))])
    appends = [Append(stream, events([1, 2, 3]), counts=counted("orders", duplicates=Share("duplicates"), shed=0))]
    await first_taken(group.append(appends))
    assert StreamCounts(log.memory()).of("orders") == {"duplicates": 7, "dead": 1, "shed": 0}
    assert log.memory()["count/orders"] == {"duplicates": 7, "dead": 1}


async def test_a_commit_writes_nothing_of_what_the_failed_one_before_it_counted(
    log: Log, group: GroupCommit, stream: Stream
) -> None:
    let = threading.Event()
    held = group.run(lambda: let.wait(60))
    bad = group.append([Append(stream, pa.record_batch({"x": [1]}), counts=counted("orders", shed=100))])
    good = group.append([Append(stream, events([3]), counts=counted("orders", shed=3))])
    let.set()
    hold_the_loop_until_written(log)  # the writer goes on before anybody hears of the failure
    await first_taken(good)
    with pytest.raises(ValueError, match="columns"):
        await first_taken(bad)
    assert held.result(60)
    assert StreamCounts(log.memory()).of("orders")["shed"] == 3


async def test_a_caller_that_has_gone_takes_nothing_back_of_what_was_written(
    log: Log, group: GroupCommit, stream: Stream
) -> None:
    gone = asyncio.ensure_future(
        first_taken(group.append([Append(stream, events([1]), counts=counted("orders", shed=5))]))
    )
    hold_the_loop_until_written(log)  # the commit is made before anybody hears of it
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await first_taken(group.append([Append(stream, events([2]), counts=counted("orders", shed=2))]))
    assert StreamCounts(log.memory()).of("orders")["shed"] == 7
