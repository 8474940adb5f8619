"""What is declared is compared with what the folder holds, before an edge would have to refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
import pytest

from penstock.app import App
from penstock.collect.collection import stream_spec
from penstock.declaration import Problem, StreamDef
from penstock.event import Event
from penstock.flows.check import stored_problems
from penstock.log.log import Append, Log
from penstock.log.opening import open_log
from tests.memory_folder import memory_folder


class Order(Event):
    amount: int


class Changed(Event):
    amount: bool


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = open_log(memory_folder(tmp_path).edge_log, app="shop")
    yield made
    made.close()


def declared(kind: type[Event] = Order, partitions: int = 1) -> StreamDef:
    app = App("shop")
    app.stream("orders", kind, partitions=partitions)
    return app.declared().streams[0]


def found(log: Log, stream: StreamDef) -> list[Problem]:
    return list(stored_problems(stream, log))


def test_a_stream_that_is_not_there_yet_may_have_any_number_of_partitions(log: Log) -> None:
    assert found(log, declared(partitions=7)) == []


def test_a_stream_as_it_was_made_has_no_problem(log: Log) -> None:
    log.create(stream_spec(declared(partitions=3)))
    assert found(log, declared(partitions=3)) == []


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_another_number_of_partitions_is_told_with_the_users_line(log: Log, partitions: int) -> None:
    log.create(stream_spec(declared(partitions=3)))
    stream = declared(partitions=partitions)
    (problem,) = found(log, stream)
    assert (problem.level, problem.code, problem.place) == ("error", "partitions_changed", stream.place)
    assert f"partitions=3 and is declared with partitions={partitions}" in problem.message
    assert "write partitions=3" in (problem.hint or "")


def test_a_class_and_partitions_that_changed_are_both_told(log: Log) -> None:
    stream = log.create(stream_spec(declared()))
    row = pa.RecordBatch.from_pylist([{"amount": 1}], schema=stream.schema)  # an empty stream takes any class
    log.append([Append(stream, row)])
    assert [p.code for p in found(log, declared(Changed, 2))] == ["partitions_changed", "incompatible_schema"]


def test_a_narrower_class_is_warned_of(log: Log) -> None:
    class Bounded(Event):
        amount: Annotated[int, msgspec.Meta(ge=0)]

    log.create(stream_spec(declared()))
    (problem,) = found(log, declared(Bounded))
    assert (problem.level, problem.code) == ("warning", "narrower_class")
    assert "'amount' now has minimum 0" in problem.message
