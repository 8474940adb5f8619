"""What a writer knows of its streams: ids within their horizon, versions of schemas."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.horizon import Horizon
from penstock.log.log import KnownIds, Log, StreamSpec
from penstock.log.opening import open_log
from penstock.testing.contracts.log_events import SCHEMA, ManualClock, put

UNIQUE = StreamSpec("unique", SCHEMA, unique=True, partitions=2)


def test_ids_beyond_the_time_kept_are_not_loaded(log: Log, clock: ManualClock) -> None:
    unique = log.create(UNIQUE)
    for n in range(4):
        put(log, unique, range(n * 10, n * 10 + 10))
        clock.us += Horizon.age_us // 3
    with closing(open_log(log.place, app="unit", clock=clock)) as again:
        assert put(again, unique, range(40)).duplicates == tuple(range(10, 40))


def test_ids_beyond_the_horizon_are_not_loaded(log: Log, clock: ManualClock) -> None:
    unique = log.create(UNIQUE)
    for n in range(10):
        put(log, unique, range(n * 10, n * 10 + 10))
    log.trim(unique, 2)
    with closing(open_log(log.place, app="unit", clock=clock)) as again:
        again.create(replace(UNIQUE, horizon=Horizon(ids=55)))
        assert again.horizon(unique) == 55
        assert put(again, unique, range(100)).duplicates == tuple(range(40, 100))


def test_a_new_version_of_the_schema_does_not_load_the_ids_again(log: Log, clock: ManualClock) -> None:
    unique = log.create(UNIQUE)
    put(log, unique, [1])
    wider = pa.schema([*SCHEMA, pa.field("x", pa.int64(), metadata={b"default": b"7"})])
    newer = log.create(StreamSpec("unique", wider, unique=True, partitions=2))
    assert log.known_ids(newer) == KnownIds(1, clock.us)
    assert newer.schema.equals(wider)


def test_a_stream_may_become_unique_later(log: Log) -> None:
    plain = log.create(StreamSpec("unique", SCHEMA, partitions=2))
    put(log, plain, [1, 1])
    unique = log.create(UNIQUE)
    assert unique.unique
    assert put(log, unique, [1, 2]).duplicates == (0,)


def test_dictionary_columns_are_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="dictionary"):
        log.create(StreamSpec("s", pa.schema([("a", pa.dictionary(pa.int32(), pa.string()))])))


def test_blocks_may_be_read_by_another_thread_than_asked_for_them(log: Log) -> None:
    stream = log.create(StreamSpec("numbers", SCHEMA))
    for n in range(50):
        put(log, stream, [n])
    asked: list[object] = []
    thread = threading.Thread(target=lambda: asked.append(log.read(stream, 0, 0)))
    thread.start()
    thread.join()
    (blocks,) = asked
    assert [block.start for block in blocks] == list(range(50))  # type: ignore[attr-defined]
