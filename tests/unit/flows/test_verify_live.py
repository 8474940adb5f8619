"""`verify` on a log that moves under it: it looks again, and says what it could not prove instead of failing.

Spark is stood in for by a planner that reads the ranges it is given from the real log, as Spark's workers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from penstock.app import App
from penstock.change import Column
from penstock.config import Folder
from penstock.declaration import Application
from penstock.event import Event
from penstock.flows.plan import Planned
from penstock.flows.verify import Report, Verifier, exit_code
from penstock.log.builds import BatchMeta, Build
from penstock.log.log import Append, LogReader, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.schema import KEY, stored_schema
from tests.memory_folder import memory_folder

TOPICS = StructType([StructField("topic", StringType())])
STORED = stored_schema([pa.field("topic", pa.string())])


class Rsvp(Event):
    topic: str


def app() -> Application:
    """rsvps -> yes -> twice, both flows."""
    made = App("small")
    made.stream("rsvps", Rsvp)

    @made.flow(key="topic")
    def yes(rsvps: Any) -> Any: ...

    @made.flow(key="topic")
    def twice(yes: Any) -> Any: ...

    return made.declared()


class Frame:
    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def toArrow(self) -> pa.Table:
        return self._table


class StandIn:
    """A planner whose functions give the topics that they read."""

    def __init__(self, application: Application, log_of: Callable[[str], LogReader]) -> None:
        self.application = application
        self.before_reading: list[Callable[[], None]] = []
        self._log_of = log_of

    def feeds(self, made: Planned, streams: Mapping[str, Stream], skips: Any) -> Mapping[str, Stream]:
        return streams

    def batch_frame(self, made: Planned, feeds: Mapping[str, Stream], ranges: Mapping[str, Any]) -> Frame:
        if self.before_reading:
            self.before_reading.pop(0)()
        ((name, (starts, ends)),) = ranges.items()
        blocks = self._log_of(name).read(feeds[name], 0, starts[0], ends[0]) if starts[0] < ends[0] else []
        topics = [topic for block in blocks for topic in block.batch.column("topic").to_pylist()]
        return Frame(pa.table({"topic": pa.array(topics, pa.string())}))


class World:
    def __init__(self, folder: Folder) -> None:
        self.edge = open_log(folder.edge_log, app="small")
        self.flows = open_log(folder.flows_log, app="small")
        self.application = app()
        self.planner = StandIn(self.application, self.log_of)
        self.verifier = Verifier(self.planner, self.edge, self.flows)  # type: ignore[arg-type]
        self.rsvps = self.edge.create(StreamSpec("rsvps", STORED))
        self.built = {"yes": self.build("yes"), "twice": self.build("twice")}

    def log_of(self, name: str) -> LogReader:
        return self.edge if name == "rsvps" else self.flows

    def build(self, name: str) -> Stream:
        stream = self.flows.create(StreamSpec(name, STORED, epoch=f"{name}-{len(self.flows.streams())}"))
        columns = (Column("topic", "string"),)
        build = Build(epoch=stream.epoch, fingerprint="f", kind="flow", columns=columns, proof="exact", started_us=0)
        self.flows.append([], {f"build/{name}": msgspec.to_builtins(build), f"live/{name}": stream.epoch})
        return stream

    def post(self, *topics: str) -> None:
        self.edge.append([Append(self.rsvps, batch(topics))])

    def absorb(self, name: str, *topics: str) -> None:
        """One commit of a flow that has read all of its input."""
        source = self.rsvps if name == "yes" else self.built["yes"]
        end = {source.name: [source.epoch, list(self.log_of(source.name).bounds(source).ends)]}
        number = self.flows.bounds(self.built[name]).next_commit
        meta = msgspec.to_builtins(BatchMeta(batch=number, start={}, end=end))
        self.flows.append([Append(self.built[name], batch(topics), meta=meta)])

    def report(self, name: str) -> Report:
        node = self.application.flow(name)
        assert node is not None
        made = Planned(
            node, {i: None for i in node.inputs}, "append", False, False, ("topic",), TOPICS, True, False,
            "exact", (), "f",
        )  # fmt: skip
        return self.verifier.report(made)


def batch(topics: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"topic": t, KEY: t} for t in topics], schema=STORED)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(memory_folder(tmp_path))
    yield made
    made.edge.close()
    made.flows.close()


def test_a_log_that_stands_still_is_compared_once(world: World) -> None:
    world.post("a", "b")
    world.absorb("yes", "a", "b")
    report = world.report("yes")
    assert (report.result, report.rows, report.events, report.reasons) == ("equal", 2, 2, [])
    world.absorb("yes", "c")
    assert world.report("yes").result == "different"


def test_events_that_retention_removes_meanwhile_are_no_difference(world: World) -> None:
    for topic in "abc":
        world.post(topic)
    world.absorb("yes", "a", "b", "c")
    world.planner.before_reading.append(lambda: world.edge.trim(world.rsvps, 2) and None)
    report = world.report("yes")
    assert (report.result, report.reasons) == ("unverifiable", ["retention has removed events that it counts"])
    assert exit_code([report]) == 2


def test_what_spark_says_of_a_position_that_is_gone_leads_to_a_newer_frontier(world: World) -> None:
    def moves_on() -> None:
        world.post("b")
        world.absorb("yes", "b")
        raise RuntimeError("job aborted:\n  penstock.errors.PositionGoneError: 'rsvps' begins later\n  at worker")

    world.post("a")
    world.absorb("yes", "a")
    world.planner.before_reading.append(moves_on)
    report = world.report("yes")
    assert (report.result, report.rows, report.events) == ("equal", 2, 2)


def test_a_function_that_fails_as_a_batch_query_is_told_and_the_next_one_is_compared(world: World) -> None:
    def fails() -> None:
        raise PySparkException("[CAST_INVALID_INPUT] The value 'x' cannot be cast\n== SQL ==")

    world.post("a")
    world.absorb("yes", "a")
    world.absorb("twice", "a")
    world.planner.before_reading.append(fails)
    report = world.report("yes")
    assert report.result == "unverifiable"
    assert report.reasons == ["its function fails as a batch query: [CAST_INVALID_INPUT] The value 'x' cannot be cast"]
    assert world.report("twice").result == "equal"


def test_a_block_that_is_damaged_is_no_matter_of_the_function(world: World) -> None:
    def damaged() -> None:
        raise PySparkException("Traceback\n  penstock.errors.CorruptBlockError: the block at 5 is damaged")

    world.post("a")
    world.absorb("yes", "a")
    world.planner.before_reading.append(damaged)
    with pytest.raises(PySparkException, match="damaged"):
        world.report("yes")


def test_an_input_that_was_rebuilt_and_removed_is_told(world: World) -> None:
    world.post("a")
    world.absorb("yes", "a")
    world.absorb("twice", "a")
    old = world.built["yes"]
    world.flows.drop(old)
    report = world.report("twice")
    assert report.result == "unverifiable"
    assert f"the build '{old.epoch}' of 'yes' has been removed" in report.reasons[0]


def test_an_output_that_is_replaced_and_removed_meanwhile_is_compared_in_its_new_build(world: World) -> None:
    def replaced() -> None:
        old = world.built["yes"]
        world.built["yes"] = world.build("yes")
        world.absorb("yes", "a")
        world.flows.drop(old)

    world.post("a")
    world.absorb("yes", "wrong")
    world.planner.before_reading.append(replaced)
    assert world.report("yes").result == "equal"


def test_a_log_that_never_stands_still_is_given_up_on(world: World) -> None:
    def gone() -> None:
        raise RuntimeError("PositionGoneError: 'rsvps' begins later")

    world.post("a")
    world.absorb("yes", "a")
    world.planner.before_reading += [gone] * 10
    report = world.report("yes")
    assert report.result == "unverifiable"
    assert "moved on while it was compared, 3 times: PositionGoneError: 'rsvps' begins later" in report.reasons[0]
    assert len(world.planner.before_reading) == 7


def test_other_failures_are_not_taken_for_movement(world: World) -> None:
    def fails() -> None:
        raise ValueError("the function is wrong")

    world.post("a")
    world.absorb("yes", "a")
    world.planner.before_reading.append(fails)
    with pytest.raises(ValueError, match="wrong"):
        world.report("yes")
