"""Ticks: time goes on where no events come, as far as something waits for it, and no further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from penstock import App, Event
from penstock.collect.collection import stream_spec
from penstock.collect.ticks import Ticks
from penstock.log import control_keys
from penstock.log.builds import BatchMeta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Log, Stream, StreamSpec
from penstock.log.logs.memory import temporary_place
from penstock.log.opening import open_log
from tests.unit.collect.manual_clock import ManualClock

SECOND = 1_000_000
HOUR = 3_600 * SECOND


class Step(Event):
    at: int


class Night:
    """A stream, a view of it, and a clock. The stream's first event happened and was taken at 1000 s."""

    def __init__(self, edge: Log, flows: Log, group: GroupCommit, clock: ManualClock) -> None:
        app = App("night")
        declared = app.stream("steps", Step, time="at", late_after="10 s", idle_after="5 s")
        app.sql("counts", key="at", query="SELECT at, count(*) AS c FROM steps GROUP BY at")
        self.clock, self.edge, self.flows = clock, edge, flows
        self.stream: Stream = edge.create(stream_spec(declared))
        self.view = flows.create(StreamSpec("counts", pa.schema([("at", pa.int64())]), epoch="e"))
        self.ticks = Ticks(app.declared(), edge, group, flows, clock, lambda signal: None)

    def event(self, at_s: float) -> None:
        at = {"at": int(at_s * 1000), "_time": int(at_s * SECOND), "_received": self.clock.now_us(), "_id": None}
        batch = pa.RecordBatch.from_pylist([at | {"_key": None}], schema=self.stream.schema)
        self.edge.append([Append(self.stream, batch)])

    def waits(self, until_s: float | None) -> None:
        meta = BatchMeta(batch=0, start={}, end={}, waits_us=None if until_s is None else int(until_s * SECOND))
        nothing = pa.RecordBatch.from_pylist([], schema=self.view.schema)
        append = Append(self.view, nothing, msgspec.to_builtins(meta), sets={control_keys.live("counts"): "e"})
        self.flows.append([append])

    def pass_(self, seconds: float, step_s: float = 1.0) -> list[Any]:
        """Let time pass; gives what the ticks of it said, in seconds."""
        before = self.edge.bounds(self.stream).next_commit
        for _ in range(round(seconds / step_s)):
            self.clock.pass_s(step_s)
            self.ticks.once()
        return [c.complete_us / SECOND for c in self.edge.commits(self.stream, before) if c.complete_us]


@contextmanager
def night() -> Iterator[Night]:
    clock = ManualClock(1000 * SECOND)
    with temporary_place() as place:
        edge = open_log(f"{place}/edge", app="night", clock=clock)
        flows = open_log(f"{place}/flows", app="night", clock=clock)
        with closing(edge), closing(flows), closing(GroupCommit(edge)) as group:
            yield Night(edge, flows, group, clock)


def test_time_goes_on_by_the_clock_until_what_waits_for_it_has_closed() -> None:
    with night() as there:
        there.event(1000)
        there.waits(1003)
        assert there.pass_(4) == [], "it is not silent yet"
        assert there.pass_(600) == [995, 1000, 1005], "1000 + silence - 10, every 5 s, until 1003 has passed"


def test_a_silent_night_leaves_few_ticks_and_an_event_ends_it() -> None:
    with night() as there:
        there.event(1000)
        there.waits(1029)
        assert len(there.pass_(36_000, step_s=5)) == 8
        there.event(37_000)
        last = there.edge.commits(there.stream, 9)[0]
        assert (last.earliest_us, last.complete_us) == (1030 * SECOND, 36_990 * SECOND)
        assert there.pass_(100) == [], "nothing waits for more than there is"


def test_where_nothing_waits_for_time_or_nothing_has_come_there_are_no_ticks() -> None:
    with night() as there:
        there.waits(5000)
        assert there.pass_(100) == []
        there.event(1000)
        there.waits(None)
        assert there.pass_(100) == []


def test_silence_goes_on_through_a_restart_of_the_edge() -> None:
    with night() as there:
        there.event(1000)
        there.waits(1003)
        assert there.pass_(5) == [995]
        there.ticks = Ticks(
            there.ticks._application, there.edge, there.ticks._group, there.flows, there.clock, lambda signal: None
        )
        assert there.pass_(5) == [1000]
