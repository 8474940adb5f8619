"""Finds, whole columns at a time, the rows that a stream's class may not take: what the types alone do not say.

Nulls where none may be, values outside an enum or a bound, texts that are too long. It may suspect a row that is fine,
but never passes one that is not: who is suspected is judged like an event that came as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec.inspect as mi
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.collect.judging.arrival import Mask

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
    found: list[Mask] = []
    if array.null_count and not nullable:
        found.append(_mask(array.is_null()))
    if isinstance(kind, mi.StructType):
        found += _in_struct(array, kind, most_bytes)
    elif isinstance(kind, mi.CollectionType):
        offsets = array.offsets.to_numpy()
        found += _in_parts(array, offsets, suspects(array.values, kind.item_type, most_bytes))
    elif isinstance(kind, mi.DictType):
        offsets = array.offsets.to_numpy()
        found += _in_parts(array, offsets, suspects(array.items, kind.value_type, most_bytes))
    else:
        found += [mask for mask in (_mask(each) for each in _doubts(array, kind, most_bytes)) if mask.any()]
    return np.logical_or.reduce(found) if found else None


def _unwrapped(info: mi.Type) -> tuple[mi.Type, bool]:
    if isinstance(info, mi.Metadata):
        return _unwrapped(info.type)
    if isinstance(info, mi.UnionType):
        rest = [kind for kind in info.types if not isinstance(kind, mi.NoneType)]
        return _unwrapped(rest[0])[0], len(rest) < len(info.types)
    return info, False


def _in_struct(array: pa.StructArray, info: mi.StructType, most_bytes: int) -> list[Mask]:
    there = _mask(array.is_valid()) if array.null_count else None
    found = []
    for index, field in enumerate(info.fields):
        mask = suspects(array.field(index), field.type, most_bytes)
        if mask is not None:
            found.append(mask if there is None else mask & there)
    return found


def _in_parts(array: pa.Array, offsets: Any, inner: Mask | None) -> list[Mask]:
    """The rows that hold a suspected element."""
    if inner is None:
        return []
    before = np.concatenate([[0], np.cumsum(inner)])
    return [before[offsets[1:]] > before[offsets[:-1]]]


def _doubts(array: pa.Array, info: mi.Type, most_bytes: int) -> list[pa.Array]:
    """For each thing that the type asks of a value, which rows do not have it; nulls are judged elsewhere."""
    if isinstance(info, mi.EnumType | mi.LiteralType):
        values = [member.value for member in info.cls] if isinstance(info, mi.EnumType) else list(info.values)
        known = pc.is_in(array, value_set=pa.array(values, array.type))
        return [pc.and_(array.is_valid(), pc.invert(known))]
    if isinstance(info, mi.UUIDType):
        return [pc.invert(pc.match_substring_regex(array, _UUID))]
    if isinstance(info, mi.StrType | mi.BytesType):
        bounds = {"min_length": pc.less, "max_length": pc.greater}
        lengths = pc.utf8_length(array) if isinstance(info, mi.StrType) else pc.binary_length(array)
        long = pc.greater(pc.binary_length(array), most_bytes)
        asked = ((outside, getattr(info, name)) for name, outside in bounds.items())
        return [long, *(outside(lengths, length) for outside, length in asked if length is not None)]
    bounds = {"ge": pc.less, "gt": pc.less_equal, "le": pc.greater, "lt": pc.greater_equal}
    limits = ((outside, getattr(info, name, None)) for name, outside in bounds.items())
    return [outside(array, limit) for outside, limit in limits if limit is not None]


def _mask(array: pa.Array) -> Mask:
    whole = array.fill_null(False) if array.null_count else array
    mask: Mask = whole.to_numpy(zero_copy_only=False)
    return mask
