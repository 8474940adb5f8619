"""Cuts a function that Spark can fold only in part: the lowest aggregation becomes a hidden view, the rest reads it.

`top 3 of each minute` counts, ranks and filters. Spark folds the counting, event by event; ranks and filters change
rows that stood before, which no fold can take back. So the counting is a view of its own, `NAME.1`, that nobody
declared and nobody is shown, and what stands above it is computed again for the units that changed.

The same place of the plan is found again whenever the function is called: as a stream and as a batch, Spark analyses
it into trees of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.declaration import ViewDef
from penstock.flows import plan_tree

Path = tuple[int, ...]
"""Which child to take at each node, from the top of a plan."""
Parts = tuple[ViewDef, ViewDef]
Call = Callable[[Mapping[str, DataFrame]], DataFrame]


def is_hidden(name: str) -> bool:
    return "." in name


def shown_name(name: str) -> str:
    """The view that a hidden one is a part of; any other name is its own."""
    return name.partition(".")[0]


def cut(view: ViewDef, streamed: DataFrame, shapes: Mapping[str, DataFrame], call: Call) -> Parts | None:
    """The hidden view and what remains above it; None: there is not one aggregation that holds all that is read.

    `streamed` is the function's frame over streams, `shapes` are relations of the same columns, `call` calls it.
    """
    places = list(_lowest(plan_tree.analyzed(streamed), ()))
    if len(places) != 1 or not places[0]:
        return None
    path = places[0]
    if not _holds_all_streams(plan_tree.analyzed(streamed), path):
        return None
    spark = streamed.sparkSession
    columns, key = _columns(_lower(streamed, path))
    name = f"{view.name}.1"

    def lower(**frames: DataFrame) -> DataFrame:
        return _frame(spark, _lower(call(frames), path)).toDF(*columns)

    def upper(**frames: DataFrame) -> DataFrame:
        return _frame(spark, _above(spark, plan_tree.analyzed(call(shapes)), path, frames[name]))

    lower_view = replace(
        view, name=name, function=lower, key=key, where=None, order_by=(), limit=None, visible_where=None, max_lag=None
    )
    return lower_view, replace(view, function=upper, parameters=(name,))


def _lowest(plan: plan_tree.Plan, path: Path) -> list[Path]:
    """Aggregations of a stream with none below them."""
    children = enumerate(plan_tree.children(plan))
    below = [place for number, child in children for place in _lowest(child, (*path, number))]
    if below:
        return below
    return [path] if plan_tree.kind(plan) == "Aggregate" and plan.isStreaming() else []


def _holds_all_streams(plan: plan_tree.Plan, path: Path) -> bool:
    """Whether every stream is read below the place: what stands above has no rows of streams of its own."""
    for number in path:
        children = plan_tree.children(plan)
        if any(child.isStreaming() for at, child in enumerate(children) if at != number):
            return False
        plan = children[number]
    return True


def _at(plan: plan_tree.Plan, path: Path) -> plan_tree.Plan:
    for number in path:
        plan = plan_tree.children(plan)[number]
    return plan


def _lower(frame: DataFrame, path: Path) -> plan_tree.Plan:
    """The aggregation with all that it groups by among its columns."""
    aggregate = _at(plan_tree.analyzed(frame), path)
    given = list(plan_tree.items(aggregate.aggregateExpressions()))
    jvm: Any = frame.sparkSession._jvm
    for number, group in enumerate(plan_tree.items(aggregate.groupingExpressions())):
        if not any(_is_group(column, group) for column in given):
            given.append(_alias(jvm, group, f"_group{number}"))
    seq = jvm.PythonUtils.toSeq
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


def _above(spark: SparkSession, plan: plan_tree.Plan, path: Path, hidden: DataFrame) -> plan_tree.Plan:
    """The plan with the hidden view in the place of its aggregation, under the names and numbers that stood there."""
    if path:
        children = list(plan_tree.children(plan))
        children[path[0]] = _above(spark, children[path[0]], path[1:], hidden)
        jvm: Any = spark._jvm
        return plan.withNewChildren(jvm.PythonUtils.toSeq(children))
    jvm = spark._jvm
    below = plan_tree.analyzed(hidden)
    columns = zip(plan_tree.items(plan.output()), plan_tree.items(below.output()), strict=False)
    named = [_alias(jvm, have, want.name(), want.exprId()) for want, have in columns]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(named), below)


def _alias(jvm: Any, expression: Any, name: str, number: Any = None) -> Any:
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    number = number or expressions.NamedExpression.newExprId()
    nothing = jvm.PythonUtils.toSeq([])
    return expressions.Alias(expression, name, number, nothing, jvm.scala.Option.empty(), nothing)


def _frame(spark: SparkSession, plan: plan_tree.Plan) -> DataFrame:
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)
