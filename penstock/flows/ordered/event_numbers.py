"""Numbers the events of each key: the script of the hidden flow below `numbered`, and how a function is cut there.

A batch is numbered by arrays, without a loop over its events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import schema as columns_
from penstock.declaration import FlowDef, Node, OrderedDef
from penstock.errors import DeclarationError, PlanError
from penstock.flows.ordered.fold import SEQUENCE, BatchGround, Folded, FoldSpec
from penstock.flows.regroup.cells import values_of
from penstock.ordinals import NTH, with_numbers
from penstock.stateful import SEEN, TIMERS, Script
from penstock.view_query import ViewQuery


class _State(msgspec.Struct, kw_only=True):
    n: int = 0


class NumberScript:
    """Each event once more, with its number. It folds whole tables."""

    State = _State
    Output = None
    version = 1

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        """Of its events; known when it is planned."""

    def bound(self, schema: pa.Schema) -> NumberScript:
        return NumberScript(schema)

    def meaning(self) -> str:
        return "numbered"

    @property
    def fields(self) -> list[pa.Field]:
        """What it emits."""
        assert self.schema is not None
        own = [f.remove_metadata() for f in self.schema if not f.name.startswith("_")]
        return [*own, pa.field(NTH, pa.int64())]

    def fold_table(
        self, spec: FoldSpec, ground: BatchGround, events: Mapping[str, pa.Table], states: pa.Table
    ) -> Folded:
        (table,) = events.values()
        table = table.sort_by(SEQUENCE)
        keys = values_of([table.column(name).combine_chunks() for name in spec.key])
        known = dict(
            zip(
                values_of([states.column(name).combine_chunks() for name in spec.key]),
                states.column("n").to_pylist(),
                strict=True,
            )
        )
        distinct = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        of = np.fromiter((distinct[key] for key in keys), np.int64, len(keys))
        starts = np.fromiter((known.get(key, 0) for key in distinct), np.int64, len(distinct))
        order = np.argsort(of, kind="stable")
        counts = np.bincount(of, minlength=len(distinct))
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else counts
        nth = np.empty(len(keys), np.int64)
        nth[order] = np.arange(len(keys)) - np.repeat(firsts, counts) + np.repeat(starts, counts)
        rows = table.append_column(NTH, pa.array(nth, pa.int64())).select(spec.rows_schema.names)
        heads = np.zeros(len(distinct), np.int64)
        heads[of[::-1]] = np.arange(len(keys))[::-1]
        changed = table.select(spec.key).take(pa.array(heads, pa.int64()))
        pending = pa.array([[]] * len(distinct), spec.state_schema.field(TIMERS).type)
        total = pa.array(starts + counts, pa.int64())
        columns = {**{n: changed.column(n) for n in spec.key}, "n": total, TIMERS: pending}
        columns[SEEN] = pa.nulls(len(distinct), columns_.TIMESTAMP)
        made = pa.Table.from_arrays([columns[n] for n in spec.state_schema.names], schema=spec.state_schema)
        return Folded(rows.cast(spec.rows_schema), made, [], [], [(0, 1, n, b"", 0) for n in range(len(keys))])


def cut_numbers(node: Node, shape: Callable[[str], DataFrame]) -> tuple[Node, list[FlowDef]]:
    """A node whose function numbers inputs, over hidden flows in place of these, and the flows; else the node itself.
    `shape` gives a frame with the columns of an input."""
    if not _may_number(node):
        return node, []
    found: dict[str, tuple[str, ...]] = {}
    try:
        given = {name: _probed(name, shape(name), found) for name in node.inputs}
        node.function(**{name: given.get(name) for name in node.parameters})
    except Exception as error:
        said = str(error).strip().split("\n")[0]
        raise PlanError(f"{node.place}: '{node.name}' raised {type(error).__name__}: {said}") from error
    return numbered_parts(node, found) if found else (node, [])


def _probed(name: str, frame: DataFrame, found: dict[str, tuple[str, ...]]) -> DataFrame:
    """A shape that notes by what it is numbered."""

    def number(by: tuple[str, ...]) -> DataFrame:
        strange = next((column for column in by if column not in frame.columns), None)
        if strange is not None:
            raise DeclarationError(f"'{name}' has no column '{strange}' to number it by")
        if found.setdefault(name, by) != by:
            raise DeclarationError(f"'{name}' is numbered by {found[name]} and by {by}", hint="number it once")
        return frame.withColumn(NTH, F.lit(0).cast("bigint"))

    return with_numbers(frame.select("*"), number)


def _may_number(node: Node) -> bool:
    """Whether a function may call `numbered`: only then it is called once more to see."""
    code = getattr(node.function, "__code__", None)
    return not isinstance(node.function, ViewQuery) and code is not None and "numbered" in code.co_names


def numbered_parts(node: Node, by: Mapping[str, tuple[str, ...]]) -> tuple[Node, list[FlowDef]]:
    """The node over hidden flows in place of the inputs that it numbers, and these flows."""
    hidden = {name: f"{node.name}.{at}" for at, name in enumerate(by, 1)}
    flows = [_flow(node, hidden[name], name, columns) for name, columns in by.items()]
    names = tuple(hidden.get(name, name) for name in node.parameters)
    function: Callable[..., Any] = node.function

    @wraps(function)
    def over(**frames: Any) -> Any:
        given = {}
        for name in node.parameters:
            frame = frames[hidden.get(name, name)]
            given[name] = _with_own_numbers(frame) if name in hidden else frame
        return function(**given)

    return replace(node, parameters=names, function=over), flows


def _with_own_numbers(frame: DataFrame) -> DataFrame:
    return with_numbers(frame.drop(NTH), lambda by: frame)


def _flow(node: Node, name: str, reads: str, by: tuple[str, ...]) -> FlowDef:
    return FlowDef(
        name=name,
        function=node.function,
        parameters=(reads,),
        key=by,
        time=None,
        partitions=1,
        late_after_us=None,
        deterministic=False,
        place=node.place,
        doc=f"The events of {reads}, numbered.",
        ordered=OrderedDef(Script(NumberScript(), name), by, "log", None, f"{name}.state"),
    )
