"""Cuts a function that Spark can fold only in part: its lowest aggregations become hidden views, the rest reads them.

`top 3 of each minute` counts, ranks and filters. Spark folds the counting, event by event; ranks and filters change
rows that stood before, which no fold can take back. So the counting is a view of its own, `NAME.1`, that nobody
declared and nobody is shown, and what stands above it is computed again for the units that changed. A function with
two aggregations side by side has two, `NAME.1` and `NAME.2`; a count of distinct users is cut below the counting, at
the rows that differ.

The same place of the plan is found again whenever the function is called: as a stream and as a batch, Spark analyses
it into trees of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.declaration import ViewDef
from penstock.flows import plan_tree
from penstock.flows.regroup.units import Units
from penstock.flows.rules import WINDOW

Path = tuple[int, ...]
"""Which child to take at each node, from the top of a plan."""
Call = Callable[[Mapping[str, DataFrame]], DataFrame]


def is_hidden(name: str) -> bool:
    return "." in name


def shown_name(name: str) -> str:
    """The view that a hidden one is a part of; any other name is its own."""
    return name.partition(".")[0]


def cut(view: ViewDef, streamed: DataFrame, shapes: Mapping[str, DataFrame], call: Call) -> list[ViewDef] | None:
    """The hidden views and, last, what remains above them; None: there is no aggregation of a stream to cut at.

    `streamed` is the function's frame over streams, `shapes` are relations of all inputs' columns, `call` calls it.
    """
    plan = plan_tree.analyzed(streamed)
    cuts = [_cut_at(plan, place) for place in _lowest(plan, ())]
    if not cuts or not all(cut.path or cut.distinct for cut in cuts):
        return None
    shaped = plan_tree.analyzed(call(shapes))
    hidden: dict[str, list[_Cut]] = {}
    for same in _alike(cuts, plan):
        hidden[f"{view.name}.{len(hidden) + 1}"] = same
    lower = [_lower_view(view, name, cuts[0], streamed, shapes, call) for name, cuts in hidden.items()]
    return [*lower, _upper_view(view, hidden, shaped, shapes, call)]


def keeps_alone(hidden: str, columns: pa.Schema, units: Units | None) -> bool:
    """Whether rows of a hidden view may go with `keep=`: what is above them is computed window by window. A running
    total over windows needs those that have gone."""
    windows = [f.name for f in columns if pa.types.is_struct(f.type) and "end" in [part.name for part in f.type]]
    if units is None:
        return True
    homes = [units.homes.get(leaf.number, ()) for leaf in units.leaves if leaf.input == hidden]
    return all(any(name in home for name in windows) for home in homes)


@dataclass(frozen=True)
class _Cut:
    """The place of an aggregation that a hidden view replaces."""

    path: Path
    distinct: bool = False
    """It is one of distinct values, which Spark cannot fold: it stays, and the hidden view replaces what it reads by
    the rows that differ in what it uses."""


def _cut_at(plan: plan_tree.Plan, place: Path) -> _Cut:
    functions = [e for e in plan_tree.expressions(_at(plan, place)) if plan_tree.kind(e) == "AggregateExpression"]
    repeats = all(e.isDistinct() or plan_tree.kind(e.aggregateFunction()) in _SETS for e in functions)
    return _Cut(place, distinct=repeats and any(e.isDistinct() for e in functions))


_SETS = ("Max", "Min", "CollectSet", "BoolAnd", "BoolOr", "HyperLogLogPlusPlus")
"""Aggregates to which it makes no difference how often a row is there."""


def _alike(cuts: Sequence[_Cut], plan: plan_tree.Plan) -> list[list[_Cut]]:
    """Places that hold the same query, such as what WITH names and two parts read, share one hidden view."""
    groups: list[list[_Cut]] = []
    for cut in cuts:
        same = (g for g in groups if g[0].distinct == cut.distinct and _same(plan, g[0].path, cut.path))
        group = next(same, None)
        if group is None:
            groups.append([cut])
        else:
            group.append(cut)
    return groups


def _same(plan: plan_tree.Plan, one: Path, other: Path) -> bool:
    return bool(_at(plan, one).sameResult(_at(plan, other)))


def _lower_view(
    view: ViewDef, name: str, cut: _Cut, streamed: DataFrame, shapes: Mapping[str, DataFrame], call: Call
) -> ViewDef:
    spark = streamed.sparkSession
    example = _lower(streamed, cut)
    columns, key = _columns(example)
    read = _read(_at(plan_tree.analyzed(call(shapes)), cut.path), shapes)

    @wraps(view.function)
    def lower(**frames: DataFrame) -> DataFrame:
        return plan_tree.frame(spark, _lower(call({**shapes, **frames}), cut)).toDF(*columns)

    timed = any(column.dataType().simpleString() == WINDOW for column in plan_tree.items(example.output()))
    return replace(
        view,
        name=name,
        function=lower,
        parameters=tuple(p for p in view.parameters if p in read),
        key=key,
        where=None,
        order_by=(),
        limit=None,
        keep_us=view.keep_us if timed else None,
        visible_where=None,
        max_lag=None,
    )


def _upper_view(
    view: ViewDef,
    hidden: Mapping[str, Sequence[_Cut]],
    shaped: plan_tree.Plan,
    shapes: Mapping[str, DataFrame],
    call: Call,
) -> ViewDef:
    """What stands above the cuts. It may read inputs of its own: tables and views, and streams where it can."""
    places = {cut: name for name, cuts in hidden.items() for cut in cuts}
    read = _read(shaped, shapes, {cut.path for cut in places})

    @wraps(view.function)
    def upper(**frames: DataFrame) -> DataFrame:
        spark = next(iter(frames.values())).sparkSession
        plan = plan_tree.analyzed(call({**shapes, **{name: frames[name] for name in read}}))
        return plan_tree.frame(spark, _above(spark, plan, (), {cut: frames[name] for cut, name in places.items()}))

    return replace(view, function=upper, parameters=(*hidden, *(p for p in view.parameters if p in read)))


def _lowest(plan: plan_tree.Plan, path: Path) -> list[Path]:
    """Aggregations of a stream with none below them."""
    children = enumerate(plan_tree.children(plan))
    below = [place for number, child in children for place in _lowest(child, (*path, number))]
    if below:
        return below
    return [path] if plan_tree.kind(plan) == "Aggregate" and plan.isStreaming() else []


def _read(plan: plan_tree.Plan, shapes: Mapping[str, DataFrame], places: Collection[Path] = ()) -> set[str]:
    """The inputs that a plan over shapes reads, in its subqueries too, but not below these places of it."""
    relations = {plan_tree.analyzed(shape).rdd().id(): name for name, shape in shapes.items()}
    inputs: set[str] = set()
    waiting: list[tuple[Path | None, plan_tree.Plan]] = [((), plan)]
    while waiting:
        path, node = waiting.pop()
        if path in places:
            continue
        if plan_tree.kind(node) == "LogicalRDD" and node.rdd().id() in relations:
            inputs.add(relations[node.rdd().id()])
        for number, child in enumerate(plan_tree.children(node)):
            waiting.append((None if path is None else (*path, number), child))
        waiting += [(None, subquery) for subquery in plan_tree.subqueries(node)]
    return inputs


def _at(plan: plan_tree.Plan, path: Path) -> plan_tree.Plan:
    for number in path:
        plan = plan_tree.children(plan)[number]
    return plan


def _lower(frame: DataFrame, cut: _Cut) -> plan_tree.Plan:
    """The aggregation with all that it groups by among its columns; of distinct values, the rows that differ in what
    it uses."""
    jvm: Any = frame.sparkSession._jvm
    seq = jvm.PythonUtils.toSeq
    aggregate = _at(plan_tree.analyzed(frame), cut.path)
    if cut.distinct:
        used = seq(list(plan_tree.items(aggregate.references())))
        return aggregate.copy(used, used, aggregate.child(), aggregate.hint())
    given = list(plan_tree.items(aggregate.aggregateExpressions()))
    for number, group in enumerate(plan_tree.items(aggregate.groupingExpressions())):
        if not any(_is_group(column, group) for column in given):
            given.append(plan_tree.alias(jvm, group, f"_group{number}"))
    return aggregate.copy(aggregate.groupingExpressions(), seq(given), aggregate.child(), aggregate.hint())


def _is_group(column: Any, group: Any) -> bool:
    """Whether a column of an aggregation is one that it groups by."""
    value = column.child() if plan_tree.kind(column) == "Alias" else column
    return bool(value.semanticEquals(group))


def _columns(aggregate: plan_tree.Plan) -> tuple[list[str], tuple[str, ...]]:
    """Names by place, since a function may give two columns one name; and which of them tell the groups apart."""
    groups = list(plan_tree.items(aggregate.groupingExpressions()))
    names = [f"c{number}" for number, _ in enumerate(plan_tree.items(aggregate.aggregateExpressions()))]
    columns = list(plan_tree.items(aggregate.aggregateExpressions()))
    key = [next(n for n, c in zip(names, columns, strict=True) if _is_group(c, group)) for group in groups]
    return names, tuple(dict.fromkeys(key))


def _above(spark: SparkSession, plan: plan_tree.Plan, path: Path, hidden: Mapping[_Cut, DataFrame]) -> plan_tree.Plan:
    """The plan with hidden views in their places, under the names and numbers that stood there."""
    jvm: Any = spark._jvm
    seq = jvm.PythonUtils.toSeq
    cut = next((cut for cut in hidden if cut.path == path), None)
    if cut is not None:
        below = plan_tree.analyzed(hidden[cut])
        wanted = plan.references() if cut.distinct else plan.output()
        columns = zip(plan_tree.items(wanted), plan_tree.items(below.output()), strict=False)
        named = [plan_tree.alias(jvm, have, want.name(), want.exprId()) for want, have in columns]
        below = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(seq(named), below)
        return plan.withNewChildren(seq([below])) if cut.distinct else below
    if not any(cut.path[: len(path)] == path for cut in hidden):
        return plan
    children = enumerate(plan_tree.children(plan))
    return plan.withNewChildren(seq([_above(spark, child, (*path, number), hidden) for number, child in children]))
