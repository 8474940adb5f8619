"""Finds the fields of an event that its class does not declare, at any depth, and leaves their JSON as it stands.

Built once per class, from what msgspec knows of it. Only streams with `unknown="keep"` or `"reject"` pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import msgspec.inspect as mi

Found = Iterator[tuple[str, msgspec.Raw]]
Finder = Callable[[bytes | msgspec.Raw, str], Found]

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])


def unknown_fields(kind: type[msgspec.Struct]) -> Callable[[bytes], dict[str, msgspec.Raw]]:
    """A function from an event's JSON to its undeclared fields, by path (`extra`, `group.extra`, `topics[0].extra`).

    >>> class Order(msgspec.Struct):
    ...     amount: int
    >>> sorted(unknown_fields(Order)(b'{"amount": 1, "note": "x"}'))
    ['note']
    """
    find = _finder(mi.type_info(kind))
    return lambda raw: dict(find(raw, "")) if find else {}


def _finder(info: mi.Type) -> Finder | None:
    """How to look into a value of this type; None where nothing undeclared can be."""
    if isinstance(info, mi.Metadata):
        return _finder(info.type)
    if isinstance(info, mi.UnionType):
        return next((find for find in map(_finder, info.types) if find), None)
    if isinstance(info, mi.StructType):
        return _in_struct(info)
    if isinstance(info, mi.CollectionType):
        find = _finder(info.item_type)
        return _in_array(find) if find else None
    if isinstance(info, mi.DictType):
        find = _finder(info.value_type)
        return _in_map(find) if find else None
    return None


def _in_struct(info: mi.StructType) -> Finder | None:
    if info.array_like:
        return None
    fields = {field.encode_name: _finder(field.type) for field in info.fields}
    if info.tag_field:
        fields[info.tag_field] = None

    def find(raw: bytes | msgspec.Raw, path: str) -> Found:
        for name, value in _members(raw).items():
            where = f"{path}.{name}" if path else name
            if name not in fields:
                yield where, value
            elif inner := fields[name]:
                yield from inner(value, where)

    return find


def _in_array(inner: Finder) -> Finder:
    def find(raw: bytes | msgspec.Raw, path: str) -> Found:
        values = _array.decode(raw) if bytes(memoryview(raw)[:1]) == b"[" else []
        for index, value in enumerate(values):
            yield from inner(value, f"{path}[{index}]")

    return find


def _in_map(inner: Finder) -> Finder:
    def find(raw: bytes | msgspec.Raw, path: str) -> Found:
        for name, value in _members(raw).items():
            yield from inner(value, f"{path}.{name}")

    return find


def _members(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The members of an object; none of a null, which stands where a field is optional."""
    return _object.decode(raw) if bytes(memoryview(raw)[:1]) != b"n" else {}
