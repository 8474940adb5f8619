"""Events, changes and questions that the tests of the log's contract share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

from penstock.change import DELETE, OP, UPSERT
from penstock.log.log import Append, Appended, Block, Log, LogReader, Stream, StreamSpec
from penstock.schema import ID, KEY, RECEIVED, SYSTEM, TIME, TIMESTAMP
from penstock.testing.contracts.log_backends import LogBackend

SCHEMA = pa.schema([pa.field("n", pa.int64()), *SYSTEM])
CHANGES = pa.schema([pa.field("word", pa.string()), pa.field("count", pa.int64()), pa.field(OP, pa.int8())])
CHANGELOG = StreamSpec("words", CHANGES, counts="commits", compact_by=("word",))

quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def events(
    numbers: Sequence[int],
    *,
    times: Sequence[int | None] | None = None,
    keys: Sequence[str | None] | None = None,
    ids: Sequence[str | None] | None = None,
) -> pa.RecordBatch:
    """Events n; without more their time is n, their key and id its digits."""
    digits = [str(n) for n in numbers]
    columns = {
        "n": pa.array(numbers, pa.int64()),
        TIME: pa.array(list(numbers) if times is None else times, TIMESTAMP),
        RECEIVED: pa.nulls(len(numbers), TIMESTAMP),
        ID: pa.array(digits if ids is None else ids, pa.string()),
        KEY: pa.array(digits if keys is None else keys, pa.string()),
    }
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def changes(rows: Sequence[tuple[str, int | None]]) -> pa.RecordBatch:
    """A batch of a changelog: None deletes."""
    words, counts = [word for word, _ in rows], [count for _, count in rows]
    ops = [DELETE if count is None else UPSERT for count in counts]
    arrays = [pa.array(words, pa.string()), pa.array(counts, pa.int64()), pa.array(ops, pa.int8())]
    return pa.record_batch(arrays, schema=CHANGES)


def one(results: list[Appended | Exception]) -> Appended:
    (result,) = results
    assert isinstance(result, Appended), result
    return result


def put(log: Log, stream: Stream, numbers: Sequence[int], **more: Any) -> Appended:
    return one(log.append([Append(stream, events(numbers, **more))]))


def numbers(log: LogReader, stream: Stream, partition: int = 0, start: int = 0, end: int | None = None) -> list[int]:
    return [n for block in log.read(stream, partition, start, end) for n in block.batch.column("n").to_pylist()]


def everything(log: LogReader, stream: Stream) -> list[int]:
    starts = log.bounds(stream).starts
    return [n for partition, start in enumerate(starts) for n in numbers(log, stream, partition, start)]


def content(blocks: Iterator[Block]) -> dict[str, int]:
    """What a changelog adds up to."""
    rows: dict[str, int] = {}
    for block in blocks:
        for row in block.batch.to_pylist():
            if row[OP] == DELETE:
                rows.pop(row["word"], None)
            else:
                rows[row["word"]] = row["count"]
    return rows


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


class ManualClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.us = 1_000_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / 1e6


class LogFixtures:
    """What the tests of a contract are given; `backend` and `folder` come from whoever runs them."""

    @pytest.fixture(autouse=True)
    def _excused(self, backend: LogBackend, request: pytest.FixtureRequest) -> None:
        for capability in getattr(request.function, "needs", ()):
            if capability in backend.lacks:
                pytest.skip(backend.lacks[capability])

    @pytest.fixture
    def place(self, backend: LogBackend, folder: Path) -> Iterator[str]:
        yield backend.place(folder / "log")
        backend.forget(folder)

    @pytest.fixture
    def log(self, backend: LogBackend, place: str) -> Iterator[Log]:
        with closing(backend.open(place)) as log:
            yield log

    @pytest.fixture
    def reader(self, backend: LogBackend, place: str) -> Iterator[LogReader]:
        with closing(backend.reader(place)) as reader:
            yield reader

    @pytest.fixture
    def fresh(self, backend: LogBackend, folder: Path) -> Iterator[Callable[[], str]]:
        """A new place at each call, for tests that run many examples."""
        numbers = itertools.count()
        yield lambda: backend.place(folder / str(next(numbers)))
        backend.forget(folder)

    @pytest.fixture
    def stream(self, log: Log) -> Stream:
        return log.create(StreamSpec("numbers", SCHEMA))

    @pytest.fixture
    def unique(self, log: Log) -> Stream:
        return log.create(StreamSpec("unique", SCHEMA, unique=True))

    @pytest.fixture
    def changelog(self, log: Log) -> Stream:
        return log.create(CHANGELOG)
