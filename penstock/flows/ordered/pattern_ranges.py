"""What a condition of a pattern allows of each column, as ranges: so that events which fit no step are left out early.

Only parts that all must hold count, and only comparisons with numbers and with columns of earlier steps; of all else
nothing is concluded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

Range = tuple[float, bool, float, bool]
"""Least and greatest, and whether each is allowed itself."""
ALL: Range = (-math.inf, True, math.inf, True)
_FLIPPED = {"LT": "GT", "LTE": "GTE", "GT": "LT", "GTE": "LTE", "EQ": "EQ"}


def ranges_of(tree: Any, earlier: dict[str, dict[str, Range]]) -> dict[str, Range]:
    """What a condition allows of each column, by its parts that all must hold."""
    found: dict[str, Range] = {}
    for part in _conjuncts(tree):
        kind = type(part).__name__
        if kind not in _FLIPPED:
            continue
        for column, operator, other in (
            (part.this, kind, part.expression),
            (part.expression, _FLIPPED[kind], part.this),
        ):
            if isinstance(column, exp.Column) and not column.table:
                allowed = _limited(operator, _values(other, earlier))
                found[column.name] = _both(found.get(column.name, ALL), allowed)
    return found


def _conjuncts(tree: Any) -> Iterator[Any]:
    if isinstance(tree, exp.Paren):
        yield from _conjuncts(tree.this)
    elif isinstance(tree, exp.And):
        yield from _conjuncts(tree.this)
        yield from _conjuncts(tree.expression)
    else:
        yield tree


def _values(other: Any, earlier: dict[str, dict[str, Range]]) -> Range:
    """What the other side of a comparison may be: a number, or a column of an earlier step."""
    if isinstance(other, exp.Neg) and isinstance(other.this, exp.Literal) and not other.this.is_string:
        return (-float(other.this.this), True) * 2
    if isinstance(other, exp.Literal) and not other.is_string:
        return (float(other.this), True) * 2
    if isinstance(other, exp.Column) and other.table:
        return earlier.get(other.table, {}).get(other.name, ALL)
    return ALL


def _limited(operator: str, of: Range) -> Range:
    """What a column may be that stands in this relation to something."""
    least, least_in, greatest, greatest_in = of
    if operator == "EQ":
        return of
    if operator in ("LT", "LTE"):
        return (-math.inf, True, greatest, greatest_in and operator == "LTE")
    return (least, least_in and operator == "GTE", math.inf, True)


def _both(one: Range, other: Range) -> Range:
    least = max((one[0], not one[1]), (other[0], not other[1]))
    greatest = min((one[2], one[3]), (other[2], other[3]))
    return (least[0], not least[1], greatest[0], greatest[1])


def is_empty(found: Range) -> bool:
    least, least_in, greatest, greatest_in = found
    return least > greatest or (least == greatest and not (least_in and greatest_in))


def may_fit(table: pa.Table, ranges: Mapping[str, Range]) -> pa.Array | pa.ChunkedArray:
    """Which events may fit a step that allows these ranges; a null fits none."""
    mask: Any = pa.array([True] * table.num_rows, pa.bool_())
    for name, (least, least_in, greatest, greatest_in) in ranges.items():
        if name not in table.column_names or not _is_number(table.schema.field(name).type):
            continue
        column = table.column(name)
        above = pc.greater_equal(column, least) if least_in else pc.greater(column, least)
        below = pc.less_equal(column, greatest) if greatest_in else pc.less(column, greatest)
        mask = pc.and_(mask, pc.fill_null(pc.and_(above, below), False))
    return mask


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
