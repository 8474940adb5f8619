"""Says which places of a batch plan choose among equal rows: there, two computations may give two answers.

`row_number` over an order that two rows share, a limit that cuts between them: Spark gives one or the other. Where the
order holds a key of the rows, no two share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.flows import plan_tree

_BY_ROW = {"RowNumber": "row_number", "Lag": "lag", "Lead": "lead", "NTile": "ntile", "NthValue": "nth_value"}
"""Window functions that tell rows apart which their order does not."""
_SAME_ROWS = ("Filter", "Sort", "SubqueryAlias", "Window", "GlobalLimit", "LocalLimit", "Repartition", "View")

Ids = frozenset[int]
Keys = Mapping[int, tuple[str, ...]]
"""The key of each input, by the number of its relation's RDD."""


def ties(plan: plan_tree.Plan, keys: Keys) -> Iterator[str]:
    """Reasons, one for each place."""
    for node in plan_tree.nodes(plan):
        if plan_tree.kind(node) == "Window":
            parts = [part for column in plan_tree.items(node.windowExpressions()) for part in plan_tree.inside(column)]
            named = sorted({_BY_ROW[plan_tree.kind(part)] for part in parts if plan_tree.kind(part) in _BY_ROW})
            fixed = _ids(node.partitionSpec()) | _ids(node.orderSpec())
            if named and not _tells_apart(node.child(), fixed, keys):
                yield f"{', '.join(named)} by an order that rows may share"
        if plan_tree.kind(node) in ("GlobalLimit", "LocalLimit", "Offset"):
            below = plan_tree.children(node)[0]
            while plan_tree.kind(below) in ("Project", "LocalLimit", "GlobalLimit", "Offset"):
                below = plan_tree.children(below)[0]
            fixed = _ids(below.order()) if plan_tree.kind(below) == "Sort" else frozenset()
            if not _tells_apart(below, fixed, keys):
                yield "a limit by an order that rows may share"


def _tells_apart(plan: plan_tree.Plan, fixed: Ids, keys: Keys) -> bool:
    """Whether no two rows have the same values in these columns: a key of them is among them."""
    return any(key <= fixed for key in _keys(plan, keys))


def _keys(plan: plan_tree.Plan, keys: Keys) -> list[Ids]:
    """Sets of columns of which each tells the rows of a plan apart."""
    kind = plan_tree.kind(plan)
    if kind == "LogicalRDD":
        names = keys.get(plan.rdd().id())
        return [] if names is None else [frozenset(a.exprId().id() for a in _outputs(plan) if a.name() in names)]
    if kind in _SAME_ROWS:
        return _keys(plan_tree.children(plan)[0], keys)
    if kind == "Project":
        return [key for below in _keys(plan.child(), keys) if (key := _renamed(plan.projectList(), below)) is not None]
    if kind == "Aggregate":
        groups = frozenset(i for group in plan_tree.items(plan.groupingExpressions()) for i in _references(group))
        key = _renamed(plan.aggregateExpressions(), groups)
        return [] if key is None else [key]
    if kind in ("Distinct", "Deduplicate"):
        return [frozenset(a.exprId().id() for a in _outputs(plan)), *_keys(plan_tree.children(plan)[0], keys)]
    if kind == "Join":
        left, right = (_keys(child, keys) for child in plan_tree.children(plan))
        semi = str(plan.joinType().toString()) in ("LeftSemi", "LeftAnti")
        return left if semi else [a | b for a in left for b in right]
    return []


def _renamed(columns: Any, key: Ids) -> Ids | None:
    """A key under the numbers that a projection gives its columns; None: one of them is not among its columns."""
    found: dict[int, int] = {}
    for column in plan_tree.items(columns):
        source = column.child() if plan_tree.kind(column) == "Alias" else column
        if plan_tree.kind(source) == "AttributeReference":
            found[source.exprId().id()] = column.exprId().id()
    return frozenset(found[i] for i in key) if key <= found.keys() else None


def _outputs(plan: plan_tree.Plan) -> list[Any]:
    return list(plan_tree.items(plan.output()))


def _references(expression: Any) -> Ids:
    return frozenset(a.exprId().id() for a in plan_tree.items(expression.references()))


def _ids(expressions: Any) -> Ids:
    """Columns that stand alone in a list of expressions or orders."""
    plain = (e.child() if plan_tree.kind(e) == "SortOrder" else e for e in plan_tree.items(expressions))
    return frozenset(e.exprId().id() for e in plain if plan_tree.kind(e) == "AttributeReference")
