"""The pieces of JSON Schema that the description of the HTTP interface is put together from."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

_MEANINGS = {
    400: "Something in the request is wrong",
    401: "No credential, or one that is unknown, revoked or expired",
    403: "The credential does not have the right, or a newer instance of this producer has taken over",
    404: "There is nothing of this name",
    406: "The header Accept leaves out what this path has",
    408: "The body came too slowly",
    409: "A sequence number is missing, a key is in use, the stream cannot be posted to, or there are too many",
    410: "The position is no longer kept",
    413: "The body is too large",
    415: "The content type or encoding is not known",
    422: "All events were rejected, or a key was used for another body",
    426: "This path speaks WebSocket, version 13",
    429: "More than a stream's rate or a credential's limits allow: try again after the time in Retry-After",
    503: "Not ready, overloaded or lagging: try again after the time in Retry-After",
    504: "Not absorbed within the time that was to be waited",
    507: "No room: on the disk, or in the view's memory budget",
}


def text(description: str | None = None) -> Spec:
    return {"type": "string"} | ({"description": description} if description else {})


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


def parameter(name: str, schema: Spec, place: str = "query") -> Spec:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def answers(schema: Spec | None, *errors: int) -> Spec:
    """Responses: 200 with this body, and errors with theirs."""
    good = {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}} if schema else {}
    body = {"application/json": {"schema": ref("ErrorReply")}}
    return good | {str(code): {"description": _MEANINGS[code], "content": body} for code in errors}


_NULLABLE = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}
_HIDDEN_COUNT = {"type": ["integer", "null"], "description": "Null where each reader sees its own rows only."}
_HEALTH = record(state=text(), error={"oneOf": [ref("Error"), {"type": "null"}]})

REJECTED = array(record(index=_COUNT, reason=text(), detail=_NULLABLE))
_MORE = {
    "shed": _COUNT | {"description": "Events dropped by the stream's rule; only where there are some."},
    "rejected_in_all": _COUNT | {"description": "Where the list of a remembered reply is shorter."},
}
POST_REPLY = also(
    record(
        accepted=_COUNT,
        duplicates=_COUNT,
        rejected=REJECTED,
        ack=text("A token: pass it as after=, or to /acks."),
        level={"type": "string", "enum": ["logged", "applied"]},
    ),
    **_MORE,
)
ACKS_REPLY = also(
    record(ack=text(), level={"type": "string", "enum": ["pending", "logged", "applied"]}),
    accepted=_COUNT,
    duplicates=_COUNT,
    rejected=REJECTED,
    **_MORE,
    error=ref("Error"),
    views={"type": "object", "additionalProperties": record(applied={"type": "boolean"}, position=_NULLABLE)},
)

SECURITY: Spec = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key of `penstock keys create`."},
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "Where the server takes tokens.",
    },
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": "Of `POST /tickets`, for events and sockets.",
    },
    "beacon": {
        "type": "apiKey",
        "in": "query",
        "name": "key",
        "description": "A key that may only write, where no header can be set.",
    },
}
"""How one shows who one is."""

SCHEMAS: Spec = {
    "Position": text("An opaque token: how far a stream or view was read."),
    "Frontier": {"type": "object", "additionalProperties": text(), "description": "A position for each stream."},
    "Error": record(code=text(), message=text(), detail=_NULLABLE, hint=_NULLABLE),
    "ErrorReply": record(error=ref("Error")),
    "Subscriber": obj(
        name=text(), view=text(), stream=text(), where=text(), position=_NULLABLE, used=text(), credential=text()
    ),
    "Column": also(
        record(name=text(), type=text("Spark's short name of the type.")),
        private={"type": "boolean", "description": "It has the name of a personal field; a page masks it."},
    ),
    "View": record(
        view=text(),
        doc=text(),
        key=array(text()),
        columns=array(ref("Column")),
        order_by={"type": ["array", "null"], "items": text()},
        limit={"type": ["integer", "null"]},
        keep=_NULLABLE,
        **{"class": {"type": ["string", "null"], "enum": ["exact", "tolerance", "unverifiable", None]}},
        rows=_HIDDEN_COUNT,
        position=_NULLABLE,
        frontier=ref("Frontier"),
        filter_errors=_HIDDEN_COUNT,
        flow=_HEALTH,
    ),
    "Channel": also(
        record(
            channel=text(),
            where=_NULLABLE,
            select={"type": ["array", "null"], "items": text()},
            policy={"type": "string", "enum": ["conflate", "every_change"]},
            key=array(text()),
            columns=array(ref("Column")),
        ),
        view=text("The view that it shows; or `stream`."),
        stream=text(),
    ),
    "Stream": record(
        stream=text(),
        kind={"type": "string", "enum": ["stream", "flow", "ledger"]},
        partitions=_COUNT,
        key=array(text()),
        time=_NULLABLE,
        schema={"type": ["integer", "null"], "description": "The version of its class."},
        private=array(text("Path of a personal field, which a page should mask.")),
        totals=record(
            accepted=_HIDDEN_COUNT,
            duplicates=_HIDDEN_COUNT,
            dead=_HIDDEN_COUNT,
            shed=_HIDDEN_COUNT,
            skewed=_HIDDEN_COUNT,
            late=_HIDDEN_COUNT,
            poisoned=_HIDDEN_COUNT,
        ),
        horizon={
            "type": ["object", "null"],
            "properties": {"ids": _COUNT, "age": text(), "known": _COUNT, "since": _NULLABLE},
        },
        rates=record(accepted={"type": ["number", "null"]}),
        position=_NULLABLE,
        hint=_NULLABLE | {"description": "What to do about something odd in its events."},
    ),
    "Flow": record(
        flow=text(),
        state={"type": "string", "enum": ["starting", "running", "rebuilding", "retrying", "stopped"]},
        error={"oneOf": [ref("Error"), {"type": "null"}]},
        batch_ms={"type": ["number", "null"]},
        rate={"type": ["number", "null"]},
        lag_events={"type": ["integer", "null"]},
    ),
    "Status": record(
        app=text(),
        version=text(),
        started=text(),
        uptime_s={"type": "number"},
        processes={"type": "object"},
        streams=array(ref("Stream")),
        views=array(ref("View")),
        flows=array(ref("Flow")),
        pressure=ref("Pressure"),
        udp=array(ref("UdpPort")),
        pulls=array(ref("Pull")),
        freshness=record(p50_ms={"type": ["number", "null"]}, p99_ms={"type": ["number", "null"]}),
    ),
    "Pressure": record(
        state={"type": "string", "enum": ["ok", "limiting", "thrashing", "lagging"]},
        because=array({"type": "object"}),
        hint=_NULLABLE,
        switches_per_minute=_COUNT,
        room={"type": "object", "additionalProperties": _COUNT},
    ),
    "Pull": record(
        stream=text(),
        url=text(),
        scheme=text(),
        state=text(),
        paused=_NULLABLE,
        error=_NULLABLE,
        since=text(),
        position={},
        events=_COUNT,
        lag={"type": "object", "additionalProperties": {"type": "number"}},
    ),
    "UdpPort": record(
        stream=text(),
        host=text(),
        port=_COUNT,
        queued_bytes=_COUNT,
        kernel_drops={"type": ["integer", "null"], "description": "Datagrams lost before the edge could read them."},
    ),
    "Graph": record(
        app=text(),
        nodes=array(record(name=text(), kind=text(), doc=text(), state=_NULLABLE)),
        edges=array(record(**{"from": text(), "to": text()})),
    ),
}
