"""Says which places of a batch plan choose among equal rows: there, two computations may give two answers.

`row_number` over an order that two rows share, a limit that cuts between them: Spark gives one or the other. Where the
order fixes what a row is made from, no two share it: a key of each input, or columns that a join makes equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.flows import plan_tree

_BY_ROW = {"RowNumber": "row_number", "Lag": "lag", "Lead": "lead", "NTile": "ntile", "NthValue": "nth_value"}
"""Window functions that tell rows apart which their order does not."""
_WIDTHS = ("tinyint", "smallint", "int", "bigint")
_SAME_ROWS = ("Sort", "SubqueryAlias", "Window", "GlobalLimit", "LocalLimit", "Repartition", "View")

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
    """Whether no two rows have the same values in these columns: what they are made from is fixed by them."""
    origin = _origin(plan, keys)
    if origin is None:
        return False
    known, before = set(fixed), -1
    while len(known) > before:
        before = len(known)
        for of, to in origin.rules:
            if of <= known:
                known |= to
    return all(key <= known for key in origin.keys)


@dataclass(frozen=True)
class _Origin:
    """What each row of a plan is made from, and what of it fixes what."""

    keys: tuple[Ids, ...]
    """A row is made from one row of each of some inputs or groups: their keys."""
    rules: tuple[tuple[Ids, Ids], ...]
    """Rows that have the same values in the first columns have the same in the second."""

    def and_(self, *rules: tuple[Ids, Ids]) -> _Origin:
        return _Origin(self.keys, (*self.rules, *rules))


def _origin(plan: plan_tree.Plan, keys: Keys) -> _Origin | None:
    """None: nothing is known that tells the rows of a plan apart."""
    kind = plan_tree.kind(plan)
    if kind == "LogicalRDD":
        names = keys.get(plan.rdd().id())
        return None if names is None else _one(plan, frozenset(_id(a) for a in _outputs(plan) if a.name() in names))
    if kind == "Filter":
        below = _origin(plan.child(), keys)
        return None if below is None else below.and_(*_equalities(plan.condition()))
    if kind in _SAME_ROWS:
        return _origin(plan_tree.children(plan)[0], keys)
    if kind == "Project":
        below = _origin(plan.child(), keys)
        return None if below is None else below.and_(*_computed(plan.projectList()))
    if kind == "Aggregate":
        return _groups(plan)
    if kind == "Distinct":
        return _one(plan, frozenset(map(_id, _outputs(plan))))
    if kind == "Deduplicate":
        return _one(plan, frozenset(map(_id, plan_tree.items(plan.keys()))))
    return _joined(plan, keys) if kind == "Join" else None


def _one(plan: plan_tree.Plan, key: Ids) -> _Origin:
    return _Origin((key,), ((key, frozenset(map(_id, _outputs(plan)))),))


def _groups(aggregate: plan_tree.Plan) -> _Origin | None:
    """A group is known by what it is grouped by, as far as the columns show it."""
    columns = list(plan_tree.items(aggregate.aggregateExpressions()))
    key: list[int] = []
    for group in plan_tree.items(aggregate.groupingExpressions()):
        shown = (_id(column) for column in columns if _value(column).semanticEquals(group))
        found = next(shown, None)
        if found is None:
            return None
        key.append(found)
    return _one(aggregate, frozenset(key))


def _joined(join: plan_tree.Plan, keys: Keys) -> _Origin | None:
    """Rows of both sides; what an equality fixes depends on which side always has a row."""
    left, right = (_origin(child, keys) for child in plan_tree.children(join))
    kind = plan_tree.kind(join.joinType())
    if kind in ("LeftSemi", "LeftAnti"):
        return left
    if left is None or right is None:
        return None
    both = _Origin((*left.keys, *right.keys), (*left.rules, *right.rules))
    equal = list(_equalities(join.condition().get())) if join.condition().isDefined() else []
    if kind in ("Inner", "Cross"):
        return both.and_(*equal)
    if kind not in ("LeftOuter", "RightOuter"):
        return both
    # Whether a row has a partner is fixed by the whole row, not by the columns that are compared.
    kept, other = (left, 1) if kind == "LeftOuter" else (right, 0)
    there = frozenset(i for key in kept.keys for i in key)
    outer = frozenset(map(_id, _outputs(plan_tree.children(join)[other])))
    return both.and_(*((of | there, to) for of, to in equal if to <= outer))


def _equalities(condition: Any) -> Iterator[tuple[Ids, Ids]]:
    """Columns that a condition calls equal, or that it sets to a constant."""
    kind = plan_tree.kind(condition)
    if kind == "And":
        for part in plan_tree.children(condition):
            yield from _equalities(part)
    elif kind in ("EqualTo", "EqualNullSafe"):
        a, b = (_plain(part) for part in plan_tree.children(condition))
        for one, other in ((a, b), (b, a)):
            if one is not None and other:
                yield one, other


def _plain(expression: Any) -> Ids | None:
    """A column as a set of it, a constant as a set of none; None: it is something else."""
    while plan_tree.kind(expression) == "Cast" and _widens(expression):
        expression = expression.child()
    kind = plan_tree.kind(expression)
    if kind == "AttributeReference":
        return frozenset([_id(expression)])
    return frozenset() if kind == "Literal" else None


def _widens(cast: Any) -> bool:
    """Whether a cast gives different values for different ones: an integer as a wider one."""
    names = [part.dataType().simpleString() for part in (cast.child(), cast)]
    return all(name in _WIDTHS for name in names) and _WIDTHS.index(names[0]) <= _WIDTHS.index(names[1])


def _computed(columns: Any) -> Iterator[tuple[Ids, Ids]]:
    """What a projection's new columns are made of; one that hands a column on is fixed by it, and fixes it."""
    for column in plan_tree.items(columns):
        if plan_tree.kind(column) != "Alias" or not column.deterministic():
            continue
        own, source = frozenset([_id(column)]), _plain(column.child())
        yield _references(column), own
        if source:
            yield own, source


def _value(column: Any) -> Any:
    return column.child() if plan_tree.kind(column) == "Alias" else column


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _outputs(plan: plan_tree.Plan) -> list[Any]:
    return list(plan_tree.items(plan.output()))


def _references(expression: Any) -> Ids:
    return frozenset(a.exprId().id() for a in plan_tree.items(expression.references()))


def _ids(expressions: Any) -> Ids:
    """Columns that stand alone in a list of expressions or orders."""
    plain = (e.child() if plan_tree.kind(e) == "SortOrder" else e for e in plan_tree.items(expressions))
    return frozenset(e.exprId().id() for e in plain if plan_tree.kind(e) == "AttributeReference")
