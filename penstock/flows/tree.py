"""Spark's own plan trees, walked from Python: what nodes and expressions a user's function is made of.

Every question goes to Java and back, and a flow's plan is looked at from a dozen sides. A tree never changes, so that
what was asked of a node is kept with the object that stands for it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from py4j.java_gateway import get_field
from pyspark.sql import DataFrame

Plan = Any
"""A `LogicalPlan` of Catalyst, through py4j."""
Expression = Any
T = TypeVar("T")

_DELAY = "spark.watermarkDelayMs"
LEAVES = ("StreamingRelationV2", "RelationV2", "DataSourceV2Relation", "DataSourceV2ScanRelation")
"""Nodes that stand for one of the log's streams."""
_CLOSED = ("AttributeReference", "Literal", "PreciseTimestampConversion")
"""Expressions with nothing of interest inside; the last is Spark's own arithmetic for a window, dozens of nodes."""


def _once(thing: Any, name: str, ask: Callable[[], T]) -> T:
    """What `ask` gives, asked once for as long as the object lives."""
    kept = vars(thing).setdefault("_penstock_asked", {})
    if name not in kept:
        kept[name] = ask()
    found: T = kept[name]
    return found


def analyzed(frame: DataFrame) -> Plan:
    """The plan as the user wrote it, with what SQL names by WITH written out where it is used: beside the plan, as
    Spark keeps it, nobody would see what stands above what."""
    return _once(frame._jdf, "analyzed", lambda: _written_out(frame))


def _written_out(frame: DataFrame) -> Plan:
    plan = frame._jdf.queryExecution().analyzed()
    if not any(kind(node) == "WithCTE" for node in nodes(plan)):
        return plan
    jvm: Any = frame.sparkSession._jvm
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)


def optimized(frame: DataFrame) -> Plan:
    return _once(frame._jdf, "optimized", lambda: frame._jdf.queryExecution().optimizedPlan())


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


def children(node: Any) -> list[Any]:
    """What stands directly below a node, or inside an expression."""
    return _once(node, "children", lambda: list(items(node.children())))


def kind(node: Any) -> str:
    """The Scala class of a node or expression, without its package."""
    return _once(node, "kind", lambda: str(node.getClass().getSimpleName()).rstrip("$"))


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
    day_us = 86_400_000_000
    return int(get_field(interval, "microseconds")) + int(get_field(interval, "days")) * day_us


def is_log(node: Plan) -> bool:
    return kind(node) in LEAVES


def carries_time(expression: Expression) -> bool:
    """Whether an expression is, or holds, an attribute that Spark's watermark moves."""
    return any(kind(part) == "AttributeReference" and part.metadata().contains(_DELAY) for part in inside(expression))


def event_time_state(plan: Plan) -> bool:
    """Whether the plan holds state that event time evicts: an operator whose keys or condition carry the watermark."""
    for node in nodes(plan):
        name = kind(node)
        if name == "Aggregate" and any(carries_time(e) for e in items(node.groupingExpressions())):
            return True
        if name == "DeduplicateWithinWatermark":
            return True
        if name == "Deduplicate" and any(carries_time(key) for key in items(node.keys())):
            return True
        if name == "Join" and streaming_join(node) and any(carries_time(e) for e in expressions(node)):
            return True
        if name in ("FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark", "TransformWithStateInPandas"):
            return True
    return False


def streaming_join(node: Plan) -> bool:
    return bool(node.left().isStreaming() and node.right().isStreaming())


def kinds(plan: Plan) -> frozenset[str]:
    """The kinds of all nodes and expressions of a plan."""
    found = set()
    for node in nodes(plan):
        found |= {kind(node), *(kind(expression) for expression in expressions(node))}
    return frozenset(found)


def needed_columns(batch: DataFrame) -> set[str]:
    """Columns of the log's streams that a plan uses, as far as Spark's own pruning knows.

    Every column name that any node above a relation refers to, or that the plan gives out.
    """
    plan = optimized(batch)
    ids: dict[int, str] = {}
    for node in nodes(plan):
        if is_log(node):
            ids |= {attribute.exprId().id(): attribute.name() for attribute in items(node.output())}
    used = {attribute.exprId().id() for attribute in items(plan.outputSet())}
    for node in nodes(plan):
        if not is_log(node):
            used |= {attribute.exprId().id() for attribute in items(node.references())}
    return {ids[i] for i in used if i in ids}
