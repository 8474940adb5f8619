"""Describes the ways in over HTTP: what a POST may carry and ask for, and the pixel."""

from __future__ import annotations

from penstock.config import Limits
from penstock.declaration import StreamDef
from penstock.serve.openapi_parts import POST_REPLY, Spec, also, answers, array, parameter, record, ref, text

_LEVELS = {"type": "string", "enum": ["none", "logged", "applied"], "default": "logged"}
_NAME: Spec = {"type": "string", "pattern": "^[!-~]{1,200}$"}
_NUMBER: Spec = {"type": "integer", "minimum": 0, "maximum": 2**53}
_HEADERS: Spec = {
    "Producer-Id": _NAME | {"description": "Who sends; with the other two, or none of them."},
    "Producer-Epoch": _NUMBER | {"description": "Which incarnation of it."},
    "Producer-Seq": _NUMBER | {"description": "The number of this request."},
    "Idempotency-Key": _NAME | {"description": "Makes this request happen once."},
    "Penstock-Sent": {
        "oneOf": [
            {"type": "integer", "minimum": 0, "maximum": 4_102_444_800_000},
            {"type": "string", "format": "date-time"},
        ],
        "description": "When the sender's clock says that it sends: milliseconds since 1970, or RFC 3339.",
    },
    "Prefer": text("`respond-async` is `ack=none`."),
}


def post(stream: StreamDef, event: Spec, limits: Limits) -> Spec:
    wait = {"type": "number", "minimum": 0, "maximum": limits.wait_s, "description": "Seconds."}
    row = {"type": ["object", "null"], "description": "With reply=: the view's row."}
    good = also(POST_REPLY, view=text(), row=row, position=ref("Position"))
    pending = record(ack=text("A receipt: pass it to /acks."), level={"const": "pending"})
    rejected = also(record(error=ref("Error")), **POST_REPLY["properties"])
    return {
        "operationId": f"post_to_{stream.name}",
        "summary": f"Send events to the stream {stream.name}",
        "parameters": [
            parameter("ack", _LEVELS),
            parameter("reply", text("A view: answer with its row at the first commit past the event.")),
            parameter("wait", wait),
            *(parameter(name, schema, place="header") for name, schema in _HEADERS.items()),
        ],
        "requestBody": {
            "required": True,
            "description": "Packed with gzip or zstd, if `Content-Encoding` says so.",
            "content": _contents(event, strict=stream.unknown == "reject"),
        },
        "responses": _linked(good, 400, 403, 404, 408, 409, 413, 415, *_limited(stream), 503, 507)
        | {
            "202": {
                "description": "ack=none: taken, not yet durable; reply=: durable, the view not yet there",
                "content": {"application/json": {"schema": {"oneOf": [pending, good]}}},
            },
            "422": {
                "description": "All events were rejected, or a key was used for another body",
                "content": {"application/json": {"schema": rejected}},
            },
            "204": {"description": "This sequence number of the producer was taken before"},
        },
    }


def _linked(good: Spec, *errors: int) -> Spec:
    """With the way from the reply to what became of the events later."""
    responses = answers(good, *errors)
    responses["200"]["links"] = {"later": {"operationId": "ack", "parameters": {"token": "$response.body#/ack"}}}
    return responses


def _contents(event: Spec, *, strict: bool) -> Spec:
    event = {"allOf": [event], "unevaluatedProperties": False} if strict else event
    several = {"oneOf": [event, array(event)]}
    return {
        "application/json": {"schema": several},
        "application/x-ndjson": {"schema": text("One event per line.")},
        "text/plain": {"schema": text("JSON or lines of it, as navigator.sendBeacon sends it.")},
        "text/csv": {"schema": text("A header with the names of the fields, then one event per row.")},
        "application/vnd.apache.arrow.stream": {"schema": {"type": "string", "format": "binary"}},
        "application/cloudevents+json": {"schema": _envelope(event)},
        "application/cloudevents-batch+json": {"schema": array(_envelope(event))},
    }


def _envelope(event: Spec) -> Spec:
    """An event of CloudEvents 1.0; further attributes have names of small letters and digits."""
    word: Spec = {"type": "string", "minLength": 1}
    made = record(specversion={"const": "1.0"}, id=word, source=word | {"format": "uri-reference"}, type=word)
    made["properties"] |= {"time": {"type": "string", "format": "date-time"}, "data": event}
    return made | {"required": [*made["required"], "data"]}


def closed(name: str) -> Spec:
    """What a flow or the server itself writes."""
    return {
        "operationId": f"post_to_{name}",
        "summary": f"The stream {name} cannot be posted to",
        "responses": answers(None, 409),
    }


def pixel(stream: StreamDef) -> Spec:
    image = {
        "headers": {"Penstock-Rejected": {"description": "Why the event was not taken, if so.", "schema": text()}},
        "content": {"image/gif": {"schema": {"type": "string", "format": "binary"}}},
    }
    good = image | {"description": "A transparent image, once the event or its dead letter is durable"}
    bad = image | {"description": "The same image: nothing was kept"}
    return {
        "operationId": f"pixel_of_{stream.name}",
        "summary": f"Send one event to the stream {stream.name} in the address of an image",
        "parameters": [parameter(name, text()) for name in stream.events.names],
        "responses": {"200": good} | {str(code): bad for code in (401, 403, 429, 503, 507)},
    }


def _limited(stream: StreamDef) -> tuple[int, ...]:
    return (429,) if stream.rate else ()
