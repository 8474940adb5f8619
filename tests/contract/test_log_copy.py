"""A log that is copied to Kafka is the same to everybody: commits, offsets, bounds, metas, schemas, ids and keys."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.clock import SystemClock
from penstock.config import sqlite_place
from penstock.errors import FolderMismatchError
from penstock.log import log_copy
from penstock.log.log import Append, Log, LogReader, Producer, StreamSpec
from penstock.log.log_copy import LogCopy, copy_log
from penstock.log.logs.kafka import place_of
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts.log_events import CHANGELOG, SCHEMA, changes, events
from tests.kafka_broker import Broker


class Crashed(Exception):
    pass


@pytest.fixture
def places(kafka: Broker, tmp_path: Path) -> tuple[str, str, str]:
    """The app, where its log lies, and where it is copied to."""
    app = f"copied-{time.time_ns()}"
    return app, sqlite_place(tmp_path / "edge.db"), place_of(kafka.address, app, "edge", tmp_path / "index" / "edge.db")


def fill(place: str, app: str) -> None:
    """Some of everything: partitions, ids, versions, a changelog, metas, keys, what was trimmed, merged and dropped."""
    with closing(open_log(place, app=app, clock=SystemClock())) as log:
        gone = log.create(StreamSpec("gone", SCHEMA))
        log.append([Append(gone, events([1]))])
        numbers = log.create(StreamSpec("numbers", SCHEMA, partitions=3, unique=True))
        for n in range(20):
            producer = Producer("sender", 1, n)
            log.append([Append(numbers, events([2 * n, 2 * n + 1]), {"batch": n}, producer)], {f"key-{n % 3}": n})
        log.trim(numbers, 5)
        wider = SCHEMA.append(pa.field("more", pa.int64(), metadata={b"default": b"7"}))
        log.create(StreamSpec("numbers", wider, partitions=3, unique=True))
        log.drop(gone)
        rows = log.create(CHANGELOG)
        for n in range(10):
            log.append([Append(rows, changes([(str(n % 4), n if n != 2 else None)]))])
        log.compact(rows, 7)
        log.create(StreamSpec("empty", SCHEMA))
        list(log.tidying())


def told(log: LogReader) -> dict[str, Any]:
    """All that a log says of itself, but for where it lies."""
    found: dict[str, Any] = {"memory": dict(log.memory())}
    for stream in log.streams():
        blocks = [
            (
                b.partition,
                b.start,
                b.end,
                b.commit,
                b.bound_us,
                b.written_us,
                b.batch.to_pylist(),
                b.offsets.to_pylist(),
            )
            for partition, start in enumerate(log.bounds(stream).starts)
            for b in log.read(stream, partition, start)
        ]
        facts = (stream.epoch, stream.partitions, stream.unique, stream.counts, stream.compact_by, stream.schema)
        found[stream.name] = (facts, log.bounds(stream), log.versions(stream), log.commits(stream, 0), blocks)
    return found


def test_a_copied_log_says_the_same_and_goes_on(places: tuple[str, str, str]) -> None:
    app, here, there = places
    fill(here, app)
    count = copy_log(here, there, app)
    assert count is not None
    assert count.streams == 4
    with closing(open_reader(here)) as source, closing(open_reader(there)) as copy:
        assert told(copy) == told(source)
    with closing(open_log(there, app=app, clock=SystemClock())) as log:
        _goes_on(log)


def _goes_on(log: Log) -> None:
    numbers = log.find("numbers")
    assert numbers is not None
    wide = pa.RecordBatch.from_pylist(
        [{"more": 1, **row} for row in events([38, 100]).to_pylist()], schema=numbers.schema
    )
    again, taken = (log.append([Append(numbers, wide, None, Producer("sender", 1, n))])[0] for n in (19, 20))
    assert (again.repeated, taken.repeated, taken.accepted, taken.duplicates) == (True, False, 1, (0,))
    assert taken.commit == 20


def test_a_copy_that_was_interrupted_is_refused_and_finished(
    places: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, here, there = places
    fill(here, app)
    monkeypatch.setattr(log_copy, "COMMITS", 4)
    write, written = LogCopy._write, iter(range(5))

    def crash(*arguments: Any) -> None:
        if next(written, None) is None:
            raise Crashed
        write(*arguments)

    with monkeypatch.context() as crashing:
        crashing.setattr(LogCopy, "_write", crash)
        with pytest.raises(Crashed):
            copy_log(here, there, app)
    with pytest.raises(FolderMismatchError, match="a copy of another log that is not finished"):
        open_log(there, app=app, clock=SystemClock())
    assert copy_log(here, there, app) is not None
    with closing(open_reader(here)) as source, closing(open_reader(there)) as copy:
        assert told(copy) == told(source)
    assert copy_log(here, there, app) is None


def test_a_log_that_is_not_empty_is_not_copied_into(places: tuple[str, str, str]) -> None:
    app, here, there = places
    fill(here, app)
    with closing(open_log(there, app=app, clock=SystemClock())):
        pass
    with pytest.raises(FolderMismatchError, match="the log to copy into is not empty"):
        copy_log(here, there, app)
