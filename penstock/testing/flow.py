"""Runs one view or flow of an app as a batch over given events, so that a user's function can have a unit test.

No log, no checkpoint and no server take part, and nothing is late or too old to keep: what the function computes is
tested here, the rest is Penstock's own to test. What stands behind flows is computed through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import schema
from penstock.app import App
from penstock.change import DELETE, OP, UPSERT, Column
from penstock.collect.judging.event_columns import SystemColumns
from penstock.collect.judging.incoming_events import ArrivedEvents
from penstock.config import Folder
from penstock.declaration import Application, FlowDef, Node, StreamDef, ViewDef
from penstock.errors import UnknownStreamError, UnknownViewError
from penstock.flows import plan_tree
from penstock.flows.plan import Planned, Planner
from penstock.flows.plan_tree import in_commit_order
from penstock.flows.session import open_session
from penstock.flows.sink import flow_events, one_row_per_key
from penstock.views.read_query import evaluate, parse_query
from penstock.views.unpack import dicts_of, ops_of

Rows = list[dict[str, Any]]


def rows(app: App, name: str, /, **events: Sequence[Any]) -> Rows:
    """What a view or flow of the app gives for these events, as a list of dicts.

    `events` are lists of event instances by the name of their stream; a stream that is left out is empty. A view's
    rows pass its `where=` and come in the order of its `order_by=`, then of its key, without its `limit=`; a flow's
    rows come as its function gives them. Times are aware datetimes in UTC, a window is `{"start", "end"}`.

    The first call in a process starts Spark, and later ones use the same session.
    """
    application = app.declared()
    node = application.view(name) or application.flow(name)
    if node is None:
        names = ", ".join(n.name for n in application.nodes)
        raise UnknownViewError(f"the app has no view or flow '{name}'", hint=f"it has: {names}")
    _refuse_strangers(application, node, events)
    return _Trial(application, events).rows(node)


def _refuse_strangers(application: Application, node: Node, events: Mapping[str, Sequence[Any]]) -> None:
    roots = application.roots(node.name)
    for name in events:
        if name not in roots:
            raise UnknownStreamError(
                f"'{node.name}' does not read a stream '{name}'", hint=f"it reads: {', '.join(sorted(roots))}"
            )


class _Trial:
    """One app over one set of events."""

    def __init__(self, application: Application, events: Mapping[str, Sequence[Any]]) -> None:
        self.application = application
        self.events = events
        self.planner = Planner(open_session(application.name), application, Folder(Path()))

    def rows(self, node: Node) -> Rows:
        frame = self._call(node)
        made = _planned(node, frame)
        if isinstance(node, ViewDef):
            return _view_rows(node, made, frame)
        return [row for batch in frame.toArrow().to_batches() for row in dicts_of(batch)]

    def _call(self, node: Node) -> DataFrame:
        return self.planner.call(node, {name: self._input(name) for name in node.inputs})

    def _input(self, name: str) -> DataFrame:
        stream = self.application.stream(name)
        if stream is not None:
            return self._frame(name, stored_batch(stream, self.events.get(name, ())), unique=bool(stream.id))
        flow = self.application.flow(name)
        assert isinstance(flow, FlowDef)
        frame = self._call(flow)
        return self._frame(name, flow_events(frame.toArrow(), _planned(flow, frame), 0), unique=False)

    def _frame(self, name: str, stored: pa.RecordBatch, *, unique: bool) -> DataFrame:
        """Stored events as a flow sees them: all in partition 0, in the order in which they were given."""
        offsets = pa.array(range(stored.num_rows), pa.int64())
        columns = dict(zip(stored.schema.names, stored.columns, strict=True))
        if not unique:
            columns[schema.ID] = pc.binary_join_element_wise(name, "0", offsets.cast(pa.string()), "/")
        columns[schema.PARTITION] = pa.repeat(pa.scalar(0, pa.int32()), stored.num_rows)
        columns[schema.OFFSET] = offsets
        target = schema.read_schema(stored.schema)
        table = pa.table([columns[field.name] for field in target], schema=target)
        return self.planner.spark.createDataFrame(table, from_arrow_schema(target))


def stored_batch(stream: StreamDef, events: Sequence[Any]) -> pa.RecordBatch:
    """Events as the door would store them, taken once by id, and received at the time at which they happened."""
    for event in events:
        if not isinstance(event, stream.events.kind):
            wanted, found = stream.events.kind.__name__, type(event).__name__
            raise TypeError(f"events of the stream '{stream.name}' are instances of {wanted}, not of {found}")
    columns = stream.events.columns(events)
    unknown = [pa.nulls(len(events), pa.string())] if stream.unknown == "keep" else []
    arrived = ArrivedEvents(events, [0] * len(events))
    *sent, time, _, id, key = SystemColumns(stream).build([*columns, *unknown], arrived).columns
    batch = pa.RecordBatch.from_arrays([*columns, *unknown, *sent, time, time, id, key], schema=stream.stored)
    known: set[str] = set()
    first = [text is None or not (text in known or known.add(text)) for text in id.to_pylist()]  # type: ignore[func-returns-value]
    return batch.filter(pa.array(first, pa.bool_()))


def _planned(node: Node, frame: DataFrame) -> Planned:
    """What the sink must know of a function; nothing here is checked, proved or stored."""
    kinds = {plan_tree.kind(part) for part in plan_tree.nodes(plan_tree.analyzed(frame))}
    return Planned(
        node=node,
        inputs={},
        mode="append",
        event_time=False,
        drops_late=False,
        needed=(),
        frame_schema=frame.schema,
        ordered=in_commit_order(frame),
        aggregates="Aggregate" in kinds,
        proof="unverifiable",
        proof_reasons=(),
        fingerprint="",
    )


def _view_rows(view: ViewDef, made: Planned, frame: DataFrame) -> Rows:
    op = F.when(F.expr(view.where), UPSERT).otherwise(DELETE) if view.where else F.lit(UPSERT)
    table = one_row_per_key(frame.withColumn(OP, op.cast("byte")).toArrow(), made)
    names = list(made.arrow.names)
    content = {key: row for b in table.to_batches() for key, row in ops_of(b, names, view.key).items()}
    columns = [Column(field.name, schema.simple_type(field.type)) for field in made.arrow]
    query = parse_query(columns, view.key, order_by=view.order_by, limit=None)
    there = {key: row for key, row in content.items() if row is not None}
    return [dict(zip(names, row, strict=True)) for row in evaluate(query, there)]
