"""Views of the first rows of an order: `orderBy(...).limit(10)` reads those rows by an index, not all that there are.

A limit over a sorted input has no unit: any row may come to be among the first. But it needs no other rows than
those. `held.db` finds them by an index over the columns of the order, and the function is run over just them.

1. SQLite orders the values of such a column as Spark does. A column whose values it would order otherwise (a decimal,
   a struct), or that is computed, ends the index: of rows that are equal in the columns before it, all are read.
2. Reading more rows than the first does no harm: Spark sorts what it gets, and takes as many as the limit says. So
   rows that the index finds equal to the last one are read, too.
3. A filter below the order is computed by Spark when a row is held, and is the first column of the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from penstock.flows import plan_tree
from penstock.flows.regroup.units import FirstRows, Leaf, Units, sql_of

_HANDED_ON = ("Project", "SubqueryAlias", "View", "LocalLimit")
_ORDERED = ("tinyint", "smallint", "int", "bigint", "string", "boolean", "date", "timestamp", "float", "double")
_DEFAULT_NULLS = {"Ascending": "NullsFirst", "Descending": "NullsLast"}
"""As SQLite has them."""


def find_first_rows(frame: DataFrame, inputs: Mapping[str, DataFrame]) -> Units | None:
    """A view over one input that needs no more of it than its first rows; None: it is none."""
    plan = plan_tree.analyzed(frame)
    nodes = list(plan_tree.nodes(plan))
    if len(inputs) != 1 or any(len(plan_tree.children(n)) > 1 or plan_tree.subqueries(n) for n in nodes):
        return None
    limits = [place for place, node in enumerate(nodes) if plan_tree.kind(node) == "GlobalLimit"]
    if not limits or plan_tree.kind(nodes[-1]) != "LogicalRDD":
        return None
    count = nodes[limits[-1]].limitExpr()
    below = iter(nodes[limits[-1] + 1 :])
    sort = next(node for node in below if plan_tree.kind(node) not in _HANDED_ON)
    if plan_tree.kind(sort) != "Sort" or not getattr(sort, "global")() or plan_tree.kind(count) != "Literal":
        return None
    (name,) = inputs
    rows = _first_rows(frame, sort, list(below), int(count.value()))
    return None if rows is None else Units((), (Leaf(0, name),), {0: ()}, (), rows)


def _first_rows(
    frame: DataFrame, sort: plan_tree.Plan, below: Sequence[plan_tree.Plan], count: int
) -> FirstRows | None:
    leaf = below[-1]
    own = {a.exprId().id(): a for a in plan_tree.items(leaf.output())}
    columns = dict(own)
    conditions: list[Any] = []
    for node in reversed(below[:-1]):
        kind = plan_tree.kind(node)
        if kind == "Filter":
            if any(part.exprId().id() not in own for part in plan_tree.items(node.condition().references())):
                return None
            conditions.append(node.condition())
        elif kind == "Project":
            columns |= {n: columns[of] for n, of in _renamed(node) if of in columns}
        elif kind not in _HANDED_ON:
            return None
    order = tuple(_order(sort, columns))
    where = " AND ".join(f"({sql_of(frame.sparkSession, condition)})" for condition in conditions)
    return FirstRows(count, order, where or None) if order else None


def _renamed(project: plan_tree.Plan) -> Iterator[tuple[int, int]]:
    for column in plan_tree.items(project.projectList()):
        value = column.child() if plan_tree.kind(column) == "Alias" else column
        if plan_tree.kind(value) == "AttributeReference":
            yield column.exprId().id(), value.exprId().id()


def _order(sort: plan_tree.Plan, columns: Mapping[int, Any]) -> Iterator[tuple[str, bool]]:
    """The first columns of an order by which an index can find rows, and whether each is descending."""
    for part in plan_tree.items(sort.order()):
        value, direction = part.child(), plan_tree.kind(part.direction())
        column = columns.get(value.exprId().id()) if plan_tree.kind(value) == "AttributeReference" else None
        if column is None or column.dataType().simpleString() not in _ORDERED:
            return
        if plan_tree.kind(part.nullOrdering()) != _DEFAULT_NULLS[direction]:
            return
        yield column.name(), direction == "Descending"
