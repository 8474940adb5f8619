"""From declarations to Spark plans: the user's function called on the log, as a stream and as a batch.

A function is called several times (to check it, to see which columns it needs, to run it, to verify it), so it must
be pure. Its batch twin, over a range of offsets, is what makes a number provable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock import schema as columns_
from penstock import spark_master
from penstock.change import Column
from penstock.config import Folder
from penstock.declaration import Application, FlowDef, How, Node, Place, Problem, ViewDef
from penstock.errors import PlanError
from penstock.flows import plan_tree, proof, rules
from penstock.flows.final_rows import IS_FINAL
from penstock.flows.fingerprint import fingerprint
from penstock.flows.ordered.event_numbers import cut_numbers
from penstock.flows.ordered.fold import FoldSpec
from penstock.flows.ordered.ordered_plan import is_kept_by_a_flow, ordered_plan
from penstock.flows.regroup.first_rows import find_first_rows
from penstock.flows.regroup.hidden_views import cut, keeps_alone, shown_name
from penstock.flows.regroup.sums import is_addable
from penstock.flows.regroup.table_versions import attached, input_of, used_shapes, versions_name, versions_schema
from penstock.flows.regroup.time_bounds import bound_us, has_one_event_a_unit
from penstock.flows.regroup.units import Units, find_hidden_units, find_units, relation
from penstock.flows.regroup.units import whole as whole_unit
from penstock.flows.session import ship
from penstock.flows.source import FORMAT, Feed, LogSource, Skips
from penstock.flows.watermark import delay_us, followed, watermarked, whole
from penstock.joins import VERSION
from penstock.log.builds import Proof
from penstock.log.log import Stream
from penstock.view_query import ViewQuery

_CALLED = "the function is called with DataFrames of its inputs and must return a DataFrame"
_SQL = "the query is Spark's SQL over the columns of what it reads"
_PART_OF = "not allowed in subquery"
_PART = "make what the subquery reads a view of its own, and name that view in it"
_RAN = "writeStream"
_RUNS = "it builds a plan and runs nothing: take out what counts, collects, shows or writes"

_WAIT_S = 0.1
"""How long an idle query waits for events before Spark asks again: stopping takes as long at most."""

Ranges = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Start and end offsets per input."""


@dataclass(frozen=True)
class Input:
    """One stream that a node reads, before anything is known of the node's plan."""

    name: str
    place: str
    """Of the log that holds it."""
    derived: bool
    """A flow makes it."""
    schema: pa.Schema
    late_after_us: int | None
    partitions: int
    unique: bool
    changes: bool = False
    """Its rows do: it is a view or a table."""
    closes_after_us: int | None = None
    """Where a view has `correct=`: what the stream's own `late_after` says, which then leaves out nothing."""
    handed_on: bool = False
    """It is as complete as what its flow has read."""


@dataclass(frozen=True)
class Planned:
    """All that is known of a flow or view before it runs."""

    node: Node
    inputs: dict[str, Input]
    mode: rules.Mode
    event_time: bool
    """It holds state that event time evicts."""
    drops_late: bool
    """It, or something downstream of it, does: so it reads only what is not late."""
    needed: tuple[str, ...]
    frame_schema: StructType
    ordered: bool
    """Rows come in commit order, so that of two rows of one key the last one wins."""
    aggregates: bool
    proof: Proof
    proof_reasons: tuple[str, ...]
    fingerprint: str
    how: How = "folded"
    units: Units | None = None
    """How a view that is not folded is computed, unit by unit."""
    bound_us: int | None = None
    """How far apart events lie at most that it joins, where that and not `within=` says how long they are held."""
    fold: FoldSpec | None = None
    """How an ordered flow folds."""
    reach_us: int | None = None
    """How far behind the newest event something may wait for time; None: nothing does, or in another time."""
    windows: int = 1
    """Into how many windows Spark puts each event."""
    hands_on: bool = False
    """A flow whose rows keep the `_time` of what they are made from, and come in the same batch: its stream is as
    complete as what it has read, and no row is late a second time."""

    @property
    def arrow(self) -> pa.Schema:
        """The function's output columns. A delete has no more than the key, so that any other column may be null."""
        return plain_columns(self.frame_schema)

    @property
    def late_after(self) -> dict[str, int | None]:
        return {name: i.late_after_us if self.drops_late else None for name, i in self.inputs.items()}


class Planner:
    """Calls users' functions on feeds."""

    def __init__(self, spark: SparkSession, application: Application, folder: Folder) -> None:
        self.spark = spark
        self.application = application
        self.folder = folder
        self._shapes: dict[tuple[str, tuple[str, ...], bool], DataFrame] = {}
        self._tasks = max(2, spark.sparkContext.defaultParallelism) if spark_master.cluster() else 2
        ship(application)
        spark.dataSource.register(LogSource)

    # What is known before running

    def plan_all(self) -> tuple[dict[str, Planned], list[Problem]]:
        """Every flow and view, planned in order; nodes with problems, and what reads them, are left out."""
        planned: dict[str, Planned] = {}
        problems: list[Problem] = []
        for node in self.application.ordered():
            outside = {entry.name for entry in self.application.entries}
            if any(i not in planned and i not in outside for i in node.inputs):
                continue
            try:
                node, below = cut_numbers(node, partial(self._shape, planned))
                planned |= {part.name: made for part in below if (made := self._plan(part, planned)[0])}
                made, found = self._plan(node, planned)
            except PlanError as error:
                place = user_line(node, error.__cause__ or error)
                problems.append(
                    Problem("error", error.code, error.message.removeprefix(f"{place}: "), place, error.hint)
                )
                continue
            cuttable = made is None and isinstance(node, ViewDef) and node.how != "folded" and _folds(found)
            cuttable = cuttable and getattr(node, "correct_us", None) is None and not getattr(node, "final", False)
            parts = self._parts(node, planned) if cuttable and isinstance(node, ViewDef) else None
            if parts is not None:
                planned |= {part.node.name: part for part in parts}
                continue
            if cuttable and isinstance(node, ViewDef) and all(p.code != "needs_within" for p in found):
                made, more = self._looking_back(node, planned)
                found = [] if made is not None else [*found, *more]
            problems += found
            if made is not None and isinstance(node, ViewDef) and node.how not in (None, made.how):
                problems.append(rules.other_way(node, made.how))
            elif made is not None:
                planned[node.name] = made
        return self._with_lateness(planned), problems

    def _plan(self, node: Node, planned: Mapping[str, Planned]) -> tuple[Planned | None, list[Problem]]:
        if is_kept_by_a_flow(node):
            facts, problems = ordered_plan(node, planned, lambda name: self._held_input(name, planned))
            return Planned(**facts) if facts is not None else None, problems
        changing = any(self._changes(name, planned) for name in node.inputs)
        if isinstance(node, ViewDef) and node.correct_us is not None and (changing or node.within_us is not None):
            return None, [rules.no_correction(node, "it is not folded by Spark")]
        if isinstance(node, ViewDef) and node.final and (changing or node.within_us is not None):
            return None, [rules.not_final(node, "it is not folded by Spark")]
        if isinstance(node, ViewDef) and (changing or node.within_us is not None):
            return self._plan_regrouped(node, planned)
        if isinstance(node, ViewDef) and node.how == "regrouped" and self._bound_us(node, planned) is not None:
            return self._plan_regrouped(node, planned)
        inputs = {name: _corrected(node, self.input(name, planned)) for name in node.inputs}
        frame = self.call(node, {name: self._watermarked(i) for name, i in inputs.items()})
        delays = {delay_us(i.late_after_us) for i in inputs.values() if i.late_after_us is not None}
        mode, said = rules.output_mode(self.spark, node, frame)
        problems = [*rules.column_problems(node, frame), *rules.refused(node, frame, delays, mode)]
        if mode is None and not problems:
            problems.append(rules.unsupported(node, said))
        if isinstance(node, ViewDef) and node.where is not None:
            problems += self._where_problems(node, frame)
        if isinstance(node, ViewDef) and node.correct_us is not None and not problems:
            problems += rules.correct_problems(node, inputs, frame)
        if isinstance(node, ViewDef) and node.final and not problems:
            problems += rules.final_problems(node, inputs, frame)
        if mode is None or problems:
            return None, problems
        return self._described(node, inputs, frame, mode, planned), problems

    def _looking_back(self, node: ViewDef, planned: Mapping[str, Planned]) -> tuple[Planned | None, list[Problem]]:
        """A view that Spark cannot fold, computed from events that are held; or, if that is all that it lacks, that it
        must say how long."""
        try:
            made, problems = self._plan_regrouped(node, planned)
        except PlanError:
            return None, []
        return made, problems if [problem.code for problem in problems] == ["needs_within"] else []

    def _bound_us(self, node: ViewDef, planned: Mapping[str, Planned]) -> int | None:
        """How far apart events lie at most that a view of streams joins; None: nothing says it, or how late one may
        be."""
        streams = [self.application.stream(name) for name in node.inputs]
        if not all(stream is not None and stream.late_after_us is not None for stream in streams):
            return None
        inputs = {name: self.input(name, planned) for name in node.inputs}
        return bound_us(self.call(node, {name: self._watermarked(i) for name, i in inputs.items()}))

    def _parts(self, node: ViewDef, planned: Mapping[str, Planned]) -> list[Planned] | None:
        """A view that cannot be folded as a whole, as hidden views that can and the rest above them; None: it has no
        such parts."""
        inputs = {name: self.input(name, planned) for name in node.inputs if not self._changes(name, planned)}
        changing = self._shapes_of(node, planned)
        try:
            streamed = self.call(node, {**changing, **{name: self._watermarked(i) for name, i in inputs.items()}})
        except PlanError:  # it joins versions of a table, which hidden views do not have
            return None
        shapes = {name: relation(self.spark, from_arrow_schema(i.schema)) for name, i in inputs.items()}
        parts = cut(node, streamed, {**changing, **shapes}, lambda frames: self.call(node, frames))
        made: dict[str, Planned] = {}
        for part in parts or ():
            one, problems = self._plan(part, {**planned, **made})
            if one is None or problems:
                return None
            made[part.name] = one
        for part in (parts or ())[:-1]:
            if part.keep_us is not None and not keeps_alone(part.name, made[part.name].arrow, made[node.name].units):
                one, _ = self._plan(replace(part, keep_us=None), planned)
                assert one is not None
                made[part.name] = one
        return list(made.values()) or None

    def _described(
        self,
        node: Node,
        inputs: dict[str, Input],
        frame: DataFrame,
        mode: rules.Mode,
        planned: Mapping[str, Planned],
    ) -> Planned:
        batch = self.call(node, {name: self._empty(i) for name, i in inputs.items()})
        needed = plan_tree.needed_columns(batch)
        kinds = plan_tree.kinds(plan_tree.analyzed(frame))
        empty = {name: self._empty(i) for name, i in inputs.items()}
        again = partial(self.call, node, empty) if isinstance(node, ViewDef) else None
        grade, reasons = proof.proof_of(node, frame, again=again)
        types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
        if mode == "append" and "Aggregate" in kinds and rules.window_column(types) is None:
            grade, reasons = "unverifiable", (*reasons, "windows that close, without a column that says which")
        made = Planned(
            node=node,
            inputs=inputs,
            mode=mode,
            event_time=plan_tree.event_time_state(plan_tree.analyzed(frame)),
            drops_late=False,
            needed=tuple(sorted(needed)),
            frame_schema=frame.schema,
            ordered=plan_tree.in_commit_order(frame),
            aggregates="Aggregate" in kinds,
            proof=grade,
            proof_reasons=reasons,
            fingerprint="",
        )
        made = dataclasses.replace(made, hands_on=_hands_on(made, kinds), reach_us=_reach_us(made, frame))
        made = dataclasses.replace(made, windows=plan_tree.windows_per_event(plan_tree.analyzed(frame)))
        return dataclasses.replace(made, fingerprint=self._fingerprint(made, batch, kinds, planned))

    def _plan_regrouped(self, node: ViewDef, planned: Mapping[str, Planned]) -> tuple[Planned | None, list[Problem]]:
        """A view over rows that change: it is computed unit by unit, as a batch query."""
        inputs = {name: self._held_input(name, planned) for name in node.inputs}
        streams = [name for name, source in inputs.items() if not source.changes]
        shapes = {name: relation(self.spark, self._columns(i, planned)) for name, i in inputs.items()}
        shapes |= self._version_shapes(inputs)
        frame = self.call(node, self.with_versions(inputs, shapes))
        shapes = used_shapes(frame, shapes)
        problems = [*rules.column_problems(node, frame)]
        if node.where is not None:
            problems += self._where_problems(node, frame)
        problems += rules.repeatable_problems(node, frame)
        bound = self._bound_us(node, planned) if streams and node.within_us is None else None
        if streams and node.within_us is None and bound is None and not problems:
            problems.append(rules.needs_within(node, streams))
        if problems:
            return None, problems
        units = None if node.how == "whole" else find_units(frame, shapes, node.key)
        adds = node.how in (None, "added") and is_addable(frame, shapes, units)
        first = None if units is not None or adds else find_first_rows(frame, shapes)
        if units is None and first is None and not adds and node.how != "whole":
            units = find_hidden_units(frame, shapes)
        ids = {name: stream.id for name in streams if (stream := self.application.stream(name))}
        if bound is not None and (units is None or not has_one_event_a_unit(frame, shapes, units, ids)):
            return None, [rules.needs_within(node, streams)]
        keys = {plan_tree.analyzed(shape).rdd().id(): self._key(name, planned) for name, shape in shapes.items()}
        called = self.with_versions(inputs, shapes)
        grade, reasons = proof.proof_of(node, frame, keys, lambda: self.call(node, called))
        kinds = plan_tree.kinds(plan_tree.analyzed(frame))
        made = Planned(
            node=node,
            inputs=inputs,
            mode="update",
            event_time=bool(streams),
            drops_late=False,
            needed=(),
            frame_schema=frame.schema,
            ordered=False,
            aggregates=False,
            proof=grade,
            proof_reasons=reasons,
            fingerprint="",
            how="added" if adds else "regrouped" if units is not None else "whole",
            units=units or first or whole_unit(shapes),
            bound_us=bound,
        )
        batch = frame
        if streams:
            empty = {name: self._empty(inputs[name]) for name in streams}
            batch = self.call(node, self.with_versions(inputs, shapes | empty))
        needed = {name for source in made.inputs.values() if source.changes for name in source.schema.names}
        if streams:
            needed |= {*plan_tree.needed_columns(batch), columns_.TIME, columns_.PARTITION, columns_.OFFSET}
        made = dataclasses.replace(made, needed=tuple(sorted(needed)))
        return dataclasses.replace(made, fingerprint=self._fingerprint(made, batch, kinds, {})), []

    def _changes(self, name: str, planned: Mapping[str, Planned]) -> bool:
        """Whether an input has rows that change: a view or a table."""
        made = planned.get(name)
        return self.application.table(name) is not None or (made is not None and isinstance(made.node, ViewDef))

    def _shapes_of(self, node: ViewDef, planned: Mapping[str, Planned]) -> dict[str, DataFrame]:
        """Relations with the columns of those inputs whose rows change."""
        changing = [self._held_input(name, planned) for name in node.inputs if self._changes(name, planned)]
        return {source.name: relation(self.spark, self._columns(source, planned)) for source in changing}

    def _held_input(self, name: str, planned: Mapping[str, Planned]) -> Input:
        """What a regrouped view reads: a view, a table, or the events of a stream or flow."""
        if not self._changes(name, planned):
            return self.input(name, planned)
        table = self.application.table(name)
        if table is None:
            return Input(name, self.folder.flows_log, True, planned[name].arrow, None, 1, False, changes=True)
        schema = plain_columns(from_arrow_schema(table.events.arrow))
        return Input(name, self.folder.edge_log, False, schema, None, 1, False, changes=True)

    def _shape(self, planned: Mapping[str, Planned], name: str) -> DataFrame:
        return relation(self.spark, self._columns(self._held_input(name, planned), planned))

    def _columns(self, source: Input, planned: Mapping[str, Planned]) -> StructType:
        """What a function may name of an input."""
        if not source.changes:
            return from_arrow_schema(columns_.read_schema(source.schema))
        made = planned.get(source.name)
        return from_arrow_schema(source.schema) if made is None else made.frame_schema

    def _version_shapes(self, inputs: Mapping[str, Input]) -> dict[str, DataFrame]:
        """Relations with the columns of versions, for the tables that keep them."""
        keeping = [table.name for table in self.application.tables if table.versions_us is not None]
        schemas = {name: versions_schema(inputs[name].schema) for name in keeping if name in inputs}
        return {versions_name(n): relation(self.spark, from_arrow_schema(schema)) for n, schema in schemas.items()}

    def with_versions(self, inputs: Mapping[str, Input], frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Frames of a regrouped view's inputs as its function gets them: `as_of` finds the versions of tables."""
        schemas = {name: source.schema for name, source in inputs.items()}
        return attached(self.spark, self.application.tables, schemas, frames)

    def _key(self, name: str, planned: Mapping[str, Planned]) -> tuple[str, ...]:
        """What tells the rows of an input apart: of a stream, the place of each event."""
        if name != input_of(name):
            return (VERSION,)
        if not self._changes(name, planned):
            return (columns_.PARTITION, columns_.OFFSET)
        return (self.application.table(name) or planned[name].node).key

    def _fingerprint(
        self, made: Planned, batch: DataFrame, kinds: frozenset[str], planned: Mapping[str, Planned]
    ) -> str:
        """Columns that the flow does not need are no part of it: a new field elsewhere is no change."""
        node = made.node
        columns = {
            name: [f"{f.name} {f.type}" for f in source.schema if f.name in made.needed]
            for name, source in made.inputs.items()
        }
        facts = {
            "key": node.key,
            "where": getattr(node, "where", None),
            "keep": getattr(node, "keep_us", None),
            **({"within": node.within_us} if isinstance(node, ViewDef) and node.within_us is not None else {}),
            "time": getattr(node, "time", None),
            "partitions": getattr(node, "partitions", None),
            "mode": made.mode,
            "late_after": {name: i.late_after_us for name, i in made.inputs.items()},
            "columns": columns,
            "upstream": {name: planned[name].fingerprint for name in node.inputs if name in planned},
        }
        return fingerprint(self.spark, node, batch, facts, made.needed, kinds)

    def _with_lateness(self, planned: dict[str, Planned]) -> dict[str, Planned]:
        """Mark every node that has event-time state, or feeds something that has."""
        marked = {}
        for name, made in planned.items():
            reading = {n.name for n in self.application.downstream(name)}
            below = [other for other in planned.values() if shown_name(other.node.name) in reading]
            flows = isinstance(made.node, FlowDef) and made.how != "ordered"  # of a view's rows none is late
            drops = made.event_time or (flows and any(p.event_time for p in below))
            meant = hashlib.sha256(f"{made.fingerprint} {drops}".encode()).hexdigest()
            marked[name] = dataclasses.replace(made, drops_late=drops, fingerprint=meant)
        return marked

    def _where_problems(self, node: ViewDef, frame: DataFrame) -> list[Problem]:
        try:
            kind = frame.select(F.expr(node.where or "").alias("w")).schema["w"].dataType.simpleString()
        except Exception as error:
            said = str(error).split("\n")[0]
            return [
                Problem("error", "bad_where", f"where= of '{node.name}': {said}", node.place, "use SQL over columns")
            ]
        if kind == "boolean":
            return []
        text = f"where= of '{node.name}' gives {kind}"
        return [Problem("error", "bad_where", text, node.place, "it must be true or false for each row")]

    # Inputs

    def input(self, name: str, planned: Mapping[str, Planned]) -> Input:
        stream = self.application.stream(name)
        if stream is not None:
            place = self.folder.edge_log
            layout = (stream.stored, stream.late_after_us, stream.partitions, bool(stream.id))
            return Input(name, place, False, *layout, handed_on=stream.complete == "producers")
        made = planned[name]
        assert isinstance(made.node, FlowDef)
        place = self.folder.flows_log
        late_after_us, partitions = flow_late_after(made), made.node.partitions
        return Input(name, place, True, flow_schema(made), late_after_us, partitions, False, handed_on=made.hands_on)

    def _empty(self, source: Input, *, streaming: bool = False) -> DataFrame:
        """The shape of an input, with nothing in it: for looking at plans. Made once: Spark starts a process for it."""
        shape = (source.name, tuple(source.schema.names), streaming)
        if shape in self._shapes:
            return self._shapes[shape]
        stream = Stream(source.name, "-", source.partitions, source.unique, "events", (), source.schema, source.place)
        reader = self.spark.readStream if streaming else self.spark.read
        self._shapes[shape] = reader.format(FORMAT).options(**Feed(stream).options(self.folder.feeds)).load()
        return self._shapes[shape]

    def _watermarked(self, source: Input) -> DataFrame:
        return watermarked(self._empty(source, streaming=True), source.late_after_us)

    # Frames that run

    def feeds(self, made: Planned, streams: Mapping[str, Stream], skips: Mapping[str, Skips]) -> dict[str, Feed]:
        """How to read each input of a node: the real streams, with what its plan needs and leaves out."""
        return {
            name: Feed(
                stream=dataclasses.replace(streams[name], schema=source.schema),
                derived=source.derived,
                needed=made.needed,
                late_after_us=made.late_after[name],
                closes_after_us=source.closes_after_us,
                handed_on=source.handed_on,
                skips=skips.get(name, frozenset()),
                tasks=self._tasks,
            )
            for name, source in made.inputs.items()
            if name in streams and not source.changes
        }

    def stream_frame(self, made: Planned, feeds: Mapping[str, Feed], max_rows: int) -> DataFrame:
        frames = {}
        # Spark asks the sources of a query one after the other: the first would keep it from the second's events.
        wait_s = _WAIT_S if len(feeds) == 1 else 0.0
        for name, feed in feeds.items():
            marks = made.event_time and feed.late_after_us is not None
            feed = dataclasses.replace(feed, max_rows=max_rows, wait_s=wait_s, marks=marks, ticks=made.drops_late)
            frame = self.spark.readStream.format(FORMAT).options(**feed.options(self.folder.feeds)).load()
            frames[name] = whole(followed(frame) if marks else frame, feed)
        return self.call(made.node, frames)

    def batch_frame(self, made: Planned, feeds: Mapping[str, Feed], ranges: Ranges) -> DataFrame:
        return self.call(made.node, {name: self.batch_input(feed, ranges[name]) for name, feed in feeds.items()})

    def batch_input(self, feed: Feed, offsets: tuple[tuple[int, ...], tuple[int, ...]]) -> DataFrame:
        """The events of a stream between two ends."""
        options = feed.options(self.folder.feeds, *offsets)
        return whole(self.spark.read.format(FORMAT).options(**options).load(), feed)

    def call(self, node: Node, frames: Mapping[str, DataFrame]) -> DataFrame:
        """The user's function on these frames; what it raises comes back with the user's line."""
        arguments = {p: self.spark if p == "spark" else frames[p] for p in node.parameters}
        try:
            frame = node.function(**arguments)
        except Exception as error:
            if isinstance(node.function, ViewQuery):
                place, said = node.function.explained(error)
                raise PlanError(f"{place}: '{node.name}': {said}", hint=_PART if _PART_OF in said else _SQL) from error
            place = user_line(node, error)
            said = str(error).strip().split("\n")[0]
            raise PlanError(
                f"{place}: '{node.name}' raised {type(error).__name__}: {said}", hint=_RUNS if _RAN in said else _CALLED
            ) from error
        if not isinstance(frame, DataFrame):
            raise PlanError(f"{node.place}: '{node.name}' returned {type(frame).__name__}", hint="return a DataFrame")
        return frame.withColumn(IS_FINAL, F.lit(False)) if isinstance(node, ViewDef) and node.final else frame


def plain_columns(columns: StructType) -> pa.Schema:
    """As they are stored: each may be null, and nothing is said about any."""
    return pa.schema([c.remove_metadata().with_nullable(True) for c in to_arrow_schema(columns, timezone="UTC")])


def _folds(problems: Sequence[Problem]) -> bool:
    """Whether all that is wrong with a view is that Spark cannot fold it as a whole."""
    return bool(problems) and all(problem.code in rules.NOT_FOLDED for problem in problems)


def _corrected(node: Node, source: Input) -> Input:
    """An input of a view with `correct=`, whose fold goes on until that is over."""
    if not isinstance(node, ViewDef) or node.correct_us is None:
        return source
    return dataclasses.replace(source, late_after_us=node.correct_us, closes_after_us=source.late_after_us)


def user_line(node: Node, error: BaseException) -> Place:
    """The innermost line of the app file that an exception went through, else where the function begins; of SQL,
    what Spark says."""
    if isinstance(node.function, ViewQuery):
        return node.function.explained(error)[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == node.place.file]
    return Place(frames[-1].filename, frames[-1].lineno or node.place.line) if frames else node.place


def flow_schema(made: Planned) -> pa.Schema:
    """What a flow's stream stores: the columns of its function, then the system's."""
    own = [f for f in made.arrow if f.name not in _SYSTEM_NAMES]
    return columns_.stored_schema(own)


_SYSTEM_NAMES = {columns_.TIME, columns_.RECEIVED, columns_.ID, columns_.KEY, columns_.PARTITION, columns_.OFFSET}


def flow_time(made: Planned) -> str | None:
    """The column of a flow's rows that is their event time."""
    assert isinstance(made.node, FlowDef)
    if made.node.time is not None:
        return made.node.time
    return columns_.TIME if columns_.TIME in made.frame_schema.names else None


def flow_late_after(made: Planned) -> int | None:
    """A flow that hands `_time` on inherits the lateness of what it reads; any other is judged by its own word."""
    assert isinstance(made.node, FlowDef)
    if made.hands_on:
        return max(i.late_after_us or 0 for i in made.inputs.values())
    if made.node.late_after_us is None and flow_time(made) == columns_.TIME and len(made.inputs) == 1:
        return next(iter(made.inputs.values())).late_after_us
    return made.node.late_after_us


def _reach_us(made: Planned, frame: DataFrame) -> int | None:
    timed = all(source.late_after_us is not None for source in made.inputs.values())
    own = any(source.derived and not source.handed_on for source in made.inputs.values())
    return plan_tree.reach_us(plan_tree.analyzed(frame)) if made.event_time and timed and not own else None


def _hands_on(made: Planned, kinds: frozenset[str]) -> bool:
    """Rows of a join or an aggregation may come when time has passed them."""
    timed = all(source.late_after_us is not None for source in made.inputs.values())
    flow = isinstance(made.node, FlowDef) and flow_time(made) == columns_.TIME
    return (
        flow and timed and not kinds & {"Join", "Aggregate"} and not any(k.startswith("TransformWith") for k in kinds)
    )


def served_columns(planned: Mapping[str, Planned]) -> dict[str, list[Column]]:
    """What readers of each flow and view see."""
    schemas = {name: flow_schema(p) if isinstance(p.node, FlowDef) else p.arrow for name, p in planned.items()}
    return {
        name: [Column(field.name, columns_.simple_type(field.type)) for field in schema]
        for name, schema in schemas.items()
    }
