"""What `verify` can prove of a view: exact, equal within a tolerance, or not at all, and then by name why not.

A view is exact only if every operator and every aggregate of its plan is on a list of those whose result depends on
the events alone, not on their order, their batches, the time of day or chance.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

from penstock.declaration import Node
from penstock.flows import tree
from penstock.log.builds import Proof

_OPERATORS = {
    "Project", "Filter", "Aggregate", "SubqueryAlias", "View", "Union", "Generate", "Expand", "Join",
    "EventTimeWatermark", "LocalRelation", "OneRowRelation", "Range", "LogicalRDD", "Deduplicate", "Distinct",
    "RepartitionByExpression", "Repartition", "ResolvedHint", "UpdateEventTimeWatermarkColumn",
    *tree.LEAVES,
}  # fmt: skip
_AGGREGATES = {
    "Count", "Sum", "Average", "Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg", "CountIf",
    "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Corr", "CovPopulation", "CovSample",
}  # fmt: skip
_FLOATING = {"Average", "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Corr", "CovPopulation", "CovSample"}
_OF_THE_MOMENT = {
    "CurrentTimestamp", "CurrentDate", "Now", "LocalTimestamp", "CurrentTime", "CurrentBatchTimestamp",
    "CurrentDatabase", "CurrentUser", "InputFileName",
}  # fmt: skip
_BY_CHANCE = {"Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle", "MonotonicallyIncreasingID", "SparkPartitionID"}
_NO_BATCH = "applyInPandasWithState, which no batch query has"
_NAMED = {
    "LogicalRelation": "a table outside the log, which may change",
    "FlatMapGroupsInPandasWithState": _NO_BATCH,
}
_PYTHON = {"PythonUDF", "PythonUDAF", "PythonUDTF", "UserDefinedGenerator", "ScalaUDF"}


def proof_of(node: Node, frame: DataFrame) -> tuple[Proof, tuple[str, ...]]:
    """The class of a view (or flow) and the reasons that keep it from being exact."""
    reasons = tuple(sorted(set(_reasons(tree.analyzed(frame)))))
    tolerance = tuple(r.removeprefix("~") for r in reasons if r.startswith("~"))
    hard = tuple(r for r in reasons if not r.startswith("~"))
    if hard and (not node.deterministic or _NO_BATCH in hard):
        return "unverifiable", hard
    return ("tolerance", tolerance) if tolerance or hard else ("exact", ())


def _reasons(plan: tree.Plan) -> Iterator[str]:
    """Why not exact, one by one; those that begin with ~ only call for a tolerance."""
    if not plan.deterministic():
        yield "an expression that is not deterministic"
    for node in tree.nodes(plan):
        name = tree.kind(node)
        if name not in _OPERATORS:
            yield _NAMED.get(name, f"the operator {name}")
        if name == "Deduplicate" and _drops_columns(node):
            yield "dropDuplicates that keeps other columns"
        if name == "Join" and tree.streaming_join(node) and "Inner" not in node.joinType().toString():
            yield "an outer join of two streams"
        for expression in tree.expressions(node):
            yield from _expression_reasons(expression)


def _drops_columns(node: tree.Plan) -> bool:
    keys = {key.exprId().id() for key in tree.items(node.keys())}
    return any(a.exprId().id() not in keys for a in tree.items(node.child().output()))


def _expression_reasons(expression: tree.Expression) -> Iterator[str]:
    name = tree.kind(expression)
    if name == "AggregateExpression":
        function = expression.aggregateFunction()
        kind = tree.kind(function)
        floating = "Double" in function.dataType().toString() or "Float" in function.dataType().toString()
        if kind not in _AGGREGATES:
            yield f"the aggregate {function.prettyName()}"
        elif floating and (kind in _FLOATING or kind == "Sum"):
            yield f"~{function.prettyName()} of floating-point numbers"
    elif name in _OF_THE_MOMENT:
        yield f"{expression.prettyName()}"
    elif name in _PYTHON:
        yield f"the Python function {expression.name()}"
    elif name in _BY_CHANCE:
        yield f"{expression.prettyName()}"
