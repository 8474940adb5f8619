"""`penstock verify`: every view and flow stream recomputed as a batch query of the user's own function, row by row.

At frontier F a view equals its function run over the log up to F, minus what the `late` ledger and the skip list
name. This module checks exactly that, on a live or a stopped system, with nothing but the log: it is the oracle of
the tests too. It goes link by link: a view behind a flow is computed from that flow's own stream.

On a live system compaction, retention and rebuilds go on meanwhile. Both sides are computed from one look at where the
inputs begin; what was there then and is gone when it is read makes the comparison begin again at a newer frontier.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.change import OP, UPSERT
from penstock.config import Folder
from penstock.declaration import Application, ViewDef
from penstock.errors import PenstockError, PositionGoneError
from penstock.flows import failure, flow_build
from penstock.flows.final_rows import judged
from penstock.flows.keep import hashable, row_times, too_old
from penstock.flows.ordered.alert_flow import check_record, played_alert, rows_at
from penstock.flows.ordered.ordered_flow import ordered_inputs, recorded
from penstock.flows.ordered.ordered_plan import alert_frame
from penstock.flows.ordered.ordered_replay import replayed, same_order, without_clocks
from penstock.flows.plan import Planned, Planner, flow_schema
from penstock.flows.regroup.hidden_views import shown_name
from penstock.flows.regroup.input_streams import commit_at, limit_of
from penstock.flows.regroup.regrouping import frame_of
from penstock.flows.regroup.table_versions import input_of, version_rows, versions_schema
from penstock.flows.regroup.unit_choice import UnitChoice, choose
from penstock.flows.regroup.unit_poison import skipped_units
from penstock.flows.rules import window_column
from penstock.flows.session import open_session
from penstock.flows.sink import closed_us, flow_events, latest_by_key, with_op
from penstock.flows.summary_bounds import compare_bounded
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, batch_meta, build_of
from penstock.log.log import Commit, LogReader, Stream
from penstock.log.opening import open_reader
from penstock.schema import TIME, simple_type
from penstock.summaries import exactly
from penstock.views.unpack import dicts_of

Result = Literal["equal", "different", "unverifiable"]
TOLERANCE = 1e-9
TRIES = 3
"""How often a comparison begins again because the log moved on; a minute of recomputing seldom meets two."""
_SHOWN = 20
"""Differences that are told; the rest is counted."""

Rows = dict[Any, Any]


@dataclass(frozen=True)
class Report:
    """What was found of one view or flow stream."""

    name: str
    kind: Literal["view", "flow"]
    result: Result
    rows: int = 0
    events: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why something could not be proved, or what part of it is still open."""
    missed: list[str] = field(default_factory=list)
    """Bounds that hold 99 times of 100 and do not here: no more of them than chance explains."""


@dataclass(frozen=True)
class Ground:
    """What there is of one input when a comparison begins."""

    stream: Stream
    starts: tuple[int, ...]
    cut_us: int | None
    """The largest event time among what retention has removed; None: nothing was removed."""


def exit_code(reports: Sequence[Report]) -> int:
    """0: all equal; 1: something differs; 2: nothing differs, but something could not be proved."""
    results = {report.result for report in reports}
    return 1 if "different" in results else 2 if "unverifiable" in results else 0


def verify(
    application: Application, folder: Folder, names: Sequence[str] = (), *, units: int | None = None, deep: bool = False
) -> list[Report]:
    """Recompute and compare; without names, everything that the app declares. Of views that are kept unit by unit so
    many `units` are compared; `deep` computes their inputs anew, too, down to the streams."""
    spark = open_session(f"{application.name} verify", optimised=True)
    planner = Planner(spark, application, folder)
    planned, _ = planner.plan_all()
    edge, flows = open_reader(folder.edge_log), open_reader(folder.flows_log)
    try:
        verifier = Verifier(planner, edge, flows, planned if deep else {}, units)
        wanted = [made for name, made in planned.items() if not names or shown_name(name) in names]
        missing = [n.name for n in application.nodes if n.name not in planned and (not names or n.name in names)]
        broken = [
            Report(name, "view", "unverifiable", reasons=["it has errors: run penstock check"]) for name in missing
        ]
        return [*(verifier.report(made) for made in wanted), *broken]
    finally:
        edge.close()
        flows.close()


class Verifier:
    """Compares builds of one data folder with their functions."""

    def __init__(
        self,
        planner: Planner,
        edge: LogReader,
        flows: LogReader,
        anew: Mapping[str, Planned] | None = None,
        units: int | None = None,
    ) -> None:
        self.planner = planner
        self.edge = edge
        self.flows = flows
        self._anew = anew or {}
        """Views that are computed anew where others read them; of the rest the changelog is taken as it is."""
        self._units = units
        """How many units of each view are compared; None: all."""

    def report(self, made: Planned) -> Report:
        """Compare one view or flow stream at its newest commit."""
        began, why = time.monotonic(), None
        for _ in range(TRIES):
            try:
                return self._attempt(made, began)
            except Exception as error:
                why = _moved_on(error)
                if why is None and _is_ours(error):
                    raise
                if why is None:
                    reason = f"its function fails as a batch query: {failure.reason(str(error))}"
                    return Report(made.node.name, _kind(made), "unverifiable", reasons=[reason])
        reason = f"the log moved on while it was compared, {TRIES} times: {why}"
        return Report(made.node.name, _kind(made), "unverifiable", reasons=[reason])

    def _attempt(self, made: Planned, began: float) -> Report:
        kind, name = _kind(made), made.node.name
        output, reason = self._output(made)
        commit = self._commit(output) if output is not None else None
        if output is None or commit is None or commit.meta is None:
            return Report(name, kind, "unverifiable", reasons=[reason or "it has absorbed nothing yet"])
        if made.proof == "unverifiable":
            return Report(name, kind, "unverifiable", reasons=list(made.proof_reasons))
        build = build_of(self.flows.memory()[control_keys.build(name)])
        if build.migrated_from is not None:
            reason = f"its states were taken over from version {build.migrated_from}, which other code had made"
            return Report(name, kind, "unverifiable", reasons=[reason])
        meta = batch_meta(commit.meta)
        if made.how == "ordered" and made.fold is None:
            return self._alert_report(made, output, commit, meta, began)
        ground = {name: self._ground(name, meta) for name in made.inputs}
        return self._compare(made, ground, output, commit, meta, began)

    def _alert_report(self, made: Planned, output: Stream, commit: Commit, meta: BatchMeta, began: float) -> Report:
        """An alert's stream is its own record: what is proved is that it alternates and agrees with the rows."""
        node = made.node
        name = node.state_of if isinstance(node, ViewDef) else node.name
        flow = next(f for f in self.planner.application.flows if f.name == name)
        assert flow.alert is not None
        ((view, (epoch, (offset,))),) = meta.end.items()
        names = flow.name, flow.alert.shown.name
        streams = [self._found(self.flows, name, self.flows.memory()[control_keys.live(name)]) for name in names]
        last = [c for c in self.flows.commits(streams[0], 0) if c.meta and batch_meta(c.meta).batch <= meta.batch][-1]
        blocks = self.flows.read(streams[0], 0, self.flows.bounds(streams[0]).starts[0], last.ends[0])
        events = pa.Table.from_batches([block.batch for block in blocks], schema=streams[0].schema)
        shown = self.flows.last_commit(streams[1])
        raised = rows_at(self.flows, streams[1], shown.number + 1 if shown else 0)
        rows = rows_at(self._log_of(view), self._found(self._log_of(view), view, epoch), offset)
        wrong = check_record(events, raised, rows, replace(made, node=flow))
        result: Result = "different" if wrong else "equal"
        return Report(node.name, _kind(made), result, len(raised), 0, time.monotonic() - began, wrong)

    def _output(self, made: Planned) -> tuple[Stream | None, str]:
        """The live build's stream, if it was made by the function as it is now."""
        memory = self.flows.memory()
        live, stored = memory.get(control_keys.live(made.node.name)), memory.get(control_keys.build(made.node.name))
        if live is None or stored is None:
            return None, "it has not been built yet"
        build = build_of(stored)
        if build.epoch != live:
            return None, "it is being rebuilt"
        if build.fingerprint != made.fingerprint:
            return None, "the app changed since it was built: run it, then verify"
        return self._found(self.flows, made.node.name, live), ""

    def _commit(self, output: Stream) -> Commit | None:
        """The newest commit at which a comparison means something."""
        below: int | None = None
        while (commit := self.flows.last_commit(output, below)) is not None:
            if commit.meta is None or batch_meta(commit.meta).even:
                return commit
            below = commit.number
        return None

    def _compare(
        self,
        made: Planned,
        ground: Mapping[str, Ground],
        output: Stream,
        commit: Commit,
        meta: BatchMeta,
        began: float,
    ) -> Report:
        kind = _kind(made)
        inside, reasons = self._inside(made, [self._cut_us(made, each, meta) for each in ground.values()])
        if inside is None:
            return Report(made.node.name, kind, "unverifiable", reasons=reasons)
        choice, unknown = self._choice(made, ground, output, commit, meta)
        reasons += unknown
        with exactly() if made.proof == "bounded" else nullcontext():
            right = inside(self._computed(made, ground, output, meta, choice))
        left = inside(self._held(made, output, commit))
        if choice is not None:
            left, right = choice.only(left), choice.only(right)
        if kind == "view" and latest_by_key(right, made.node.key).num_rows != right.num_rows:
            return Report(made.node.name, kind, "unverifiable", reasons=["rows of one key in no certain order"])
        missed: list[str] = []
        if made.proof == "bounded" and kind == "view":
            found = compare_bounded(_by_key(left, made.node.key), _by_key(right, made.node.key), _within_tolerance)
            differences, rows, missed = _few(found.differences), found.rows, found.missed
        elif kind == "view":
            differences, rows = compare_rows(left, right, made)
        else:
            differences, rows = compare_events(left, right, made.proof == "tolerance")
            if made.how == "ordered" and not differences and output.partitions == 1:
                differences = same_order(left, right)
        events = sum(sum(end) for _, end in meta.end.values())
        result: Result = "different" if differences else "unverifiable" if reasons else "equal"
        seconds = time.monotonic() - began
        return Report(made.node.name, kind, result, rows, events, seconds, differences, reasons, missed)

    # The two sides

    def recomputed(self, made: Planned, output: Stream, meta: BatchMeta) -> pa.Table:
        """What the function gives as a batch query at the frontier of this commit."""
        return self._computed(made, {name: self._ground(name, meta) for name in made.inputs}, output, meta)

    def _choice(
        self, made: Planned, ground: Mapping[str, Ground], output: Stream, commit: Commit, meta: BatchMeta
    ) -> tuple[UnitChoice | None, list[str]]:
        """The units that are compared; None: all. And why not all can be proved."""
        if made.units is None or not made.units.columns:
            return None, []
        skipped = skipped_units(self.flows.memory(), made.node.name, output.epoch)
        if not skipped and (self._units is None or made.units.hidden):
            return None, []
        if made.units.hidden:
            return None, [f"{len(skipped)} units fail, and its rows do not show of which unit they are"]
        frames = self._inputs_at(made, ground, meta)
        inputs = {name: frame if isinstance(frame, pa.Table) else frame.toArrow() for name, frame in frames.items()}
        own = self._held(made, output, commit)
        choice = choose(self.planner.spark, made.units, inputs, own, skipped, self._units)
        return choice, [] if choice is not None else [f"{len(skipped)} units fail, and share rows with others"]

    def _computed(
        self,
        made: Planned,
        ground: Mapping[str, Ground],
        output: Stream,
        meta: BatchMeta,
        choice: UnitChoice | None = None,
    ) -> pa.Table:
        """What the function gives as a batch query over the log up to the frontier."""
        node = made.node
        if made.how == "ordered":
            return self._replayed(made, ground, output, meta).select(self._names(made))
        streams = {name: each.stream for name, each in ground.items()}
        if made.how == "folded":
            feeds = self.planner.feeds(made, streams, flow_build.skips_of(self.flows.memory(), node.name, output.epoch))
            ranges = {name: (each.starts, tuple(meta.end[name][1])) for name, each in ground.items()}
            frame = self.planner.batch_frame(made, feeds, ranges)
        else:
            inputs = self._inputs_at(made, ground, meta) | (dict(choice.inputs) if choice is not None else {})
            tables = {name: rows for name, rows in inputs.items() if isinstance(rows, pa.Table)}
            frames = {name: frame_of(self.planner.spark, rows) for name, rows in tables.items()}
            frame = self.planner.call(node, self.planner.with_versions(made.inputs, {**inputs, **frames}))
        if isinstance(node, ViewDef):
            table = self._closed(with_op(frame, node).toArrow(), made, meta)
            table = latest_by_key(table, node.key) if made.ordered else table
            table = table.filter(pc.equal(table.column(OP), UPSERT))
            if node.final:
                table = judged(table, closed_us(self.planner.feeds(made, streams, {}), meta))
            if node.keep_us is not None and meta.max_us is not None:
                table = table.filter(pc.invert(too_old(row_times(table), meta.max_us - node.keep_us)))
        else:
            table = pa.Table.from_batches([flow_events(self._closed(frame.toArrow(), made, meta), made, 0)])
        return table.select(self._names(made))

    def _replayed(self, made: Planned, ground: Mapping[str, Ground], output: Stream, meta: BatchMeta) -> pa.Table:
        """What an ordered flow must have emitted, or its states."""
        if made.fold is None:
            return self._played_alert(made, ground, meta)
        flow = made.fold.flow
        stream = self._found(self.flows, flow, self.flows.memory()[control_keys.live(flow)])
        commits = self.flows.commits(stream, self.flows.bounds(stream).first_commit)
        metas = [m for m in (batch_meta(c.meta) for c in commits if c.meta) if m.batch < meta.batch]
        feeds = self.planner.feeds(made, {n: each.stream for n, each in ground.items()}, {})
        logs = {n: self._log_of(n) for n in feeds}
        inputs = ordered_inputs(made, feeds, logs, None)
        said = [recorded(each, inputs) for each in (*metas, meta)]
        rows, states = replayed(made.fold, inputs, said, self.planner.spark)
        if isinstance(made.node, ViewDef):
            return without_clocks(states)
        return pa.Table.from_batches([flow_events(rows, made, 0)])

    def _played_alert(self, made: Planned, ground: Mapping[str, Ground], meta: BatchMeta) -> pa.Table:
        name = made.node.state_of if isinstance(made.node, ViewDef) else made.node.name
        flow = next(f for f in self.planner.application.flows if f.name == name)
        ((view, each),) = ground.items()
        alert = replace(made, node=flow, frame_schema=alert_frame(flow, made.inputs[view]))
        told, raised = played_alert(alert, self._log_of(view), each.stream, meta.end[view][1][0])
        return raised if isinstance(made.node, ViewDef) else pa.Table.from_batches([flow_events(told, alert, 0)])

    def _input_at(self, made: Planned, ground: Ground, ends: Sequence[int]) -> DataFrame | pa.Table:
        """An input of a regrouped view at its frontier: rows of a view or table, or the events that count there."""
        name = ground.stream.name
        if made.inputs[name].changes:
            return (
                self._rows_anew(ground.stream, ends[0]) if name in self._anew else self._rows_at(ground.stream, ends[0])
            )
        feed = self.planner.feeds(made, {name: ground.stream}, {})[name]
        frame = self.planner.batch_input(feed, (ground.starts, tuple(ends)))
        limit_us = self._limit_us(made, ground.stream, ends)
        return frame if limit_us is None else frame.where(F.col(TIME) >= F.timestamp_micros(F.lit(limit_us)))

    def _inputs_at(self, made: Planned, ground: Mapping[str, Ground], meta: BatchMeta) -> dict[str, Any]:
        """All that a regrouped view reads, as tables of rows or, of streams, frames."""
        inputs = {name: self._input_at(made, each, meta.end[name][1]) for name, each in ground.items()}
        return inputs | self._versions_at(made, ground, meta)

    def _versions_at(self, made: Planned, ground: Mapping[str, Ground], meta: BatchMeta) -> dict[str, pa.Table]:
        """The versions of tables that a regrouped view joins, as far as it had read them."""
        assert made.units is not None
        found = {}
        for name in {leaf.input for leaf in made.units.leaves if leaf.input != input_of(leaf.input)}:
            each = ground[input_of(name)]
            blocks = self._log_of(each.stream.name).read(each.stream, 0, each.starts[0], meta.end[input_of(name)][1][0])
            found[name] = version_rows(blocks, versions_schema(made.inputs[input_of(name)].schema))
        return found

    def _limit_us(self, made: Planned, stream: Stream, ends: Sequence[int]) -> int | None:
        """The time from which on `within=` lets events count."""
        last = commit_at(self._log_of(stream.name), stream, ends)
        return limit_of(last, getattr(made.node, "within_us", None))

    def _rows_anew(self, changelog: Stream, offset: int) -> pa.Table:
        """The same of a view, by its own function over its own inputs."""
        made, commit = self._anew[changelog.name], self.flows.last_commit(changelog, offset)
        meta = batch_meta(commit.meta) if commit is not None and commit.meta else None
        if meta is None or not meta.even:
            return self._rows_at(changelog, offset)
        ground = {name: self._ground(name, meta) for name in made.inputs}
        rows = self._computed(made, ground, changelog, meta)
        schema = pa.schema([field for field in changelog.schema if field.name != OP])
        return latest_by_key(rows, made.node.key).select(schema.names).cast(schema)

    def _rows_at(self, changelog: Stream, offset: int) -> pa.Table:
        """The rows of a view or table when its changelog ended at this offset."""
        log = self._log_of(changelog.name)
        blocks = log.read(changelog, 0, log.bounds(changelog).starts[0], offset)
        table = pa.Table.from_batches([block.batch for block in blocks], schema=changelog.schema)
        table = latest_by_key(table, changelog.compact_by)
        return table.filter(pc.equal(table.column(OP), UPSERT)).drop_columns([OP])

    def _held(self, made: Planned, output: Stream, commit: Commit) -> pa.Table:
        """What the log holds of the output at that commit."""
        if isinstance(made.node, ViewDef):
            table = self._rows_at(output, commit.number + 1)
            table = without_clocks(table) if made.how == "ordered" else table
        else:
            starts = self.flows.bounds(output).starts
            batches = [
                block.batch
                for partition, (start, end) in enumerate(zip(starts, commit.ends, strict=True))
                for block in self.flows.read(output, partition, start, end)
            ]
            table = pa.Table.from_batches(batches, schema=output.schema)
        return table.select(self._names(made))

    def _names(self, made: Planned) -> list[str]:
        if isinstance(made.node, ViewDef):
            return list(made.arrow.names)
        return [name for name in flow_schema(made).names if name not in ("_received", "_id")]

    def _closed(self, table: pa.Table, made: Planned, meta: BatchMeta) -> pa.Table:
        """Append mode gives a window's row when it has closed: leave out those that are open at this commit."""
        if made.mode != "append" or not made.aggregates or meta.watermark_us is None:
            return table
        ends = table.column(_window(made)).combine_chunks().field("end").cast(pa.int64())
        return table.filter(pc.less_equal(ends, meta.watermark_us))

    def _inside(
        self, made: Planned, cuts: Sequence[int | None]
    ) -> tuple[Callable[[pa.Table], pa.Table] | None, list[str]]:
        """What part of the rows can be proved: all, or the windows that lie wholly in what retention has left."""
        if all(cut is None for cut in cuts):
            return (lambda table: table), []
        window = _window(made)
        if window is None:
            return None, ["retention has removed events that it counts"]
        newest = max(cut for cut in cuts if cut is not None)

        def inside(table: pa.Table) -> pa.Table:
            starts = table.column(window).combine_chunks().field("start").cast(pa.int64())
            return table.filter(pc.greater(starts, newest))

        return inside, ["windows that begin before what retention has left"]

    def _cut_us(self, made: Planned, ground: Ground, meta: BatchMeta) -> int | None:
        """What retention has cut off of an input, unless `within=` leaves out all of that anyway."""
        if ground.cut_us is None or getattr(made.node, "within_us", None) is None:
            return ground.cut_us
        limit_us = self._limit_us(made, ground.stream, meta.end[ground.stream.name][1])
        return None if limit_us is not None and ground.cut_us < limit_us else ground.cut_us

    def _ground(self, name: str, meta: BatchMeta) -> Ground:
        log = self._log_of(name)
        stream = self._found(log, name, meta.end[name][0])
        bounds = log.bounds(stream)
        if bounds.first_commit == 0 or stream.compact_by:  # compaction takes nothing that counts
            return Ground(stream, bounds.starts, None)
        first = log.commits(stream, bounds.first_commit, limit=1)
        if not first or first[0].number != bounds.first_commit:
            raise PositionGoneError(f"retention is cutting '{name}'")
        return Ground(stream, bounds.starts, first[0].bound_us or 0)

    def _found(self, log: LogReader, name: str, epoch: str | None) -> Stream:
        stream = log.find(name, epoch)
        if stream is None:
            raise PositionGoneError(f"the build '{epoch}' of '{name}' has been removed")
        return stream

    def _log_of(self, name: str) -> LogReader:
        outside = self.planner.application.stream(name) or self.planner.application.table(name)
        return self.edge if outside else self.flows


def _window(made: Planned) -> str | None:
    return window_column({field.name: simple_type(field.type) for field in made.arrow})


def _kind(made: Planned) -> Literal["view", "flow"]:
    return "view" if isinstance(made.node, ViewDef) else "flow"


def _moved_on(error: Exception) -> str | None:
    """What was gone, if that is why a comparison failed. Spark's workers tell it inside of their own error."""
    if isinstance(error, PositionGoneError):
        return error.message
    lines = (line.strip() for line in str(error).split("\n"))
    return next((line[:400] for line in lines if PositionGoneError.__name__ in line), None)


def _is_ours(error: Exception) -> bool:
    """Whether a comparison failed by something else than the user's function, such as a block that is damaged."""
    return not isinstance(error, PySparkException) or PenstockError.__module__ in str(error)


# Comparing


def compare_rows(left: pa.Table, right: pa.Table, made: Planned) -> tuple[list[str], int]:
    """Differences between the view (left) and the batch query (right), by key."""
    if made.proof == "exact" and left.num_rows == right.num_rows and _same_sorted(left, right):
        return [], left.num_rows
    held, computed = _by_key(left, made.node.key), _by_key(right, made.node.key)
    different: list[str] = []
    for key in held.keys() | computed.keys():
        mine, theirs = held.get(key), computed.get(key)
        if not _equal(mine, theirs, made.proof == "tolerance"):
            different.append(f"{_shown(mine, theirs, made.node.key)}: view {mine}, batch {theirs}")
    return _few(sorted(different)), len(held)


def compare_events(left: pa.Table, right: pa.Table, tolerant: bool) -> tuple[list[str], int]:
    """Differences between a flow's stream (left) and the batch query (right), as multisets."""
    held = Counter(hashable(_comparable(row, tolerant)) for row in _rows(left))
    computed = Counter(hashable(_comparable(row, tolerant)) for row in _rows(right))
    different = [f"{count} too many in the stream: {dict(row)}" for row, count in (held - computed).items()]
    different += [f"{count} missing in the stream: {dict(row)}" for row, count in (computed - held).items()]
    return _few(different), left.num_rows


def _comparable(value: Any, tolerant: bool) -> Any:
    """A value that equals another one when both mean the same: NaN is NaN, and a tolerance is nine digits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}") if tolerant else value
    if isinstance(value, dict):
        return {name: _comparable(item, tolerant) for name, item in value.items()}
    return [_comparable(item, tolerant) for item in value] if isinstance(value, list) else value


def _same_sorted(left: pa.Table, right: pa.Table) -> bool:
    """A fast answer for the common case: equal after sorting by flat columns."""
    if any(pa.types.is_nested(f.type) and not pa.types.is_struct(f.type) for f in left.schema):
        return False
    left, right = left.flatten(), right.flatten()
    if left.num_columns == 0 or any(pa.types.is_nested(f.type) for f in left.schema):
        return False
    order = [(name, "ascending") for name in left.column_names]
    return bool(left.sort_by(order).equals(right.cast(left.schema).sort_by(order)))


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return [row for batch in table.to_batches() for row in dicts_of(batch)]


def _by_key(table: pa.Table, key: Sequence[str]) -> Rows:
    return {tuple(hashable(row[name]) for name in key): row for row in _rows(table)}


def _equal(mine: Any, theirs: Any, tolerant: bool) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        if math.isnan(mine) or math.isnan(theirs):
            return math.isnan(mine) and math.isnan(theirs)
        return math.isclose(mine, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE) if tolerant else mine == theirs
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_equal(mine[k], theirs[k], tolerant) for k in mine)
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(_equal(m, t, tolerant) for m, t in zip(mine, theirs, strict=True))
    return bool(mine == theirs)


def _within_tolerance(mine: Any, theirs: Any) -> bool:
    return _equal(mine, theirs, tolerant=True)


def _shown(mine: dict[str, Any] | None, theirs: dict[str, Any] | None, key: Sequence[str]) -> str:
    row = mine or theirs or {}
    return ", ".join(f"{name}={row.get(name)}" for name in key)


def _few(different: list[str]) -> list[str]:
    more = len(different) - _SHOWN
    return different if more <= 0 else [*different[:_SHOWN], f"and {more} more"]
