"""Classes change while events and producers of the old ones are still about: which changes may be, and how old reads.

1. A change is refused when an event that is stored could not be read under the new class, or when a producer that does
   not know of it would be rejected for what it leaves out.
2. What is read under a newer schema has the newer types: a new field has its default, a removed one is gone, a wider
   type holds what the narrower one held.
3. A reader with an older schema reads newer events too, as long as they fit it; one that does not is an error that
   says so, never another value.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaChangeError
from penstock.schema import DEFAULT, simple_type

_LONG_DIGITS = 19
"""Digits of the largest 64-bit integer."""


def changes_refused(old: pa.Schema | pa.StructType, new: pa.Schema | pa.StructType, path: str = "") -> list[str]:
    """Why `new` cannot follow `old`; empty when it can."""
    before = {field.name: field for field in old}
    problems: list[str] = []
    for field in new:
        where = f"{path}{field.name}"
        if field.name.startswith("_"):  # the system's own: null in events from before it was there
            continue
        if field.name not in before:
            if not has_default(field):
                problems.append(f"'{where}' is new and has no default, so older events cannot have it")
            continue
        problems += _type_refused(before[field.name].type, field.type, where)
        if has_default(before[field.name]) and not has_default(field):
            problems.append(f"'{where}' could be left out and is now required, so older events may not have it")
    return problems


def removed_fields(old: pa.Schema | pa.StructType, new: pa.Schema | pa.StructType, path: str = "") -> list[str]:
    """The fields, by path, that older producers still send and `new` does not know."""
    after = {field.name: field.type for field in new}
    removed: list[str] = []
    for field in old:
        if field.name not in after:
            removed += [] if field.name.startswith("_") else [f"{path}{field.name}"]
        else:
            removed += _removed_within(field.type, after[field.name], f"{path}{field.name}")
    return removed


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether the new type holds all that the old one could, and JSON of the old one is JSON of the new one."""
    if pa.types.is_int64(old):
        return pa.types.is_float64(new) or (pa.types.is_decimal(new) and _whole_digits(new) >= _LONG_DIGITS)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale) and _whole_digits(new) >= _whole_digits(old)
    return False


def _whole_digits(kind: pa.DataType) -> int:
    return int(kind.precision - kind.scale)


def _type_refused(old: pa.DataType, new: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return changes_refused(old, new, f"{path}.")
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _type_refused(old.value_type, new.value_type, f"{path}[]")
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _type_refused(old.item_type, new.item_type, f"{path}{{}}")
    if old.equals(new) or is_wider(old, new):
        return []
    return [f"'{path}' was {simple_type(old)} and is now {simple_type(new)}"]


def _removed_within(old: pa.DataType, new: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return removed_fields(old, new, f"{path}.")
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _removed_within(old.value_type, new.value_type, f"{path}[]")
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _removed_within(old.item_type, new.item_type, f"{path}{{}}")
    return []


# From stored columns to those that are wanted


def adapt(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """A stored batch under a newer (or narrower) schema: missing fields get their default, removed ones go."""
    if batch.schema.equals(target):
        return batch
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        columns.append(_adapt_array(batch.column(index) if index >= 0 else None, field, batch.num_rows, field.name))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _adapt_array(array: pa.Array | None, field: pa.Field, rows: int, path: str) -> pa.Array:
    if array is None:
        return filled(field, rows)
    kind = field.type
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        children = [_adapt_array(_child(array, child.name), child, rows, f"{path}.{child.name}") for child in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        inner = array.flatten()
        values = _adapt_array(inner, kind.value_field, len(inner), f"{path}[]")
        return pa.ListArray.from_arrays(_offsets(array), values, type=kind)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return _adapt_map(array, kind, path)
    return _cast(array, kind, path)


def _adapt_map(array: pa.MapArray, kind: pa.MapType, path: str) -> pa.Array:
    entries = array.cast(pa.list_(pa.struct([pa.field("key", kind.key_type), pa.field("value", array.type.item_type)])))
    inner = entries.flatten()
    items = _adapt_array(_child(inner, "value"), kind.item_field, len(inner), f"{path}{{}}")
    return pa.MapArray.from_arrays(_offsets(entries), _child(inner, "key"), items, type=kind)


def _cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """To a wider type always; to a narrower one, for a reader with an older class, where every value fits."""
    whole_to_float = pa.types.is_int64(array.type) and pa.types.is_float64(kind)
    try:
        return array.cast(kind, safe=not whole_to_float)  # beyond 2^53 the nearest float, as JSON readers have it
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaChangeError(
            f"'{path}' was written as {simple_type(array.type)} and does not fit {simple_type(kind)}",
            detail=str(error),
            hint="the stream's class has changed since this process started: start it again",
        ) from error


def _child(array: pa.StructArray, name: str) -> pa.Array | None:
    index = array.type.get_field_index(name)
    return array.field(index) if index >= 0 else None


def _offsets(array: pa.ListArray) -> pa.Array:
    """Offsets into `array.flatten()` that keep null lists null."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    missing = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(offsets, pa.int32(), mask=missing) if missing.any() else pa.array(offsets, pa.int32())


def has_default(field: pa.Field) -> bool:
    """Whether an event may come without this field."""
    return DEFAULT in (field.metadata or {})


def default_of(field: pa.Field) -> pa.Scalar:
    """What the field is where an event does not have it; a null without a default."""
    default = msgspec.json.decode((field.metadata or {}).get(DEFAULT, b"null"))
    return pa.scalar(_typed_default(default, field.type), field.type)


def filled(field: pa.Field, rows: int) -> pa.Array:
    """So many rows of a field's default."""
    default = default_of(field)
    return pa.repeat(default, rows) if default.is_valid and rows else pa.nulls(rows, field.type)


def _typed_default(value: Any, kind: pa.DataType) -> Any:
    """A default that went through JSON, as what Arrow takes for its type."""
    if isinstance(value, str) and pa.types.is_decimal(kind):
        return decimal.Decimal(value)
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(value)
    if isinstance(value, str) and pa.types.is_date(kind):
        return dt.date.fromisoformat(value)
    if isinstance(value, str) and pa.types.is_binary(kind):
        return base64.b64decode(value)
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_typed_default(item, kind.value_type) for item in value]
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {field.name: _typed_default(value.get(field.name), field.type) for field in kind}
    if isinstance(value, dict) and pa.types.is_map(kind):
        return [(key, _typed_default(item, kind.item_type)) for key, item in value.items()]
    return value


# What a class takes less of than the one before it, from their JSON Schemas: values of an enum, null, bounds, formats.
# Producers are rejected for that; it is only warned of, because a class is often made narrower on purpose.

Spec = Mapping[str, Any]

_AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACTLY = ("pattern", "format", "multipleOf")
_NAMED = 5
"""Values that are named in one line."""


def narrowed(old: Spec, new: Spec) -> list[str]:
    """What a producer of the class `old` may be rejected for by the class `new`, a line each.

    >>> narrowed({"type": "string"}, {"type": "string", "maxLength": 3})
    ['the event now has maxLength 3']
    """
    return list(_narrower(_Document(old), _Document(new), ""))


class _Document:
    """A place in a JSON Schema, with its references followed."""

    def __init__(self, whole: Spec, here: Spec | None = None) -> None:
        self.whole = whole
        here = whole if here is None else here
        while "$ref" in here:
            here = whole["$defs"][str(here["$ref"]).rpartition("/")[2]]
        options = [self._followed(option) for option in here.get("anyOf", ())]
        self.nullable = any(option.get("type") == "null" for option in options) or here.get("type") == "null"
        rest = [option for option in options if option.get("type") != "null"]
        self.here: Spec = rest[0] if rest else here

    def _followed(self, here: Spec) -> Spec:
        return _Document(self.whole, here).here

    def at(self, key: str) -> _Document | None:
        inner = self.here.get(key)
        return _Document(self.whole, inner) if isinstance(inner, dict) else None

    def fields(self) -> dict[str, _Document]:
        return {name: _Document(self.whole, inner) for name, inner in self.here.get("properties", {}).items()}


def _narrower(old: _Document, new: _Document, path: str) -> Iterator[str]:
    what = f"'{path}'" if path else "the event"
    if old.nullable and not new.nullable:
        yield f"{what} could be null and cannot be now"
    yield from _enum(old.here, new.here, what)
    if old.here.get("type") == new.here.get("type"):
        yield from _bounds(old.here, new.here, what)
    theirs = new.fields()
    for name, field in old.fields().items():
        if name in theirs:
            yield from _narrower(field, theirs[name], f"{path}.{name}" if path else name)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        before, after = old.at(key), new.at(key)
        if before is not None and after is not None:
            yield from _narrower(before, after, path + mark)


def _enum(old: Spec, new: Spec, what: str) -> Iterator[str]:
    if "enum" not in new:
        return
    if "enum" not in old:
        yield f"{what} is now one of {_listed(new['enum'])}"
    elif missing := [value for value in old["enum"] if value not in new["enum"]]:
        yield f"{what} no longer takes {_listed(missing)}"


def _bounds(old: Spec, new: Spec, what: str) -> Iterator[str]:
    for key in (*_AT_LEAST, *_AT_MOST, *_EXACTLY):
        if key not in new or new[key] == old.get(key):
            continue
        sign = 1 if key in _AT_LEAST else -1
        if key in _EXACTLY or key not in old or sign * new[key] > sign * old[key]:
            yield f"{what} now has {key} {new[key]}"


def _listed(values: list[Any]) -> str:
    more = f" and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
    return ", ".join(repr(value) for value in values[:_NAMED]) + more
