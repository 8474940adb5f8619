"""The pieces of JSON Schema that routes, messages and rows are described with, and a short way to write them down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Spec = dict[str, Any]

WHOLE: Spec = {"type": "integer", "minimum": 0}
FLAG: Spec = {"type": "boolean"}
NUMBER: Spec = {"type": "number"}
NULLABLE: Spec = {"type": ["string", "null"]}
ANYTHING: Spec = {"type": "object"}
_TYPES: dict[str, Spec] = {
    "text": {"type": "string"},
    "whole": WHOLE,
    "integer": {"type": "integer"},
    "number": NUMBER,
    "flag": FLAG,
    "object": ANYTHING,
    "any": {},
}


def fields(written: str) -> dict[str, Spec]:
    """The fields of an object: names, each with its type behind a colon unless it is a text.

    A `?` means that it may be null, `[..]` a list, `{..}` an object with such values, `a|b` one of these texts, and a
    name with a capital a component.

    >>> fields("view, limit: integer?, rows: [Row], state: on|off")["limit"]
    {'type': ['integer', 'null']}
    """
    parts = (part.strip().partition(":") for part in written.split(",") if part.strip())
    return {
        name.removesuffix("?"): _typed(kind.strip() or ("text?" if name.endswith("?") else "text"))
        for name, _, kind in parts
    }


def _typed(kind: str) -> Spec:
    if kind.endswith("?"):
        inner = _typed(kind[:-1])
        if "$ref" in inner:
            return {"oneOf": [inner, {"type": "null"}]}
        values = {"enum": [*inner["enum"], None]} if "enum" in inner else {}
        return inner | {"type": [inner["type"], "null"]} | values
    if kind[0] == "[":
        return array(_typed(kind[1:-1]))
    if kind[0] == "{":
        return {"type": "object", "additionalProperties": _typed(kind[1:-1])}
    if "|" in kind:
        return choice(*kind.split("|"))
    return ref(kind) if kind[0].isupper() else _TYPES[kind]


def text(description: str | None = None) -> Spec:
    return {"type": "string"} | ({"description": description} if description else {})


def choice(*values: str) -> Spec:
    return {"type": "string", "enum": list(values)}


def array(items: Spec) -> Spec:
    return {"type": "array", "items": items}


def obj(written: str = "", /, **more: Spec) -> Spec:
    return {"type": "object", "properties": fields(written) | more}


def record(written: str = "", /, **more: Spec) -> Spec:
    """An object that has all of these."""
    whole = obj(written, **more)
    return whole | {"required": list(whole["properties"])}


def also(schema: Spec, written: str = "", /, **optional: Spec) -> Spec:
    """The same object, which may have these too."""
    return schema | {"properties": schema["properties"] | fields(written) | optional}


def ref(name: str) -> Spec:
    return {"$ref": f"#/components/schemas/{name}"}


def one_of(names: Iterable[str]) -> Spec:
    return {"oneOf": [ref(name) for name in names]}


def message(kind: str, payload: Spec, **more: Spec) -> Spec:
    """A message of AsyncAPI."""
    return {"name": kind, "contentType": "application/json", "payload": payload, **more}
