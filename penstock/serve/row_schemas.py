"""What rows and events look like in JSON, as JSON Schema made from their columns: `protocol.wire`, in other words."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.change import Column
from penstock.serve.openapi_parts import Spec, obj, record
from penstock.views.where.sql_types import SqlType, parse_type


def row_spec(columns: Sequence[Column], always: Sequence[str] = ()) -> Spec:
    """Rows or events with these columns; `always` are there whatever `select` says."""
    row = obj(**{column.name: _json_type(parse_type(column.type)) for column in columns})
    return row | {"required": list(always)} if always else row


def key_spec(columns: Sequence[Column], key: Sequence[str]) -> Spec:
    """A delete: all of the key's columns and nothing else."""
    return record(**{column.name: _json_type(parse_type(column.type)) for column in columns if column.name in key})


def _json_type(kind: SqlType) -> Spec:
    if kind.kind == "struct":
        inner = {name: _json_type(arg) for name, arg in zip(kind.names, kind.args, strict=True)}
        return {"type": ["object", "null"], "properties": inner}
    if kind.kind == "array":
        return {"type": ["array", "null"], "items": _json_type(kind.args[0])}
    if kind.kind == "map":
        return {"type": ["object", "null"], "additionalProperties": _json_type(kind.args[1])}
    return _JSON_TYPES.get(kind.kind, {"type": ["string", "null"]})


_JSON_TYPES: dict[str, Spec] = {
    "tinyint": {"type": ["integer", "null"]},
    "smallint": {"type": ["integer", "null"]},
    "int": {"type": ["integer", "null"]},
    "bigint": {"type": ["integer", "string", "null"], "description": "A string beyond 2^53."},
    "float": {"type": ["number", "null"]},
    "double": {"type": ["number", "null"]},
    "boolean": {"type": ["boolean", "null"]},
    "timestamp": {"type": ["string", "null"], "format": "date-time"},
    "date": {"type": ["string", "null"], "format": "date"},
    "binary": {"type": ["string", "null"], "contentEncoding": "base64"},
}
