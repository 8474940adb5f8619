"""Brings columns that were sent under the types of a stream's class, or says which column cannot be brought there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.collect.judging.rejection import short, unknown_detail
from penstock.errors import BadBodyError
from penstock.evolution import filled, has_default
from penstock.schema import simple_type

Fields = Iterable[pa.Field]
"""Of a schema, or of a struct."""


def check_columns(given: Fields, wanted: Fields, path: str = "") -> None:
    """Raises `BadBodyError` when a required column is missing, or one has a type that its field cannot have."""
    there = {field.name: field for field in given}
    for field in wanted:
        name = f"{path}{field.name}"
        if field.name in there:
            _check_type(there[field.name].type, field.type, name)
        elif not has_default(field):
            raise _unfit(f"'{name}': expected a column, found none")


def _check_type(given: pa.DataType, wanted: pa.DataType, name: str) -> None:
    types = pa.types
    if types.is_struct(given) and types.is_struct(wanted):
        check_columns(given, wanted, f"{name}.")
    elif _is_list(given) and _is_list(wanted):
        _check_type(given.value_type, wanted.value_type, f"{name}[]")
    elif types.is_map(given) and types.is_map(wanted) and _is_string(given.key_type):
        _check_type(given.item_type, wanted.item_type, f"{name}{{}}")
    elif not (types.is_null(given) or any(is_given(given) and is_wanted(wanted) for is_given, is_wanted in _CASTS)):
        raise _unfit(f"'{name}': expected {simple_type(wanted)}, found {short(simple_type(given))}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


_CASTS = (
    (_is_number, _is_number),
    (_is_number, pa.types.is_decimal),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_boolean, pa.types.is_boolean),
    (_is_string, _is_string),
    (_is_binary, _is_binary),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (pa.types.is_date, pa.types.is_date),
)
"""What may become what; whether each value fits is seen when it is done."""


def fit(array: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    """A column under its field's type; raises `pa.ArrowInvalid` when a value does not fit."""
    kind = field.type
    if array is None:
        return filled(field, rows)
    if array.type.equals(kind):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind):
        children = [fit(_child(array, child.name), child, len(array)) for child in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))
    if pa.types.is_list(kind):
        values = fit(array.values, kind.value_field, len(array.values))
        return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, type=kind, mask=pc.is_null(array))
    if pa.types.is_map(kind):
        items = fit(array.items, kind.item_field, len(array.items))
        keys = array.keys.cast(pa.string())
        return pa.MapArray.from_arrays(array.offsets, keys, items, mask=pc.is_null(array))
    return pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=True))


def _child(array: pa.StructArray, name: str) -> pa.Array | None:
    index = array.type.get_field_index(name)
    return array.field(index) if index >= 0 else None


def undeclared(given: Fields, wanted: Fields, path: str = "") -> Iterator[str]:
    """The paths of columns that no field has; inside lists they end with `[]` or `{}`."""
    known = {field.name: field for field in wanted}
    for field in given:
        name = f"{path}{field.name}"
        if field.name not in known:
            yield name
        else:
            yield from _undeclared_in(field.type, known[field.name].type, name)


def _undeclared_in(given: pa.DataType, wanted: pa.DataType, name: str) -> Iterator[str]:
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        yield from undeclared(given, wanted, f"{name}.")
    elif _is_list(given) and _is_list(wanted):
        yield from _undeclared_in(given.value_type, wanted.value_type, f"{name}[]")
    elif pa.types.is_map(given) and pa.types.is_map(wanted):
        yield from _undeclared_in(given.item_type, wanted.item_type, f"{name}{{}}")


def refuse_undeclared(paths: list[str]) -> None:
    raise _unfit(unknown_detail(paths))


def _unfit(detail: str) -> BadBodyError:
    return BadBodyError(
        "the body's columns are not those of this stream",
        detail=detail,
        hint="send a column for each field that has no default, typed as the stream's class; see /openapi.json",
    )
