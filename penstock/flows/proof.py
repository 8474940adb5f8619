"""What `verify` can prove of a view: exact, equal within a tolerance, within a stated bound, or why not at all.

A view is exact only if every operator and every aggregate of its plan is on a list of those whose result depends on
the events alone, not on their order, their batches, the time of day or chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame

from penstock.declaration import Node
from penstock.flows import plan_tree
from penstock.flows.plan_expressions import (
    BOUNDED_AGGREGATES,
    EXACT,
    EXACT_AGGREGATES,
    FLOATING,
    OTHER_AGGREGATES,
    REGISTERED,
    TOLD,
)
from penstock.flows.plan_nodes import node_kind
from penstock.flows.regroup.ties import Keys, ties
from penstock.log.builds import Proof
from penstock.schema import ID
from penstock.summaries import exactly

_NO_BATCH = "applyInPandasWithState, which no batch query has"
_OUTSIDE = "a table outside the log, which may change"
_NAMED = {
    "LogicalRelation": _OUTSIDE,
    "HiveTableRelation": _OUTSIDE,
    "FlatMapGroupsInPandasWithState": _NO_BATCH,
}
_JUDGED = EXACT | EXACT_AGGREGATES | OTHER_AGGREGATES
"""What needs no word of its own: of an aggregate, the `AggregateExpression` around it is judged."""


_BY_BATCH = {"Window", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Except", "Intersect", "LateralJoin"}
"""Operators that give the same rows whenever a batch query computes them, but for ties."""
_OVER_WINDOWS = {"RowNumber", "Rank", "DenseRank", "PercentRank", "CumeDist", "NTile", "Lag", "Lead", "NthValue"}


def proof_of(
    node: Node, frame: DataFrame, keys: Keys | None = None, again: Callable[[], DataFrame] | None = None
) -> tuple[Proof, tuple[str, ...]]:
    """The class of a view (or flow) and the reasons that keep it from being exact. With the `keys` of its inputs it is
    one that is computed as a batch query. `again` calls its function once more, to see whose estimates it holds."""
    plan = plan_tree.analyzed(frame)
    found = set(_reasons(plan, batch=keys is not None))
    if keys is not None:
        found |= set(ties(plan, keys))
    bounded = {reason.removeprefix("^") for reason in found if reason.startswith("^")}
    reasons = tuple(sorted(reason for reason in found if not reason.startswith("^")))
    if bounded and not (again is not None and _all_stated(again)):
        reasons = tuple(sorted({*reasons, *bounded}))
        bounded = set()
    tolerance = tuple(r.removeprefix("~") for r in reasons if r.startswith("~"))
    hard = tuple(r for r in reasons if not r.startswith("~"))
    if hard and (not node.deterministic or _NO_BATCH in hard):
        return "unverifiable", hard
    if bounded:
        return "bounded", (*sorted(bounded), *tolerance)
    return ("tolerance", tolerance) if tolerance or hard else ("exact", ())


def _all_stated(again: Callable[[], DataFrame]) -> bool:
    """Whether every estimate comes from `summaries.py`, which gives what it stands for when it is asked."""
    with exactly():
        plan = plan_tree.analyzed(again())
    return not plan_tree.kinds(plan) & BOUNDED_AGGREGATES


def _reasons(plan: plan_tree.Plan, *, batch: bool) -> Iterator[str]:
    """Why not exact, one by one; those that begin with ~ only call for a tolerance."""
    if not plan.deterministic():
        yield "an expression that is not deterministic"
    for node in plan_tree.with_subqueries(plan):
        name = plan_tree.kind(node)
        if not (node_kind(name).exact or (batch and name in _BY_BATCH)):
            yield _NAMED.get(name, f"the operator {name}")
        if plan_tree.is_relation(node) and not plan_tree.is_log(node):
            yield _OUTSIDE
        if name == "Deduplicate" and _drops_columns(node):
            yield "dropDuplicates that keeps other columns"
        if name == "Join" and plan_tree.streaming_join(node) and "Inner" not in node.joinType().toString():
            yield "an outer join of two streams"
        merged = _merged(node)
        for expression in plan_tree.expressions(node):
            if not (batch and plan_tree.kind(expression) in _OVER_WINDOWS) and not _is_merged(expression, merged):
                yield from _expression_reasons(expression)


def _merged(node: plan_tree.Plan) -> set[int]:
    """The HLL sketches that a union takes: only those that were merged are equal to the byte."""
    unions = [e for e in plan_tree.expressions(node) if plan_tree.kind(e) == "HllUnion"]
    parts = [part for union in unions for part in plan_tree.children(union)]
    return {part.resultId().id() for part in parts if plan_tree.kind(part) == "AggregateExpression"}


def _is_merged(expression: plan_tree.Expression, merged: set[int]) -> bool:
    return bool(merged) and plan_tree.kind(expression) == "AggregateExpression" and expression.resultId().id() in merged


def _drops_columns(node: plan_tree.Plan) -> bool:
    keys = {key.exprId().id() for key in plan_tree.items(node.keys())}
    return any(a.exprId().id() not in keys for a in plan_tree.items(node.child().output()))


def _expression_reasons(expression: plan_tree.Expression) -> Iterator[str]:
    name = plan_tree.kind(expression)
    if name == "AggregateExpression":
        yield from _aggregate_reasons(expression.aggregateFunction())
    elif name in REGISTERED:
        yield f"the Python function {expression.name()}"
    elif name not in TOLD:
        yield f"{expression.prettyName()}, of which nothing is known"
    elif name not in _JUDGED:
        yield str(expression.prettyName())


def _aggregate_reasons(function: plan_tree.Expression) -> Iterator[str]:
    kind, type_ = plan_tree.kind(function), function.dataType().toString()
    if kind in BOUNDED_AGGREGATES:
        yield f"^the aggregate {function.prettyName()}"
    elif kind == "MaxMinByK" and _by_hash(function):
        return
    elif kind not in EXACT_AGGREGATES:
        yield f"the aggregate {function.prettyName()}"
    elif kind in FLOATING and ("Double" in type_ or "Float" in type_):
        yield f"~{function.prettyName()} of floating-point numbers"


def _by_hash(function: plan_tree.Expression) -> bool:
    """Whether rows are chosen by the hash of their event's id, which no two have in common."""
    _, order, *_ = plan_tree.children(function)
    return plan_tree.kind(order) == "XxHash64" and [
        part.name() for part in plan_tree.inside(order) if plan_tree.kind(part) == "AttributeReference"
    ] == [ID]
