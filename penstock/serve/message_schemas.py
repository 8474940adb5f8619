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
from penstock.declaration import Application, StreamDef
from penstock.log.folder import DEAD, LATE
from penstock.schema import simple_type
from penstock.serve.documented import Documented, Thing
from penstock.serve.openapi_parts import Spec, also, array, obj, record, ref, text
from penstock.serve.row_schemas import key_spec, row_spec
from penstock.views.store import View
from penstock.views.views import Views

OF_VIEWS = ("snapshot", "changes")
OF_STREAMS = ("events",)
"""What only subscribers of a view get, or only those of a stream."""
KINDS = ("view", "stream", "channel")
"""What can be subscribed to."""
IN_POLLS = (*OF_VIEWS, "position", "reset")
"""Who asks is not told that it is slow, and what is wrong is the status of the reply."""

_WHOLE: Spec = {"type": "integer", "minimum": 0}
_ID = text("On a socket: the id of the subscription.")
_LONG: Spec = {"minimum": -(2**63), "maximum": 2**63 - 1}
_DECIMAL = r"^[+-]?[0-9]{1,18}(\.[0-9]{1,18})?$"
_MOMENT: Spec = {"type": "string", "format": "date-time"}

Columns = Mapping[str, Sequence[Column]]


def _message(kind: str, optional: Spec | None = None, **fields: Spec) -> Spec:
    made = record(type={"const": kind}, **fields)
    made["properties"] |= {"id": _ID, **(optional or {})}
    return made


SHARED: Spec = {
    "message.position": _message("position", position=ref("Position")),
    "message.reset": _message("reset", reason=text("Why what the subscriber holds is void; a snapshot follows.")),
    "message.stall": _message(
        "stall",
        behind=also(
            record(bytes=_WHOLE | {"description": "Not read yet."}, seconds={"type": "number", "minimum": 0}),
            batches=_WHOLE | {"description": "Of a view: not sent yet."},
            events=_WHOLE | {"description": "Of a stream: not sent yet."},
        ),
    ),
    "message.error": _message(
        "error", {"to": {"const": "ack", "description": "An ack failed; the subscription goes on."}}, error=ref("Error")
    ),
    "message.pong": _message("pong"),
    "message.subscribed": _message("subscribed", position=ref("Position")),
    "message.acked": _message("acked", position=ref("Position")),
}
"""Messages that are the same for all views and streams."""


def snapshot(thing: Thing) -> Spec:
    parts = {"part": _WHOLE | {"minimum": 1}, "parts": _WHOLE | {"minimum": 2}}
    return _message("snapshot", parts, **_head(thing), rows=array(ref(thing.name)))


def changes(thing: Thing) -> Spec:
    return _message(
        "changes",
        {"accepted": _MOMENT | {"description": "When the newest event of the batch was taken at the door."}},
        **_head(thing),
        upserts=array(ref(thing.name)),
        deletes=array(ref(f"{thing.name}.key")),
    )


def events(thing: Thing) -> Spec:
    return _message("events", **_head(thing), events=array(ref(thing.name)))


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
    made = {name: _precise(value) for name, value in schema.items()}
    if made.get("type") == "integer" and not made.keys() & {"minimum", "maximum", "enum"}:
        return made | _LONG
    return made | ({"pattern": _DECIMAL} if made.get("format") == "decimal" else {})


def schemas_of(documented: Documented, views: Views, columns: Columns) -> Spec:
    """Rows, keys, events and messages of all that is shown. `columns` are those of streams that no class says."""
    found: Spec = dict(SHARED)
    of_streams = _declared(documented.application) | dict(columns)
    for thing in documented.things():
        if thing.kind == "view":
            found |= _view_schemas(thing, views.view(thing.target), documented)
        else:
            event = row_spec(documented.columns(thing, of_streams.get(thing.target, ())), ["_position"])
            event["properties"] = {"_position": ref("Position")} | event["properties"]
            found |= {thing.name: event, f"{thing.name}.events": events(thing)}
    return found


def _view_schemas(thing: Thing, view: View, documented: Documented) -> Spec:
    content = view.content
    key = () if content is None else content.key
    columns = [] if content is None else documented.columns(thing, content.columns, key)
    shown = [column.name for column in columns if column.name in key]
    return {
        thing.name: row_spec(columns, shown),
        f"{thing.name}.key": key_spec(columns, shown) if content else obj(),
        f"{thing.name}.snapshot": snapshot(thing),
        f"{thing.name}.changes": changes(thing),
    }


def _declared(application: Application) -> dict[str, Sequence[Column]]:
    """A flow's columns are known once it has run; until then its events are objects."""
    made: dict[str, Sequence[Column]] = {"dead": columns_of(DEAD), "late": columns_of(LATE)}
    made |= {flow.name: () for flow in application.flows}
    return made | {stream.name: columns_of(stream.stored) for stream in application.streams}


def columns_of(schema: pa.Schema) -> list[Column]:
    return [Column(field.name, simple_type(field.type)) for field in schema]


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
    asked = also(record(type={"const": "subscribe"}), id=_CLIENTS_ID, **_QUERY, **{kind: text() for kind in KINDS})
    return asked | ({"oneOf": [{"required": [kind]} for kind in KINDS]} if named else {})


UNSUBSCRIBE: Spec = record(type={"const": "unsubscribe"}, id=_CLIENTS_ID)
ACK: Spec = record(type={"const": "ack"}, id=_CLIENTS_ID, position=ref("Position"))
PACE: Spec = record(
    type={"const": "pace"}, id=_CLIENTS_ID, per_s={"type": ["number", "null"], "minimum": 0.01, "maximum": 1000}
)
PING: Spec = also(record(type={"const": "ping"}), id=_CLIENTS_ID)
