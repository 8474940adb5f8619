"""The pieces of JSON Schema that routes, messages and rows are described with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Spec = dict[str, Any]

WHOLE: Spec = {"type": "integer", "minimum": 0}
FLAG: Spec = {"type": "boolean"}
NUMBER: Spec = {"type": "number"}
NULLABLE: Spec = {"type": ["string", "null"]}
ANYTHING: Spec = {"type": "object"}


def text(description: str | None = None) -> Spec:
    return {"type": "string"} | ({"description": description} if description else {})


def choice(*values: str) -> Spec:
    return {"type": "string", "enum": list(values)}


def array(items: Spec) -> Spec:
    return {"type": "array", "items": items}


def obj(**properties: Spec) -> Spec:
    return {"type": "object", "properties": properties}


def record(**properties: Spec) -> Spec:
    """An object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def also(schema: Spec, **optional: Spec) -> Spec:
    """The same object, which may have these too."""
    return schema | {"properties": schema["properties"] | optional}


def ref(name: str) -> Spec:
    return {"$ref": f"#/components/schemas/{name}"}


def one_of(names: Iterable[str]) -> Spec:
    return {"oneOf": [ref(name) for name in names]}


def message(kind: str, payload: Spec, **more: Spec) -> Spec:
    """A message of AsyncAPI."""
    return {"name": kind, "contentType": "application/json", "payload": payload, **more}
