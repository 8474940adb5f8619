"""Every message between an edge and its subscribers as JSON Schema: the one source for OpenAPI, AsyncAPI and tests.

A message has the same schema on every transport. Only on a socket it carries the `id` of its subscription, so `id` is
in the schema and required where a socket is described. Clients must ignore fields that they do not know: new ones may
come without a new version of the protocol, so nothing here forbids them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.change import Column
from penstock.declaration import StreamDef
from penstock.json_schema import WHOLE, Spec, also, array, fields, obj, record, ref, text
from penstock.route import Thing
from penstock.schema import simple_type
from penstock.views.where.sql_types import SqlType, parse_type

OF_VIEWS = ("snapshot", "changes")
OF_STREAMS = ("events",)
"""What only subscribers of a view get, or only those of a stream."""
KINDS = ("view", "stream", "channel")
"""What can be subscribed to."""
IN_POLLS = (*OF_VIEWS, "position", "reset")
"""Who asks is not told that it is slow, and what is wrong is the status of the reply."""

_ID = text("On a socket: the id of the subscription.")
_LONG: Spec = {"minimum": -(2**63), "maximum": 2**63 - 1}
_DECIMAL = r"^[+-]?[0-9]{1,18}(\.[0-9]{1,18})?$"
_MOMENT: Spec = {"type": "string", "format": "date-time"}

COMPLETE: Spec = _MOMENT | {"description": "Nothing that happened before it comes to the view any more."}
"""Left out where there is no such time: a stream that the view is made from has no `late_after`."""

Columns = Mapping[str, Sequence[Column]]


def _message(kind: str, written: str = "", /, optional: Spec | None = None, **more: Spec) -> Spec:
    return also(record(written, type={"const": kind}, **more), id=_ID, **(optional or {}))


SHARED: Spec = {
    "message.position": _message("position", "position: Position", optional={"complete": COMPLETE}),
    "message.reset": _message("reset", reason=text("Why what the subscriber holds is void; a snapshot follows.")),
    "message.stall": _message(
        "stall",
        behind=also(
            record(bytes=WHOLE | {"description": "Not read yet."}, seconds={"type": "number", "minimum": 0}),
            batches=WHOLE | {"description": "Of a view: not sent yet."},
            events=WHOLE | {"description": "Of a stream: not sent yet."},
        ),
    ),
    "message.error": _message(
        "error",
        "error: Error",
        optional={"to": {"const": "ack", "description": "An ack failed; the subscription goes on."}},
    ),
    "message.pong": _message("pong"),
    "message.subscribed": _message("subscribed", "position: Position"),
    "message.acked": _message("acked", "position: Position"),
}
"""Messages that are the same for all views and streams."""


def _snapshot(thing: Thing) -> Spec:
    parts = {"part": WHOLE | {"minimum": 1}, "parts": WHOLE | {"minimum": 2}}
    return _message("snapshot", optional=parts | {"complete": COMPLETE}, **_head(thing), rows=array(ref(thing.name)))


def _changes(thing: Thing) -> Spec:
    when = _MOMENT | {"description": "When the newest event of the batch was taken at the door."}
    rows, keys = array(ref(thing.name)), array(ref(f"{thing.name}.key"))
    late = keys | {"description": "Rows of closed windows that late events have changed."}
    told = {"accepted": when, "corrected": late, "complete": COMPLETE}
    return _message("changes", optional=told, **_head(thing), upserts=rows, deletes=keys)


def _head(thing: Thing) -> Spec:
    return {thing.kind: {"const": thing.target}, "position": ref("Position")}


def polled_names(thing: Thing) -> list[str]:
    """The schemas of all messages that a long poll of a view may bring."""
    return [f"{thing.name}.{kind}" if kind in OF_VIEWS else f"message.{kind}" for kind in IN_POLLS]


# Of one app


def event_schemas(streams: Sequence[StreamDef]) -> tuple[dict[str, Spec], Spec]:
    """For each stream the schema of its class, and all the classes that these refer to, under `event.<class>`."""
    kinds = [stream.events.kind for stream in streams]
    schemas, classes = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/event.{name}")
    of_streams = {s.name: schema for s, schema in zip(streams, schemas, strict=True)}
    return of_streams, {f"event.{name}": _precise(schema) for name, schema in classes.items()}


def _precise(schema: Any) -> Any:
    """Also what the class leaves unsaid: numbers have 64 bits, and what a decimal number looks like."""
    if isinstance(schema, list):
        return [_precise(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    precise = {name: _precise(value) for name, value in schema.items()}
    if precise.get("type") == "integer" and not precise.keys() & {"minimum", "maximum", "enum"}:
        return precise | _LONG
    return precise | ({"pattern": _DECIMAL} if precise.get("format") == "decimal" else {})


def view_schemas(thing: Thing, columns: Sequence[Column], key: Sequence[str] | None) -> Spec:
    """Its rows, keys and messages. `key` is None until it was built."""
    shown = [column.name for column in columns if column.name in (key or ())]
    return {
        thing.name: row_spec(columns, shown),
        f"{thing.name}.key": obj() if key is None else key_spec(columns, shown),
        f"{thing.name}.snapshot": _snapshot(thing),
        f"{thing.name}.changes": _changes(thing),
    }


def stream_schemas(thing: Thing, columns: Sequence[Column]) -> Spec:
    """Its events and messages."""
    event = row_spec(columns, ["_position"])
    event["properties"] = {"_position": ref("Position")} | event["properties"]
    events = _message("events", **_head(thing), events=array(ref(thing.name)))
    return {thing.name: event, f"{thing.name}.events": events}


def columns_of(schema: pa.Schema) -> list[Column]:
    return [Column(field.name, simple_type(field.type)) for field in schema]


# Rows and events in JSON, as `protocol.wire` writes them


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


_JSON_TYPES: dict[str, Spec] = fields(
    "tinyint: integer?, smallint: integer?, int: integer?, float: number?, double: number?, boolean: flag?"
) | {
    "bigint": {"type": ["integer", "string", "null"], "description": "A string beyond 2^53."},
    "timestamp": {"type": ["string", "null"], "format": "date-time"},
    "date": {"type": ["string", "null"], "format": "date"},
    "binary": {"type": ["string", "null"], "contentEncoding": "base64"},
}

# What a client sends

_NAMES: Spec = {"type": ["string", "array", "null"], "items": {"type": "string"}}
_CLIENTS_ID: Spec = {"type": "string", "maxLength": 200}
_QUERY: Spec = {
    "where": {"type": ["string", "null"], "description": "A condition in SQL."},
    "params": {"type": ["object", "null"], "description": "Values of the parameters (`:name`) in `where`."},
    "select": _NAMES | {"description": "Columns; of a view the key's are always among them."},
    "order_by": _NAMES | {"description": "Columns, `-` before one turns it around; views only."},
    "limit": {"type": ["integer", "null"], "minimum": 0, "description": "Rows at most; null: all; views only."},
    "since": {"type": ["string", "null"], "description": "A position to resume from; of a stream also start or end."},
    "name": {
        "type": ["string", "null"],
        "pattern": "^[A-Za-z0-9._-]{1,100}$",
        "description": "Under which the server remembers the positions that are acknowledged.",
    },
    "after": text("An ack: the snapshot has absorbed that event; views only."),
    "at_least": text("A position: the snapshot is not before it; views only."),
    "wait": {"type": ["number", "string"], "description": "Seconds to wait for these two."},
}


def subscribe(*, named: bool) -> Spec:
    """On the socket of a view, stream or channel its name need not be given; on the one for all it must be."""
    message = also(record(type={"const": "subscribe"}), id=_CLIENTS_ID, **_QUERY, **{kind: text() for kind in KINDS})
    return message | ({"oneOf": [{"required": [kind]} for kind in KINDS]} if named else {})


_OF_VIEWS_ONLY = ("order_by", "limit", "after", "at_least", "wait")
SUBSCRIBE = {
    "view": tuple(subscribe(named=False)["properties"]),
    "stream": tuple(name for name in subscribe(named=False)["properties"] if name not in _OF_VIEWS_ONLY),
}
"""The fields that a `subscribe` message may have."""
UNSUBSCRIBE: Spec = record(type={"const": "unsubscribe"}, id=_CLIENTS_ID)
ACK: Spec = record("position: Position", type={"const": "ack"}, id=_CLIENTS_ID)
PACE: Spec = record(
    type={"const": "pace"}, id=_CLIENTS_ID, per_s={"type": ["number", "null"], "minimum": 0.01, "maximum": 1000}
)
PING: Spec = also(record(type={"const": "ping"}), id=_CLIENTS_ID)
