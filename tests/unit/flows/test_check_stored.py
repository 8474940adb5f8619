"""What is declared is compared with what the folder holds, before an edge would have to refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
import pytest

from penstock.app import App
from penstock.collect.collection import make_table, stream_spec
from penstock.declaration import Problem, StreamDef, TableDef
from penstock.event import Event
from penstock.flows.check import stored_problems
from penstock.log.group_commit import GroupCommit
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


def test_a_table_is_compared_with_its_rows_and_its_key(log: Log) -> None:
    class User(Event):
        id: int
        name: str = ""

    class Other(Event):
        id: int
        name: int = 0

    def table(kind: type[Event], key: str) -> TableDef:
        return App("shop").table("users", kind, key=key)

    group = GroupCommit(log)
    try:
        stream = make_table(log, group, table(User, "id"))
        group.submit([Append(stream, pa.RecordBatch.from_pylist([{"id": 1, "_op": 0}], schema=stream.schema))]).result()
        for kind, key, words in ((User, "id", None), (Other, "id", "'name'"), (User, "name", "its key was id")):
            declared = table(kind, key)
            problems = list(stored_problems(declared.entry, log, declared.key))
            assert [p.code for p in problems] == ([] if words is None else ["incompatible_schema"])
            assert words is None or (words in problems[0].message and "the table 'users'" in problems[0].message)
    finally:
        group.close()


def test_a_table_that_was_a_stream_is_told(log: Log) -> None:
    log.create(stream_spec(declared()))
    assert [p.code for p in stored_problems(declared(), log, ("amount",))] == ["incompatible_schema"]
