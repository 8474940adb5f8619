"""Turns Arrow columns into the typed tuples that a view holds, column by column, because row by row takes far longer.

`to_pylist` of a timestamp column costs 5 us a value and a window 12 us; here equal moments and equal windows are one
object each, so that a million rows of a minute's window hold one window and are unpacked in a second.

A key is a row's key columns made hashable: an object becomes a tuple of its values, NaN is one value.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from penstock.change import DELETE, OP, Key, Row

Values = list[Any]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def unpack(array: pa.Array) -> Values:
    """A column's values as Python objects: aware UTC datetimes, dicts for structs and maps, lists for arrays."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _timestamps(array)
    if pa.types.is_date32(kind):
        return _dates(array)
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array)
    if array.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return list(array.to_numpy(zero_copy_only=False).tolist())
    return list(array.to_pylist())


def _timestamps(array: pa.Array) -> Values:
    whole = array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())
    values = list(whole.to_pylist() if array.null_count else whole.to_numpy().tolist())
    epoch = _EPOCH if array.type.tz else _EPOCH.replace(tzinfo=None)
    return _moments(epoch, dt.timedelta(microseconds=1), values)


def _dates(array: pa.Array) -> Values:
    return _moments(_EPOCH.date(), dt.timedelta(days=1), array.cast(pa.int32()).to_pylist())


def _moments(epoch: dt.date, unit: dt.timedelta, values: Values) -> Values:
    moments = {value: _moment(epoch, unit, value) for value in set(values)}
    return [moments[value] for value in values]


def _moment(epoch: dt.date, unit: dt.timedelta, value: int | None) -> dt.date | None:
    """None also beyond the year 9999: Python has no such moment, and one row must not stop a view."""
    try:
        return None if value is None else epoch + value * unit
    except OverflowError:
        return None


def _structs(array: pa.StructArray) -> Values:
    names = [field.name for field in array.type]
    columns = [unpack(child) for child in array.flatten()]
    if all(pa.types.is_timestamp(field.type) for field in array.type):
        one: dict[tuple[Any, ...], dict[str, Any]] = {}
        structs = [
            one.get(v) or one.setdefault(v, dict(zip(names, v, strict=True))) for v in zip(*columns, strict=True)
        ]
    else:
        structs = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return _with_nulls(array, structs)


def _lists(array: pa.ListArray) -> Values:
    values = unpack(array.values)
    ends = array.offsets.to_pylist()
    return _with_nulls(array, [values[a:b] for a, b in pairwise(ends)])


def _maps(array: pa.MapArray) -> Values:
    keys, items = unpack(array.keys), unpack(array.items)
    ends = array.offsets.to_pylist()
    spans = pairwise(ends)
    return _with_nulls(array, [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in spans])


def _with_nulls(array: pa.Array, values: Values) -> Values:
    if array.null_count == 0:
        return values
    return [v if valid else None for v, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def rows_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[Row]:
    """The batch as tuples of these columns."""
    return list(zip(*(unpack(batch.column(name)) for name in names), strict=True))


def dicts_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The batch as dicts of all its columns, as `to_pylist` gives them; a moment that Python does not have is None."""
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in rows_of(batch, names)]


def ops_of(batch: pa.RecordBatch, names: Sequence[str], key: Sequence[str]) -> dict[Key, Row | None]:
    """What a changelog's batch does, by key: the row, or None for a delete. Of two for one key the last counts."""
    columns = {name: unpack(batch.column(name)) for name in names}
    keys = zip(*(_freezer(batch.schema.field(name).type)(columns[name]) for name in key), strict=True)
    rows = zip(*(columns[name] for name in names), strict=True)
    codes = batch.column(OP).to_pylist()
    if DELETE not in codes:
        return dict(zip(keys, rows, strict=True))
    marked = (None if code == DELETE else row for code, row in zip(codes, rows, strict=True))
    return dict(zip(keys, marked, strict=True))


def _freezer(kind: pa.DataType) -> Callable[[Values], Values]:
    if pa.types.is_nested(kind) or pa.types.is_floating(kind):
        return lambda values: [frozen(value) for value in values]
    return lambda values: values


def frozen(value: Any) -> Any:
    """A key's value as something hashable that is equal when the value is.

    >>> frozen({"start": 1, "end": [2, 3]})
    (1, (2, 3))
    """
    if isinstance(value, dict):
        return tuple(frozen(item) for item in value.values())
    if isinstance(value, list):
        return tuple(frozen(item) for item in value)
    return math.nan if isinstance(value, float) and value != value else value
