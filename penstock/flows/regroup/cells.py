"""Arrow columns as values that SQLite keeps bit by bit, and as bytes that are equal when Spark calls the values equal.

SQLite has integers, floats, texts and bytes. It turns NaN into null and forgets the sign of zero, so those two are
kept as bytes. A struct is kept as its fields, with one more value that says whether it is there; what else is nested
is pickled: the file is ours, derived, and never handed on.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa

Cells = list[Any]

_NAN, _MINUS_ZERO = b"nan", b"-0"
_FLOATS = {_NAN: math.nan, _MINUS_ZERO: -0.0}
_encode = msgspec.msgpack.Encoder().encode


def cells_of(array: pa.Array) -> list[Cells]:
    """A column as columns of SQLite: one, or for a struct one for each field and one more."""
    kind = array.type
    if pa.types.is_struct(kind):
        return [array.is_valid().to_pylist(), *(cells for child in array.flatten() for cells in cells_of(child))]
    if pa.types.is_floating(kind):
        return [[_float_cell(value) for value in array.to_pylist()]]
    if pa.types.is_temporal(kind):
        return [_integers(array).to_pylist()]
    if pa.types.is_decimal(kind):
        return [[None if value is None else str(value) for value in array.to_pylist()]]
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return [[None if value is None else pickle.dumps(value) for value in array.to_pylist()]]
    return [array.to_pylist()]


def width(kind: pa.DataType) -> int:
    """How many columns of SQLite a column takes."""
    return 1 + sum(width(kind.field(i).type) for i in range(kind.num_fields)) if pa.types.is_struct(kind) else 1


def array_of(columns: Sequence[Cells], kind: pa.DataType) -> pa.Array:
    """The reverse of `cells_of`."""
    if pa.types.is_struct(kind):
        return _struct(columns, kind)
    (cells,) = columns
    if pa.types.is_floating(kind):
        return pa.array([_FLOATS.get(cell, cell) if isinstance(cell, bytes) else cell for cell in cells], kind)
    if pa.types.is_temporal(kind):
        return pa.array(cells, _integer_type(kind)).view(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if cell is None else Decimal(cell) for cell in cells], kind)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return pa.array([None if cell is None else pickle.loads(cell) for cell in cells], kind)
    if pa.types.is_boolean(kind):
        return pa.array([None if cell is None else bool(cell) for cell in cells], kind)
    return pa.array(cells, kind)


def _struct(columns: Sequence[Cells], kind: pa.StructType) -> pa.Array:
    children, at = [], 1
    for field in kind:
        children.append(array_of(columns[at : at + width(field.type)], field.type))
        at += width(field.type)
    missing = pa.array([not there for there in columns[0]], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)


def _float_cell(value: float | None) -> Any:
    if value is None or (value == value and value != 0.0):
        return value
    if value != value:
        return _NAN
    return _MINUS_ZERO if math.copysign(1.0, value) < 0 else value


def _integers(array: pa.Array) -> pa.Array:
    return array.view(_integer_type(array.type))


def _integer_type(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


# Values that are compared


ALL = _encode(())
"""The value of no columns, which all rows have."""


_EXACT = Context(prec=76)
"""More digits than any decimal of Spark has: Python's own context rounds to 28."""


def values_of(columns: Sequence[pa.Array]) -> list[bytes]:
    """One value for each row, made of these columns: equal bytes where Spark's grouping finds equal values.

    >>> values_of([pa.array([0.0, -0.0, None])]) == values_of([pa.array([-0.0, 0.0, None])])
    True
    """
    return [_encode(row) for row in zip(*map(_comparable, columns), strict=True)]


def _comparable(array: pa.Array) -> list[Any]:
    """Null equals null, NaN is one value, zero has no sign; an integer is the same in any width."""
    kind = array.type
    if pa.types.is_struct(kind):
        rows = zip(*(_comparable(child) for child in array.flatten()), strict=True)
        return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_temporal(kind):
        return list(_integers(array).to_pylist())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = _comparable(array.flatten())
        lengths = pa.compute.list_value_length(array).to_pylist()
        found, at = [], 0
        for length in lengths:
            found.append(None if length is None else inside[at : at + length])
            at += length or 0
        return found
    if pa.types.is_decimal(kind):
        return [None if value is None else str(value.normalize(_EXACT)) for value in array.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if v is None else "nan" if v != v else v + 0.0 for v in array.to_pylist()]
    return list(array.to_pylist())
