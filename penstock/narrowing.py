"""Finds what a class takes less of than the one before it, from their JSON Schemas: for that, producers are rejected.

Only what can be read off is found: values of an enum, null, bounds and formats. What the columns cannot hold is told by
`evolution.py`, and is refused; this is only warned of, because a class is often made narrower on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
    elif gone := [value for value in old["enum"] if value not in new["enum"]]:
        yield f"{what} no longer takes {_listed(gone)}"


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
