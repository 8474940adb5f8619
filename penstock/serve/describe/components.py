"""Schemas that several replies share, and the ways to show who one is: the components of the documents."""

from __future__ import annotations

from penstock.json_schema import NULLABLE, WHOLE, Spec, also, array, choice, obj, record, ref, text

_HIDDEN_COUNT: Spec = {"type": ["integer", "null"], "description": "Null where each reader sees its own rows only."}
_ERROR: Spec = {"oneOf": [ref("Error"), {"type": "null"}]}
_MEASURED: Spec = {"type": ["number", "null"]}
_NAMES: Spec = {"type": ["array", "null"], "items": text()}

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
    "Error": record(code=text(), message=text(), detail=NULLABLE, hint=NULLABLE),
    "ErrorReply": record(error=ref("Error")),
    "Subscriber": obj(
        name=text(), view=text(), stream=text(), where=text(), position=NULLABLE, used=text(), credential=text()
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
        order_by=_NAMES,
        limit={"type": ["integer", "null"]},
        keep=NULLABLE,
        **{"class": {"type": ["string", "null"], "enum": ["exact", "tolerance", "unverifiable", None]}},
        rows=_HIDDEN_COUNT,
        position=NULLABLE,
        frontier=ref("Frontier"),
        filter_errors=_HIDDEN_COUNT,
        flow=record(state=text(), error=_ERROR),
    ),
    "Channel": also(
        record(
            channel=text(),
            where=NULLABLE,
            select=_NAMES,
            policy=choice("conflate", "every_change"),
            key=array(text()),
            columns=array(ref("Column")),
        ),
        view=text("The view that it shows; or `stream`."),
        stream=text(),
    ),
    "Stream": record(
        stream=text(),
        kind=choice("stream", "flow", "ledger"),
        partitions=WHOLE,
        key=array(text()),
        time=NULLABLE,
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
            "properties": {
                "ids": WHOLE,
                "age": text(),
                "known": WHOLE | {"type": ["integer", "null"]},
                "since": NULLABLE,
            },
        },
        rates=record(accepted=_MEASURED),
        position=NULLABLE,
        hint=NULLABLE | {"description": "What to do about something odd in its events."},
    ),
    "Flow": record(
        flow=text(),
        state=choice("starting", "running", "rebuilding", "retrying", "stopped"),
        error=_ERROR,
        batch_ms=_MEASURED,
        rate=_MEASURED,
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
        freshness=record(p50_ms=_MEASURED, p99_ms=_MEASURED),
    ),
    "Pressure": record(
        state=choice("ok", "limiting", "thrashing", "lagging"),
        because=array({"type": "object"}),
        hint=NULLABLE,
        switches_per_minute=WHOLE,
        room={"type": "object", "additionalProperties": WHOLE},
    ),
    "Pull": record(
        stream=text(),
        url=text(),
        scheme=text(),
        state=text(),
        paused=NULLABLE,
        error=NULLABLE,
        since=text(),
        position={},
        events=WHOLE,
        lag={"type": "object", "additionalProperties": {"type": "number"}},
    ),
    "UdpPort": record(
        stream=text(),
        host=text(),
        port=WHOLE,
        queued_bytes=WHOLE,
        kernel_drops={"type": ["integer", "null"], "description": "Datagrams lost before the edge could read them."},
    ),
    "Graph": record(
        app=text(),
        nodes=array(record(name=text(), kind=text(), doc=text(), state=NULLABLE)),
        edges=array(record(**{"from": text(), "to": text()})),
    ),
}
