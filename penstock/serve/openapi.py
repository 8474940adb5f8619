"""Describes the HTTP interface of one app as OpenAPI 3.1, for the one who asks: from declarations and columns of views.

Replies that do not end (Server-Sent Events) and connections that are no longer HTTP (WebSocket) are not here but in
`/asyncapi.json` (`asyncapi.py`). Paths have names in the place of `{view}` and `{stream}`, so that 404 is no answer of
theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from penstock.config import Limits
from penstock.declaration import LEDGERS, Application
from penstock.rights.credential import Credential
from penstock.serve.documented import Documented, Thing
from penstock.serve.message_schemas import Columns, event_schemas, polled_names, schemas_of
from penstock.serve.openapi_collect import closed, pixel, post
from penstock.serve.openapi_dead import dead_paths
from penstock.serve.openapi_parts import (
    ACKS_REPLY,
    SCHEMAS,
    SECURITY,
    also,
    answers,
    array,
    obj,
    parameter,
    record,
    ref,
    text,
)
from penstock.serve.openapi_rights import secured
from penstock.serve.openapi_webhooks import webhook_paths
from penstock.views.views import Views

Spec = dict[str, Any]


def openapi(application: Application, views: Views, limits: Limits, columns: Columns, credential: Credential) -> Spec:
    """The whole document, as JSON types; `columns` are those of the streams in the log."""
    documented = Documented(application, credential)
    written = documented.written()
    events, kinds = event_schemas(written)
    schemas = schemas_of(documented, views, columns)
    paths: Spec = {}
    things = list(documented.things())
    for thing in things:
        names = list(schemas[thing.name]["properties"])
        paths |= _view_paths(thing, names, limits) if thing.kind == "view" else _stream_paths(thing, names, limits)
    for name in (*(flow.name for flow in application.flows), *LEDGERS):
        if f"/streams/{name}" in paths:
            paths[f"/streams/{name}"]["post"] = closed(name)
    for stream in written:
        path = paths.setdefault(f"/streams/{stream.name}", {})
        path["post"] = post(stream, events[stream.name], limits)
        paths[f"/streams/{stream.name}/pixel.gif"] = {"get": pixel(stream)}
    if documented.administers:
        paths |= {f"/views/{view.name}/rebuild": {"post": _rebuild(view.name, "view")} for view in views}
        paths |= {f"/flows/{node.name}/rebuild": {"post": _rebuild(node.name, "flow")} for node in application.nodes}
    return {
        "openapi": "3.1.0",
        "servers": [{"url": "/"}],
        "info": {"title": application.name, "version": version("penstock"), "description": _DESCRIPTION},
        "security": [{"key": []}, {"token": []}, {}],
        "paths": secured(dict(sorted((paths | _fixed_paths(things, limits)).items())), application),
        "components": {"schemas": SCHEMAS | schemas | kinds, "securitySchemes": SECURITY},
    }


_DESCRIPTION = (
    "As far as the one who asks may read and write. What stays open (Server-Sent Events under `/events`, WebSockets "
    "under `/socket` and `/publish`) is described by `/asyncapi.json`."
)

# What can be read

_SINCE = parameter("since", text("A position of this view: answer with the messages behind it."))
_TAG = parameter("If-None-Match", text("The ETag of an earlier answer."), place="header")
_REACHED = [
    parameter("after", text("An ack: answer once the view has absorbed that event.")),
    parameter("at_least", text("A position of this view: answer once it is reached.")),
]


def _query(columns: list[str]) -> list[Spec]:
    return [
        parameter("where", text("A condition in SQL over the columns.")),
        {
            "name": "params",
            "in": "query",
            "description": "The values of the parameters (`:name`) in `where`.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        _names("select", "Columns to give; the key's are always among them.", columns),
    ]


def _ranking(columns: list[str]) -> list[Spec]:
    turned = [f"-{name}" for name in columns]
    most = {"oneOf": [{"type": "integer", "minimum": 0}, {"const": "null"}], "description": "Rows at most; null: all."}
    return [
        _names("order_by", "Columns to order by; `-` before one turns it around.", [*columns, *turned]),
        parameter("limit", most),
    ]


def _names(name: str, description: str, known: list[str]) -> Spec:
    """A list with commas between."""
    item = {"type": "string", "enum": known} if known else text()
    schema = {"type": "array", "items": item, "minItems": 1, "description": description}
    return parameter(name, schema) | {"style": "form", "explode": False}


def _view_paths(thing: Thing, columns: list[str], limits: Limits) -> Spec:
    rows = record(
        view={"const": thing.target}, position=ref("Position"), frontier=ref("Frontier"), rows=array(ref(thing.name))
    )
    message = {"oneOf": [ref(schema) for schema in polled_names(thing)]}
    polled = record(messages=array(message), position=ref("Position"))
    read = f"read_{thing.words.removeprefix('the ').replace(' ', '_')}"
    again = {"operationId": read, "parameters": {"since": "$response.body#/position"}}
    good = answers({"oneOf": [rows, polled]}, 400, 406, 410, 503, 504, 507)
    good["200"]["links"] = {"what comes then": again}
    return {
        thing.address: {
            "get": {
                "operationId": read,
                "summary": f"Rows of {thing.words}, or with since= its changes as a long poll",
                "parameters": [
                    *_query(columns),
                    *_ranking(columns),
                    parameter("key", text("One row: the key's value, or a JSON object of the key's columns.")),
                    *_REACHED,
                    _SINCE,
                    _wait(limits),
                    _TAG,
                ],
                "responses": good
                | {"204": {"description": "since=: nothing came in time"}, "304": {"description": "Not changed"}},
            }
        },
    }


def _rebuild(name: str, kind: str) -> Spec:
    when = {"type": "integer", "description": "When it was asked for, in microseconds."}
    reply = _json(record(**{kind: text(), "rebuild": when}))
    return {
        "operationId": f"rebuild_{kind}_{name}",
        "summary": f"Build the {kind} {name} anew from the log, and what is made from it",
        "responses": answers(None, 503, 507) | {"202": {"description": "Asked for", "content": reply}},
    }


# Streams


def _stream_paths(thing: Thing, columns: list[str], limits: Limits) -> Spec:
    after = parameter("after", text("A position of this stream, `start` or `end`."))
    most = {"type": "integer", "minimum": 1, "maximum": limits.read_events_most, "default": limits.read_events}
    page = record(stream={"const": thing.target}, events=array(ref(thing.name)), next=ref("Position"))
    read = f"read_{thing.words.removeprefix('the ').replace(' ', '_')}"
    good = answers(page, 400, 406, 410, 503)
    good["200"]["links"] = {"next": {"operationId": read, "parameters": {"after": "$response.body#/next"}}}
    get = {
        "operationId": read,
        "summary": f"Events of {thing.words}",
        "parameters": [after, parameter("limit", most), _wait(limits), *_query(columns)],
        "responses": good,
    }
    own: Spec = {} if thing.channel else {f"{thing.address}/schema": {"get": _schema(thing.target)}}
    return {thing.address: {"get": get}, **own}


def _schema(name: str) -> Spec:
    number = {"type": "integer", "minimum": 1}
    since = {"type": ["string", "null"]}
    reply = record(
        stream={"const": name},
        version=number,
        since=since,
        schema={"type": "object"},
        versions=array(record(version=number, since=since, held={"type": "boolean"})),
    )
    return {
        "operationId": f"schema_of_{name}",
        "summary": f"The JSON Schema of the events of the stream {name}, and its versions",
        "parameters": [parameter("version", number)],
        "responses": answers(reply, 400, 404, 503),
    }


def _tickets() -> Spec:
    body = obj(view=text(), stream=text(), channel=text()) | {"minProperties": 1, "maxProperties": 1}
    reply = also(
        record(ticket=text("Show it as ?ticket=."), open_until=text()), view=text(), stream=text(), channel=text()
    )
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


def _wait(limits: Limits) -> Spec:
    return parameter("wait", {"type": "number", "minimum": 0, "maximum": limits.wait_s, "description": "Seconds."})


def _json(schema: Spec) -> Spec:
    return {"application/json": {"schema": schema}}


def _subscribers() -> Spec:
    name = {"name": "name", "in": "path", "required": True, "schema": text()}
    of = parameter("credential", text("Of another credential, for an administrator: its id."))
    forget = {
        "operationId": "forget_subscriber",
        "summary": "Forget a named subscription, so that it begins anew",
        "parameters": [name, of],
        "responses": answers(record(forgotten=text()), 404, 503, 507),
    }
    listed = record(subscribers=array(ref("Subscriber")))
    return {
        "/subscribers": _plain("subscribers", "The named subscriptions that are remembered", listed),
        "/subscribers/{name}": {"delete": forget},
    }


def _plain(operation: str, summary: str, schema: Spec, *errors: int, parameters: list[Spec] | None = None) -> Spec:
    get = {"operationId": operation, "summary": summary, "responses": answers(schema, *errors)}
    return {"get": get | ({"parameters": parameters} if parameters else {})}


def _document(operation: str, summary: str) -> Spec:
    made = _plain(operation, summary, {"type": "object"}, parameters=[_TAG])
    made["get"]["responses"]["304"] = {"description": "Not changed"}
    return made


def _fixed_paths(things: Sequence[Thing], limits: Limits) -> Spec:
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
        "/views": _plain("views", "All views", record(views=array(ref("View")))),
        "/streams": _plain("streams", "All streams", record(streams=array(ref("Stream")))),
        "/channels": _plain("channels", "All channels", record(channels=array(ref("Channel")))),
        "/tickets": _tickets(),
        "/status": _plain("status", "How everything is", ref("Status")),
        "/graph": _plain("graph", "What is made from what", ref("Graph")),
        **dead_paths(),
        **webhook_paths(things),
        "/acks/{token}": _plain(
            "ack", "What became of a request", ACKS_REPLY, 400, 404, parameters=[token, _wait(limits)]
        ),
        **_subscribers(),
        "/healthz": _plain("health", "Whether the process lives", record(status={"const": "ok"})),
        "/readyz": ready,
        "/metrics": metrics,
        "/openapi.json": _document("openapi", "This document"),
        "/asyncapi.json": _document("asyncapi", "The same for sockets, events and messages: AsyncAPI 3.0"),
    }
