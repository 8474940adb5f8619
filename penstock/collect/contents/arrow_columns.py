"""Brings columns that were sent under the types of a stream's class, and finds the rows that the class may not take.

Types alone do not say everything: nulls where none may be, values outside an enum or a bound, texts that are too long.
Whole columns are looked at. A row that is fine may be suspected, but one that is not never passes: who is suspected is
judged like an event that came as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec.inspect as mi
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.collect.judging.incoming_events import Mask
from penstock.collect.judging.rejection import short, unknown_detail
from penstock.errors import BadBodyError
from penstock.evolution import filled, has_default
from penstock.schema import simple_type

Fields = Iterable[pa.Field]
"""Of a schema, or of a struct."""


def check_columns(given: Fields, wanted: Fields, path: str = "") -> None:
    """Raises `BadBodyError` when a required column is missing, or one has a type that its field cannot have."""
    types = {field.name: field.type for field in given}
    for field in wanted:
        name = f"{path}{field.name}"
        if field.name in types:
            _check_type(types[field.name], field.type, name)
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
    declared = {field.name: field.type for field in wanted}
    for field in given:
        name = f"{path}{field.name}"
        if field.name not in declared:
            yield name
        else:
            yield from _undeclared_in(field.type, declared[field.name], name)


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


_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_SIMPLE = (
    mi.BoolType,
    mi.IntType,
    mi.FloatType,
    mi.StrType,
    mi.BytesType,
    mi.DateTimeType,
    mi.DateType,
    mi.DecimalType,
    mi.EnumType,
    mi.LiteralType,
    mi.UUIDType,
)


def can_tell(info: mi.Type) -> bool:
    """Whether what a type asks of its values is known here; otherwise every event must be judged alone."""
    if isinstance(info, mi.Metadata):
        return can_tell(info.type)
    if isinstance(info, mi.UnionType):
        return all(can_tell(kind) for kind in info.types)
    if isinstance(info, mi.StructType):
        return (
            not info.forbid_unknown_fields and info.tag is None and all(can_tell(field.type) for field in info.fields)
        )
    if isinstance(info, mi.CollectionType):
        bounded = info.min_length is not None or info.max_length is not None
        return isinstance(info, mi.ListType) and not bounded and can_tell(info.item_type)
    if isinstance(info, mi.DictType):
        return info.min_length is None and info.max_length is None and can_tell(info.value_type)
    strange = ("pattern", "multiple_of", "tz")
    return isinstance(info, (*_SIMPLE, mi.NoneType)) and all(getattr(info, name, None) is None for name in strange)


def suspects(array: pa.Array, info: mi.Type, most_bytes: int) -> Mask | None:
    """Which rows; None for none of them."""
    kind, nullable = _unwrapped(info)
    masks: list[Mask] = []
    if array.null_count and not nullable:
        masks.append(_mask(array.is_null()))
    if isinstance(kind, mi.StructType):
        masks += _in_struct(array, kind, most_bytes)
    elif isinstance(kind, mi.CollectionType):
        masks += _in_parts(array, suspects(array.values, kind.item_type, most_bytes))
    elif isinstance(kind, mi.DictType):
        masks += _in_parts(array, suspects(array.items, kind.value_type, most_bytes))
    else:
        masks += [mask for mask in (_mask(each) for each in _doubts(array, kind, most_bytes)) if mask.any()]
    return np.logical_or.reduce(masks) if masks else None


def _unwrapped(info: mi.Type) -> tuple[mi.Type, bool]:
    if isinstance(info, mi.Metadata):
        return _unwrapped(info.type)
    if isinstance(info, mi.UnionType):
        rest = [kind for kind in info.types if not isinstance(kind, mi.NoneType)]
        return _unwrapped(rest[0])[0], len(rest) < len(info.types)
    return info, False


def _in_struct(array: pa.StructArray, info: mi.StructType, most_bytes: int) -> list[Mask]:
    valid = _mask(array.is_valid()) if array.null_count else None
    masks = []
    for index, field in enumerate(info.fields):
        mask = suspects(array.field(index), field.type, most_bytes)
        if mask is not None:
            masks.append(mask if valid is None else mask & valid)
    return masks


def _in_parts(array: pa.Array, inner: Mask | None) -> list[Mask]:
    """The rows that hold a suspected element."""
    if inner is None:
        return []
    before, offsets = np.concatenate([[0], np.cumsum(inner)]), array.offsets.to_numpy()
    return [before[offsets[1:]] > before[offsets[:-1]]]


def _doubts(array: pa.Array, info: mi.Type, most_bytes: int) -> list[pa.Array]:
    """For each thing that the type asks of a value, which rows do not have it; nulls are judged elsewhere."""
    if isinstance(info, mi.EnumType | mi.LiteralType):
        values = [member.value for member in info.cls] if isinstance(info, mi.EnumType) else list(info.values)
        listed = pc.is_in(array, value_set=pa.array(values, array.type))
        return [pc.and_(array.is_valid(), pc.invert(listed))]
    if isinstance(info, mi.UUIDType):
        return [pc.invert(pc.match_substring_regex(array, _UUID))]
    if isinstance(info, mi.StrType | mi.BytesType):
        bounds = {"min_length": pc.less, "max_length": pc.greater}
        lengths = pc.utf8_length(array) if isinstance(info, mi.StrType) else pc.binary_length(array)
        long = pc.greater(pc.binary_length(array), most_bytes)
        limits = ((outside, getattr(info, name)) for name, outside in bounds.items())
        return [long, *(outside(lengths, limit) for outside, limit in limits if limit is not None)]
    bounds = {"ge": pc.less, "gt": pc.less_equal, "le": pc.greater, "lt": pc.greater_equal}
    limits = ((outside, getattr(info, name, None)) for name, outside in bounds.items())
    return [outside(array, limit) for outside, limit in limits if limit is not None]


def _mask(array: pa.Array) -> Mask:
    whole = array.fill_null(False) if array.null_count else array
    mask: Mask = whole.to_numpy(zero_copy_only=False)
    return mask
