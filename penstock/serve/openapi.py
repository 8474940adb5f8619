"""Describes the HTTP interface of one app as OpenAPI 3.1, from its declarations and the columns of its views.

WebSocket and SSE messages are outside of what OpenAPI describes; their paths are listed with what they answer to a
plain request, and `docs/reference/http.md` has the messages. Paths have names in the place of `{view}` and
`{stream}`, so that 404 is no answer of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from penstock.change import Column
from penstock.config import Limits
from penstock.declaration import LEDGERS, Application, ChannelDef
from penstock.serve.openapi_collect import pixel, post
from penstock.serve.openapi_dead import dead_paths
from penstock.serve.openapi_parts import (
    ACKS_REPLY,
    SCHEMAS,
    SECURITY,
    answers,
    array,
    obj,
    parameter,
    ref,
    text,
)
from penstock.serve.openapi_rights import secured
from penstock.views.current import Views
from penstock.views.where_types import SqlType, parse_type

_REF = "#/components/schemas/{name}"
Spec = dict[str, Any]


def openapi(application: Application, views: Views, limits: Limits) -> Spec:
    """The whole document, as JSON types."""
    events, kinds = _event_schemas(application)
    rows = {f"view.{v.name}": row_spec(v.content.columns) if v.content else {"type": "object"} for v in views}
    paths: Spec = {}
    for view in views:
        paths |= _view_paths(view.name, limits)
    for node in application.nodes:
        paths[f"/flows/{node.name}/rebuild"] = {"post": _rebuild(node.name, "flow")}
    for stream in application.streams:
        paths |= _stream_paths(stream.name, limits)
        paths[f"/streams/{stream.name}"]["post"] = post(stream, events[stream.name], limits)
        paths[f"/streams/{stream.name}/publish"] = _socket(f"publishing to {stream.name}", 400)
        paths[f"/streams/{stream.name}/pixel.gif"] = {"get": pixel(stream)}
    for name in (*(flow.name for flow in application.flows), *LEDGERS):
        paths |= _stream_paths(name, limits)
    for channel in application.channels:
        paths |= _channel_paths(channel, application, limits)
    return {
        "openapi": "3.1.0",
        "info": {"title": application.name, "version": version("penstock")},
        "security": [{"key": []}, {"token": []}, {}],
        "paths": secured(dict(sorted((paths | _fixed_paths(limits)).items())), application),
        "components": {"schemas": SCHEMAS | rows | kinds, "securitySchemes": SECURITY},
    }


def _event_schemas(application: Application) -> tuple[dict[str, Spec], Spec]:
    """For each stream the schema of its events, and all the classes that they refer to."""
    kinds = [stream.events.kind for stream in application.streams]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    return {s.name: schema for s, schema in zip(application.streams, schemas, strict=True)}, components


# Views

_QUERY = [
    parameter("where", text("A condition in SQL over the view's columns.")),
    parameter("params", text("A JSON object: the values of the parameters (`:name`) in `where`.")),
    parameter("select", text("Columns to give, with commas between; the key's are always among them.")),
    parameter("order_by", text("Columns to order by, with commas between; `-` before one turns it around.")),
    parameter("limit", {"type": ["integer", "string"], "minimum": 0, "description": "Rows at most; `null`: all."}),
]
_REACHED = [
    parameter("after", text("An ack: answer once the view has absorbed that event.")),
    parameter("at_least", text("A position of this view: answer once it is reached.")),
]


def _view_paths(name: str, limits: Limits) -> Spec:
    rows = obj(view=text(), position=ref("Position"), frontier=ref("Frontier"), rows=array(ref(f"view.{name}")))
    polled = obj(messages=array(ref("Message")), position=ref("Position"))
    return {
        f"/views/{name}": {
            "get": {
                "operationId": f"read view {name}",
                "summary": f"Rows of the view {name}, or with since= its changes as a long poll",
                "parameters": [
                    *_QUERY,
                    parameter("key", text("One row: the key's value, or a JSON object of the key's columns.")),
                    *_REACHED,
                    parameter("since", text("A position of this view: answer with the messages behind it.")),
                    _wait(limits),
                    parameter("If-None-Match", text("The ETag of an earlier answer."), place="header"),
                ],
                "responses": answers({"oneOf": [rows, polled]}, 400, 410, 503, 504, 507)
                | {"204": {"description": "since=: nothing came in time"}, "304": {"description": "Not changed"}},
            }
        },
        f"/views/{name}/events": _events(name, "view", [*_QUERY, *_LAST_EVENT_ID, *_REACHED, _wait(limits)], 410, 504),
        f"/views/{name}/socket": _socket(f"view {name}"),
        f"/views/{name}/rebuild": {"post": _rebuild(name, "view")},
    }


def _rebuild(name: str, kind: str) -> Spec:
    when = {"type": "integer", "description": "When it was asked for, in microseconds."}
    reply = _json(obj(**{kind: text(), "rebuild": when}))
    return {
        "operationId": f"rebuild {kind} {name}",
        "summary": f"Build the {kind} {name} anew from the log, and what is made from it",
        "responses": answers(None, 503, 507) | {"202": {"description": "Asked for", "content": reply}},
    }


def row_spec(columns: Sequence[Column]) -> Spec:
    """Rows or events with these columns, as they look in JSON."""
    return obj(**{column.name: _json_type(parse_type(column.type)) for column in columns})


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


# Streams


def _stream_paths(name: str, limits: Limits) -> Spec:
    after = parameter("after", text("A position of this stream, `start` or `end`."))
    most = {"type": "integer", "minimum": 1, "maximum": limits.read_events_most, "default": limits.read_events}
    page = obj(stream=text(), events=array(ref("StoredEvent")), next=ref("Position"))
    return {
        f"/streams/{name}": {
            "get": {
                "operationId": f"read stream {name}",
                "summary": f"Events of the stream {name}",
                "parameters": [after, parameter("limit", most), _wait(limits), *_QUERY[:2]],
                "responses": answers(page, 400, 410, 503),
            }
        },
        f"/streams/{name}/events": _events(name, "stream", [after, *_QUERY[:2], *_LAST_EVENT_ID]),
        f"/streams/{name}/socket": _socket(f"stream {name}"),
        f"/streams/{name}/schema": {"get": _schema(name)},
    }


def _schema(name: str) -> Spec:
    number = {"type": "integer", "minimum": 1}
    versions = array(obj(version=number, since={"type": ["string", "null"]}, held={"type": "boolean"}))
    reply = obj(stream=text(), version=number, since={"type": ["string", "null"]}, schema={"type": "object"})
    reply["properties"]["versions"] = versions
    return {
        "operationId": f"schema of {name}",
        "summary": f"The JSON Schema of the events of the stream {name}, and its versions",
        "parameters": [parameter("version", number)],
        "responses": answers(reply, 400, 404, 503),
    }


def _channel_paths(channel: ChannelDef, application: Application, limits: Limits) -> Spec:
    """The paths of what it shows, under its own name."""
    is_view = application.view(channel.target) is not None
    shown = _view_paths(channel.target, limits) if is_view else _stream_paths(channel.target, limits)
    paths: Spec = {}
    for end in ("", "/events", "/socket"):
        get = shown[f"/{'views' if is_view else 'streams'}/{channel.target}{end}"]["get"]
        named = {
            "operationId": f"{get['operationId']} as channel {channel.name}",
            "summary": f"{get['summary']}, as the channel {channel.name} shows it",
        }
        paths[f"/channels/{channel.name}{end}"] = {"get": get | named}
    return paths


def _tickets() -> Spec:
    body = obj(view=text(), stream=text(), channel=text()) | {"minProperties": 1, "maxProperties": 1}
    reply = obj(ticket=text("Show it as ?ticket=."), open_until=text(), view=text(), stream=text(), channel=text())
    made = {"description": "A ticket", "content": _json(reply)}
    return {
        "post": {
            "operationId": "ticket",
            "summary": "A ticket for the events or the socket of one view, stream or channel",
            "requestBody": {"required": True, "content": _json(body)},
            "responses": answers(None, 400, 404, 503, 507) | {"201": made},
        }
    }


# The rest

_LAST_EVENT_ID = [
    parameter("Last-Event-ID", text("The id of the last event that was received."), place="header"),
    parameter("last_event_id", text("The same, for clients that cannot set headers.")),
    parameter("lastEventId", text("The same, under another name that is in use.")),
]


def _wait(limits: Limits) -> Spec:
    return parameter("wait", {"type": "number", "minimum": 0, "maximum": limits.wait_s, "description": "Seconds."})


def _json(schema: Spec) -> Spec:
    return {"application/json": {"schema": schema}}


def _events(name: str, kind: str, parameters: list[Spec], *errors: int) -> Spec:
    return {
        "get": {
            "operationId": f"events of {kind} {name}",
            "summary": f"The {kind} {name} as Server-Sent Events",
            "parameters": parameters,
            "responses": answers(None, 400, *errors, *((507,) if kind == "view" else ()))
            | {"200": {"description": "Events", "content": {"text/event-stream": {"schema": text()}}}},
        }
    }


def _socket(what: str, *errors: int) -> Spec:
    return {
        "get": {
            "operationId": f"socket of {what}",
            "summary": f"A WebSocket for {what}",
            "responses": answers(None, *(errors or (400, 426)))
            | {"101": {"description": "The protocol is switched to WebSocket"}},
        }
    }


def _subscribers() -> Spec:
    name = {"name": "name", "in": "path", "required": True, "schema": text()}
    of = parameter("credential", text("Of another credential, for an administrator: its id."))
    forget = {
        "operationId": "forget subscriber",
        "summary": "Forget a named subscription, so that it begins anew",
        "parameters": [name, of],
        "responses": answers(obj(forgotten=text()), 404, 503, 507),
    }
    listed = obj(subscribers=array(ref("Subscriber")))
    return {
        "/subscribers": _plain("subscribers", "The named subscriptions that are remembered", listed),
        "/subscribers/{name}": {"delete": forget},
    }


def _plain(operation: str, summary: str, schema: Spec, *errors: int, parameters: list[Spec] | None = None) -> Spec:
    get = {"operationId": operation, "summary": summary, "responses": answers(schema, *errors)}
    return {"get": get | ({"parameters": parameters} if parameters else {})}


def _fixed_paths(limits: Limits) -> Spec:
    token = {"name": "token", "in": "path", "required": True, "schema": text()}
    which = parameter("for", {"type": "string", "enum": ["collect", "serve", "flows"]})
    anything: Spec = {"type": "object"}
    ready = _plain("readiness", "Whether this edge should get requests", anything, 400, parameters=[which])
    ready["get"]["responses"]["503"] = {"description": "Not ready yet", "content": _json(anything)}
    metrics: Spec = _plain("metrics", "Metrics for Prometheus", anything)
    metrics["get"]["responses"]["200"] = {"description": "Metrics", "content": {"text/plain": {"schema": text()}}}
    page: Spec = {"200": {"description": "The live page", "content": {"text/html": {"schema": text()}}}}
    return {
        "/": {"get": {"operationId": "page", "summary": "The live page", "responses": page}},
        "/views": _plain("views", "All views", obj(views=array(ref("View")))),
        "/streams": _plain("streams", "All streams", obj(streams=array(ref("Stream")))),
        "/channels": _plain("channels", "All channels", obj(channels=array(ref("Channel")))),
        "/tickets": _tickets(),
        "/status": _plain("status", "How everything is", ref("Status")),
        "/graph": _plain("graph", "What is made from what", ref("Graph")),
        **dead_paths(),
        "/acks/{token}": _plain(
            "ack", "What became of a request", ACKS_REPLY, 400, 404, parameters=[token, _wait(limits)]
        ),
        "/socket": _socket("all views and streams"),
        **_subscribers(),
        "/healthz": _plain("health", "Whether the process lives", obj(status=text())),
        "/readyz": ready,
        "/metrics": metrics,
        "/openapi.json": _plain("openapi", "This document", anything),
    }
