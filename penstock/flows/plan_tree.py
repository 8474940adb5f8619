"""Spark's own plan trees, walked from Python: what nodes and expressions a user's function is made of.

Every question goes to Java and back, and a flow's plan is looked at from a dozen sides. A tree never changes, so that
what was asked of a node is kept with the object that stands for it here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from py4j.java_gateway import get_field
from pyspark.sql import DataFrame, SparkSession

from penstock.flows.plan_nodes import node_kind
from penstock.flows.source import FORMAT

Plan = Any
"""A `LogicalPlan` of Catalyst, through py4j."""
Expression = Any
T = TypeVar("T")

_DELAY = "spark.watermarkDelayMs"
_WINDOW, _SESSION = "spark.timeWindow", "spark.sessionWindow"
_LONGS = re.compile(r"\b(\d+)L\b")
_DAY_US = 86_400_000_000
_MONTH_US = 31 * _DAY_US
_RELATIONS = ("StreamingRelationV2", "DataSourceV2Relation", "DataSourceV2ScanRelation")
"""Nodes that stand for a table of a data source: one of the log's streams, or another one."""
_ALWAYS_TIMED = (
    "DeduplicateWithinWatermark", "FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark",
    "TransformWithStateInPandas",
)  # fmt: skip
_SPARK = "org.apache.spark."
_CLOSED = ("AttributeReference", "Literal", "PreciseTimestampConversion")
"""Expressions with nothing of interest inside; the last is Spark's own arithmetic for a window, dozens of nodes."""


def _once(thing: Any, name: str, ask: Callable[[], T]) -> T:
    """What `ask` gives, asked once for as long as the object lives."""
    answers: dict[str, T] = vars(thing).setdefault("_penstock_answers", {})
    if name not in answers:
        answers[name] = ask()
    return answers[name]


def analyzed(frame: DataFrame) -> Plan:
    """The plan as the user wrote it, with what SQL names by WITH written out where it is used: beside the plan, as
    Spark keeps it, nobody would see what stands above what."""
    return _once(frame._jdf, "analyzed", lambda: _written_out(frame))


def _written_out(frame: DataFrame) -> Plan:
    plan = frame._jdf.queryExecution().analyzed()
    if not any(kind(node) == "WithCTE" for node in with_subqueries(plan)):
        return plan
    jvm: Any = frame.sparkSession._jvm
    (inline,) = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.optimizer.InlineCTE").getConstructors()
    always = [True, *[False] * (inline.getParameterCount() - 1)]  # one more in each version of Spark
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(*always).apply(plan)


def optimized(frame: DataFrame) -> Plan:
    return _once(frame._jdf, "optimized", lambda: frame._jdf.queryExecution().optimizedPlan())


def frame(spark: SparkSession, plan: Plan) -> DataFrame:
    """A plan as a frame."""
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def alias(jvm: Any, expression: Expression, name: str, number: Any = None) -> Expression:
    """A column of this name; with a `number` it is the one that the rest of a plan knows by it."""
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    number = number or expressions.NamedExpression.newExprId()
    nothing = jvm.PythonUtils.toSeq([])
    return expressions.Alias(expression, name, number, nothing, jvm.scala.Option.empty(), nothing)


def items(seq: Any) -> Iterator[Any]:
    """The elements of a Scala sequence or set."""
    iterator = seq.iterator()
    while iterator.hasNext():
        yield iterator.next()


def nodes(plan: Plan) -> Iterator[Plan]:
    """A plan and all below it, top down."""
    yield plan
    for child in children(plan):
        yield from nodes(child)


def with_subqueries(plan: Plan) -> Iterator[Plan]:
    """A plan and all below it, and the plans that its expressions hold (`x IN (SELECT ...)`)."""
    yield plan
    for part in (*children(plan), *subqueries(plan)):
        yield from with_subqueries(part)


def subqueries(node: Plan) -> list[Plan]:
    """The plans that the expressions of one node hold."""
    return _once(node, "subqueries", lambda: list(items(node.subqueries())))


def joins_subqueries(node: Plan) -> bool:
    """Whether Spark makes a join of a subquery of this node: of all but those that give one value for all rows."""
    values = [e for e in expressions(node) if kind(e) == "ScalarSubquery" and e.outerAttrs().isEmpty()]
    return len(values) < len(subqueries(node))


def children(node: Any) -> list[Any]:
    """What stands directly below a node, or inside an expression."""
    return _once(node, "children", lambda: list(items(node.children())))


def kind(node: Any) -> str:
    """The Scala class of a node or expression, without its package if that is Spark's: nobody else's is known."""
    return _once(node, "kind", lambda: _short(str(node.getClass().getName())))


def _short(name: str) -> str:
    """
    >>> _short("org.apache.spark.sql.catalyst.expressions.IsUnknown$$anon$1"), _short("org.apache.spark.sql.Now$")
    ('IsUnknown', 'Now')
    >>> _short("com.example.Project")
    'com.example.Project'
    """
    return name.rpartition(".")[2].partition("$$")[0].rstrip("$") if name.startswith(_SPARK) else name


def expressions(node: Plan) -> Iterator[Expression]:
    """Every expression of one node, with those inside them."""
    for expression in _once(node, "expressions", lambda: list(items(node.expressions()))):
        yield from inside(expression)


def inside(expression: Expression) -> Iterator[Expression]:
    """An expression and all inside it."""
    yield expression
    if kind(expression) not in _CLOSED:
        for child in children(expression):
            yield from inside(child)


def delay_us(watermark: Plan) -> int:
    """The delay of an `EventTimeWatermark`, as far as it is shorter than a day or given in fixed units."""
    interval = watermark.delay()
    return int(get_field(interval, "microseconds")) + int(get_field(interval, "days")) * _DAY_US


def is_relation(node: Plan) -> bool:
    return kind(node) in _RELATIONS


def is_log(node: Plan) -> bool:
    """Whether a node of an analysed plan is one of the log's streams."""
    return is_relation(node) and node.table().name() == FORMAT


def carries_time(expression: Expression) -> bool:
    """Whether an expression is, or holds, an attribute that Spark's watermark moves."""
    return any(kind(part) == "AttributeReference" and part.metadata().contains(_DELAY) for part in inside(expression))


def event_time_state(plan: Plan) -> bool:
    """Whether the plan holds state that event time evicts: an operator whose keys or condition carry the watermark."""
    return any(kind(node) in _ALWAYS_TIMED or any(map(carries_time, _evicted_by(node))) for node in nodes(plan))


def _evicted_by(node: Plan) -> Iterator[Expression]:
    """Expressions of an operator that decide when its state may go; of one that is not known, all that it gets."""
    name = kind(node)
    if name == "Aggregate":
        yield from items(node.groupingExpressions())
    elif name == "Deduplicate":
        yield from items(node.keys())
    elif name == "Join":
        yield from expressions(node) if streaming_join(node) else ()
    elif node_kind(name).evicts:
        for child in children(node):
            yield from items(child.output())


def sessions_alone(node: Plan) -> bool:
    """Whether an aggregation groups by sessions and by nothing else."""
    groups = list(items(node.groupingExpressions())) if kind(node) == "Aggregate" else []
    return len(groups) == 1 and any(
        kind(part) in ("AttributeReference", "Alias") and part.metadata().contains(_SESSION)
        for part in inside(groups[0])
    )


def windows_per_event(plan: Plan) -> int:
    """Into how many windows Spark puts each event: a hop that is longer than its interval has a row for each."""
    hops = [node for node in nodes(plan) if kind(node) == "Expand"]
    timed = [node for node in hops if any(column.metadata().contains(_WINDOW) for column in items(node.output()))]
    return max([1, *(int(node.projections().size()) for node in timed)])


def reach_us(plan: Plan) -> int:
    """How long after an event something of a plan may end that it has begun: at most the sum of all intervals that the
    plan names and of the longest of its windows."""
    plain = [node for node in nodes(plan) if kind(node) != "Expand"]  # whose rows differ by nothing but the window
    spans = [_interval_us(part) for node in plain for part in expressions(node) if kind(part) == "Literal"]
    lengths = [0]
    for node in nodes(plan):
        if any(column.metadata().contains(_WINDOW) for column in items(node.output())):
            rows = node.projections().head() if kind(node) == "Expand" else node.expressions()
            texts = [str(each.sql()) for each in items(rows)]
            lengths += [int(number) for text in texts for number in _LONGS.findall(text)]
        if kind(node) == "Project" and any(column.metadata().contains(_SESSION) for column in items(node.output())):
            spans += [_interval_us(part) for each in items(node.expressions()) for part in _all_inside(each)]
    return sum(spans) + max(lengths)


def _all_inside(expression: Expression) -> Iterator[Expression]:
    yield expression
    for child in children(expression):
        yield from _all_inside(child)


def _interval_us(literal: Expression) -> int:
    """0 for what is no interval."""
    if kind(literal) != "Literal" or literal.value() is None:
        return 0
    name = str(literal.dataType().getClass().getSimpleName())
    if name.startswith("DayTimeInterval"):
        return abs(int(literal.value()))
    if name.startswith("YearMonthInterval"):
        return abs(int(literal.value())) * _MONTH_US
    if not name.startswith("CalendarInterval"):
        return 0
    parts = {part: abs(int(get_field(literal.value(), part))) for part in ("months", "days", "microseconds")}
    return parts["months"] * _MONTH_US + parts["days"] * _DAY_US + parts["microseconds"]


def in_commit_order(frame: DataFrame) -> bool:
    """Whether rows leave a plan in commit order, so that of two rows of one key the last is the newest."""
    inner = [node for node in nodes(analyzed(frame)) if children(node)]
    return all(node_kind(kind(node)).in_order and not joins_subqueries(node) for node in inner)


def streaming_join(node: Plan) -> bool:
    return bool(node.left().isStreaming() and node.right().isStreaming())


def kinds(plan: Plan) -> frozenset[str]:
    """The kinds of all nodes and expressions of a plan."""
    return frozenset(kind(part) for node in with_subqueries(plan) for part in (node, *expressions(node)))


def needed_columns(batch: DataFrame) -> set[str]:
    """Columns of the log's streams that a plan uses, as far as Spark's own pruning knows.

    Every column name that any node above a relation refers to, or that the plan gives out.
    """
    plan = optimized(batch)
    ids: dict[int, str] = {}
    for node in with_subqueries(plan):
        if is_relation(node):
            ids |= {attribute.exprId().id(): attribute.name() for attribute in items(node.output())}
    used = {attribute.exprId().id() for attribute in items(plan.outputSet())}
    for node in with_subqueries(plan):
        if not is_relation(node):
            used |= {attribute.exprId().id() for attribute in items(node.references())}
    return {ids[i] for i in used if i in ids}
