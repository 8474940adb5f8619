"""Computes a trial's views as batch queries of their functions: the twin that `verify` compares running queries with.

1. At each look every flow and view is brought to the frontier of what was sent, in the order of the graph, by the same
   code that `verify` computes its right side with: late events, `where=`, `keep=`, closed windows, tables and regrouped
   views included.
2. What a flow gives is appended to its stream in the memory of this process, so that lateness behind it is judged by
   the log's rule. A flow that makes a time of its own is brought forward commit by commit, since where its commits end
   decides what is late.
3. An event that alone makes a function fail is a dead letter, as it is for a running flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.change import DELETE, OP, UPSERT
from penstock.config import Folder
from penstock.declaration import Application, FlowDef, ViewDef
from penstock.errors import PlanError
from penstock.flows import flow_build, poison
from penstock.flows.engine.scratch import scratch
from penstock.flows.keep import hashable
from penstock.flows.late import late_events
from penstock.flows.plan import Planned, Planner, flow_late_after, flow_schema, flow_time, served_columns
from penstock.flows.regroup.regrouping import frame_of
from penstock.flows.runner import problems_error
from penstock.flows.session import open_session
from penstock.flows.sink import least, one_row_per_key
from penstock.flows.source import Feed, Split, shown_events
from penstock.flows.verify import Verifier
from penstock.flows.watermark import whole
from penstock.log import control_keys
from penstock.log.builds import BatchMeta
from penstock.log.folder_log import DEAD, LATE
from penstock.log.log import Append, Count, LogReader, Share, Stream, StreamSpec
from penstock.log.opening import open_log, open_reader
from penstock.schema import ID, RECEIVED, TIME
from penstock.testing.trial_door import TrialDoor
from penstock.views.read_rule import rule_problems
from penstock.views.unpack import dicts_of

Ends = dict[str, tuple[int, ...]]
"""Where each stream and table of the door ends."""


class MemoryPlanner(Planner):
    """Reads logs that lie in this process, where Spark's workers cannot look."""

    def batch_input(self, feed: Feed, offsets: tuple[tuple[int, ...], tuple[int, ...]]) -> DataFrame:
        log = open_reader(feed.stream.place)
        return whole(frame_of(self.spark, shown_events(log, feed, Split(*offsets))), feed)


class Plans:
    """What planning an app gives; the same for every trial of it."""

    def __init__(self, application: Application) -> None:
        folder = Folder(scratch().inside("trials"), log="memory://trials")
        self.planner = MemoryPlanner(open_session("tests"), application, folder)
        self.planned, problems = self.planner.plan_all()
        problems = [*application.problems(), *problems, *rule_problems(application, served_columns(self.planned))]
        if errors := [problem for problem in problems if problem.level == "error"]:
            raise problems_error(errors)


def plans_of(application: Application) -> Plans:
    """Declarations are equal whatever their functions do: so those count as well."""
    kinds = tuple(entry.events.kind for entry in application.entries)
    return _plans(application, (*(node.function for node in application.nodes), *kinds))


@lru_cache(maxsize=64)
def _plans(application: Application, functions: tuple[Any, ...]) -> Plans:
    return Plans(application)


class Twin:
    """The flows of one trial."""

    def __init__(self, application: Application, folder: Folder, door: TrialDoor) -> None:
        self.application = application
        self.door = door
        plans = plans_of(application)
        self.planned = plans.planned
        self.log = open_log(folder.flows_log, app=application.name, clock=door.clock)
        self.late = self.log.create(StreamSpec("late", LATE, unique=True))
        self.dead = self.log.create(StreamSpec("dead", DEAD, unique=True))
        self.verifier = Verifier(plans.planner, door.log, self.log)
        self.outputs: dict[str, Stream] = {name: self._output(made) for name, made in self.planned.items()}
        self._metas: dict[str, BatchMeta] = {}
        self._frontiers: list[Ends] = []
        self._paused = False
        self._stepwise = any(_own_time(made) for made in self.planned.values())

    def close(self) -> None:
        self.log.close()

    def _output(self, made: Planned) -> Stream:
        build = flow_build.new_build(made, {}, {}, self.door.clock)
        self.log.append([], flow_build.remembered(made.node.name, build, self.log.memory()))
        return self.log.create(flow_build.stream_spec(made, build))

    # Following

    def sent(self) -> None:
        """The door has made a commit."""
        self._frontiers.append(self._ends())

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def crash(self, moment: str) -> None:
        """Nothing is known any more but the log: all of it is computed again."""
        if moment != "now":
            raise ValueError("a batch has a commit to crash at where run(app, real=True) runs the real queries")
        self._metas = {}

    def reopen(self, door: TrialDoor) -> None:
        """The door is another one, on the same log."""
        self.door, self.verifier.edge = door, door.log

    def stream(self, name: str) -> Stream | None:
        return self.outputs[name]

    def catch_up(self) -> None:
        """Bring everything to the newest frontier."""
        if self._paused:
            return
        waiting, self._frontiers = self._frontiers, []
        for frontier in waiting if self._stepwise else waiting[-1:] or ([] if self._metas else [self._ends()]):
            for made in self.planned.values():
                self._bring(made, frontier)

    def _ends(self) -> Ends:
        return {name: self.door.log.bounds(stream).ends for name, stream in self.door.streams.items()}

    def _bring(self, made: Planned, frontier: Ends) -> None:
        name = made.node.name
        before = self._metas.get(name)
        streams = {each: self._stream(each) for each in made.inputs}
        ends = {each: frontier.get(each) or self.log.bounds(streams[each]).ends for each in made.inputs}
        start = before.end if before else {each: [s.epoch, [0] * len(ends[each])] for each, s in streams.items()}
        end = {each: [stream.epoch, list(ends[each])] for each, stream in streams.items()}
        complete_us = self._complete_us(made, streams, ends)
        if before is not None and (before.end, before.complete_us) == (end, complete_us):
            return
        newest = self._newest(made, streams, ends)
        meta = BatchMeta(
            batch=before.batch + 1 if before else 0,
            start=start,
            end=end,
            max_us=newest,
            waits_us=None if made.reach_us is None or newest is None else newest + made.reach_us,
            complete_us=complete_us,
            watermark_us=closed_us(made, streams, ends, self._log_of),
            done_us=self.door.clock.now_us(),
        )
        rows = self._computed(made, meta, streams)
        batch = self._changes(made, rows) if isinstance(made.node, ViewDef) else self._events(made, rows)
        stated_us = complete_us if isinstance(made.node, ViewDef) or made.hands_on else None
        changed = Append(self.outputs[name], batch, msgspec.to_builtins(meta), complete_us=stated_us)
        appends = [changed, *self._late(made, streams, meta)]
        for outcome in self.log.append(appends):
            if isinstance(outcome, Exception):
                raise outcome
        self._metas[name] = meta

    def _complete_us(self, made: Planned, streams: Mapping[str, Stream], ends: Ends) -> int | None:
        """The least of what its streams are complete to; rows that change have no such time here."""
        feeds = self.verifier.planner.feeds(made, streams, {})
        last = {n: self._log_of(n).last_commit(f.stream, self._behind(n, f.stream, ends[n])) for n, f in feeds.items()}
        return least([feed.complete_us(last[name]) for name, feed in feeds.items()])

    def _behind(self, name: str, stream: Stream, ends: Sequence[int]) -> int:
        return _commit_number(self._log_of(name), stream, ends)

    def _stream(self, name: str) -> Stream:
        return self.door.streams.get(name) or self.outputs[name]

    def _log_of(self, name: str) -> LogReader:
        return self.door.log if name in self.door.streams else self.log

    def _newest(self, made: Planned, streams: Mapping[str, Stream], ends: Ends) -> int | None:
        """What `keep=` is measured by, as a running flow measures it."""
        found: list[int | None] = []
        for name, stream in streams.items():
            if made.inputs[name].changes:
                below = self._metas.get(name)
                found += [below.max_us] if below is not None and below.max_us is not None else []
            else:
                found.append(_commit_max(self._log_of(name), stream, ends[name]))
        known = [us for us in found if us is not None]
        if not known or (made.how == "folded" and len(known) < len(found)):
            return None
        before = self._metas.get(made.node.name)
        held = before.max_us if before is not None and made.how != "folded" else None
        return max(min(known), held) if held is not None else min(known)

    # Rows

    def _computed(self, made: Planned, meta: BatchMeta, streams: Mapping[str, Stream]) -> pa.Table:
        output = self.outputs[made.node.name]
        try:
            return self.verifier.recomputed(made, output, meta)
        except PySparkException as error:
            if made.how != "folded" or not self._left_out(made, meta, streams):
                said = str(error).strip().split("\n")[0]
                raise PlanError(f"{made.node.place}: '{made.node.name}' fails: {said}") from error
            return self.verifier.recomputed(made, output, meta)

    def _left_out(self, made: Planned, meta: BatchMeta, streams: Mapping[str, Stream]) -> bool:
        """Bury the events that alone make a function fail; whether there are any."""
        name, epoch = made.node.name, self.outputs[made.node.name].epoch
        feeds = self.verifier.planner.feeds(made, streams, flow_build.skips_of(self.log.memory(), name, epoch))
        ranges = {each: (tuple(meta.start[each][1]), tuple(meta.end[each][1])) for each in feeds}
        found = poison.find(self.verifier.planner, made, feeds, ranges)
        if not found:
            return False
        key = control_keys.skip(name, epoch)
        known = list(self.log.memory().get(key, []))
        logs = {each: self._log_of(each) for each in feeds}
        letters = poison.letters(logs, feeds, name, found, self.door.clock.now_us())
        self.log.append([Append(self.dead, letters, sets={key: [*known, *(list(event) for event in found)]})])
        return True

    def _changes(self, made: Planned, rows: pa.Table) -> pa.RecordBatch:
        """What leads from the rows that a view has to these."""
        rows, names = one_row_per_key(rows, made), list(made.node.key)
        there = {_key(row, names) for row in _dicts(rows)}
        gone = [row for row in view_rows(self.log, self.outputs[made.node.name]) if _key(row, names) not in there]
        schema = self.outputs[made.node.name].schema
        upserts = rows.append_column(OP, pa.array([UPSERT] * rows.num_rows, pa.int8())).select(schema.names)
        deletes = pa.Table.from_pylist([{**row, OP: DELETE} for row in gone], schema=schema)
        return one_batch(pa.concat_tables([deletes, upserts.cast(schema)]))

    def _events(self, made: Planned, rows: pa.Table) -> pa.RecordBatch:
        """What a flow gives beyond what its stream has."""
        stream = self.outputs[made.node.name]
        held = Counter(hashable(row) for row in self._held(stream, rows.column_names))
        fresh = []
        for place, row in enumerate(_dicts(rows)):
            known = hashable(row)
            if held[known]:
                held[known] -= 1
            else:
                fresh.append(place)
        rows, now = rows.take(pa.array(fresh, pa.int64())), self.door.clock.now_us()
        target = flow_schema(made)
        received = pa.repeat(pa.scalar(now, pa.int64()), rows.num_rows).cast(target.field(RECEIVED).type)
        more = {RECEIVED: received, ID: pa.nulls(rows.num_rows, pa.string())}
        columns = [more[f.name] if f.name in more else rows.column(f.name).cast(f.type) for f in target]
        return one_batch(pa.Table.from_arrays(columns, schema=target))

    def _held(self, stream: Stream, names: Sequence[str]) -> list[dict[str, Any]]:
        blocks = [block for partition in range(stream.partitions) for block in self.log.read(stream, partition, 0)]
        return [row for block in blocks for row in dicts_of(block.batch.select(names))]

    def _late(self, made: Planned, streams: Mapping[str, Stream], meta: BatchMeta) -> list[Append]:
        name, found = made.node.name, []
        for each, feed in self.verifier.planner.feeds(made, streams, {}).items():
            log = self._log_of(each)
            first, behind = (_commit_number(log, feed.stream, span[each][1]) for span in (meta.start, meta.end))
            rows = late_events(log, feed, name, first, behind, self.door.clock.now_us())
            if rows is not None:
                count = Count(control_keys.count(each, name), "late", Share("accepted"))
                found.append(Append(self.late, rows, follows=True, counts=(count,)))
        return found


def closed_us(
    made: Planned, streams: Mapping[str, Stream], ends: Ends, log_of: Callable[[str], LogReader]
) -> int | None:
    """Up to where windows have closed, where they are given when they close: what Spark's watermark says once it is
    idle. None: they are given while they are open."""
    if made.mode != "append" or not made.aggregates:
        return None
    closed = []
    for name, stream in streams.items():
        late_after, log = made.late_after[name], log_of(name)
        if late_after is not None:
            last = log.last_commit(stream, _commit_number(log, stream, ends[name]))
            stated = last.complete_us if last is not None else None
            newest = last.max_us if last is not None else None
            by_newest = 0 if newest is None else (newest // 1000 - (late_after + 1000) // 1000) * 1000
            closed.append(max(by_newest, 0 if stated is None else (stated // 1000 - 1) * 1000))
    return max(0, min(closed, default=0))


def _own_time(made: Planned) -> bool:
    """Whether a flow's events can be late once more behind it."""
    if not isinstance(made.node, FlowDef) or flow_late_after(made) is None:
        return False
    return flow_time(made) != TIME or len(made.inputs) > 1


def _commit_number(log: LogReader, stream: Stream, ends: Sequence[int]) -> int:
    """The number of the first commit behind these ends."""
    return sum(all(e <= o for e, o in zip(c.ends, ends, strict=True)) for c in log.commits(stream, 0))


def _commit_max(log: LogReader, stream: Stream, ends: Sequence[int]) -> int | None:
    commit = log.last_commit(stream, _commit_number(log, stream, ends))
    return None if commit is None else commit.max_us


def _dicts(rows: pa.Table) -> list[dict[str, Any]]:
    return [row for batch in rows.to_batches() for row in dicts_of(batch)]


def _key(row: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(hashable(row[name]) for name in names)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def view_rows(log: LogReader, stream: Stream) -> list[dict[str, Any]]:
    """The rows that a changelog leads to."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for block in log.read(stream, 0, log.bounds(stream).starts[0]):
        for row in dicts_of(block.batch):
            key, op = _key(row, stream.compact_by), row.pop(OP)
            found.pop(key, None)
            if op == UPSERT:
                found[key] = row
    return list(found.values())
