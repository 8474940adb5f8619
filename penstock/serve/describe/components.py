"""Schemas that several replies share, and the ways to show who one is: the components of the documents."""

from __future__ import annotations

from penstock.json_schema import FLAG, NULLABLE, Spec, also, array, obj, record, text

SECURITY: Spec = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key of `penstock keys create`."},
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    | {"description": "Where the server takes tokens."},
    "ticket": {"type": "apiKey", "in": "query", "name": "ticket"}
    | {"description": "Of `POST /tickets`, for events and sockets."},
    "beacon": {"type": "apiKey", "in": "query", "name": "key"}
    | {"description": "A key that may only write, where no header can be set."},
}
"""How one shows who one is."""

_HIDDEN: Spec = {"type": ["integer", "null"], "description": "Null where each reader sees its own rows only."}
_TIMES = "newest?, complete?, skew_s: number?, held_by?"
"""Of events: the newest, up to when they are complete, how far that is apart, and what holds it."""
_TOTALS = ("accepted", "duplicates", "dead", "shed", "skewed", "late", "poisoned")

SCHEMAS: Spec = {
    "Position": text("An opaque token: how far a stream or view was read."),
    "Frontier": {"type": "object", "additionalProperties": text(), "description": "A position for each stream."},
    "Error": record("code, message, detail?, hint?"),
    "ErrorReply": record("error: Error"),
    "Subscriber": obj("name, view, stream, where, position?, used, credential"),
    "Column": also(
        record("name", type=text("Spark's short name of the type.")),
        private=FLAG | {"description": "It has the name of a personal field; a page masks it."},
    ),
    "View": record(
        "view, kind: view|table, doc, key: [text], columns: [Column], order_by: [text]?, limit: integer?,"
        "keep?, position?, class: exact|tolerance|bounded|unverifiable?, how: folded|regrouped|added|whole?,"
        "frontier: Frontier",
        rows=_HIDDEN,
        filter_errors=_HIDDEN,
        flow=record("state, error: Error?"),
    ),
    "Channel": also(
        record("channel, where?, select: [text]?, policy: conflate|every_change, key: [text], columns: [Column]"),
        "stream",
        view=text("The view that it shows; or `stream`."),
    ),
    "Stream": record(
        f"stream, kind: stream|flow|ledger, partitions: whole, key: [text], time?, position?, {_TIMES}",
        schema={"type": ["integer", "null"], "description": "The version of its class."},
        private=array(text("Path of a personal field, which a page should mask.")),
        totals=record(**dict.fromkeys(_TOTALS, _HIDDEN)),
        horizon=obj("ids: whole, age, known: whole?, since?") | {"type": ["object", "null"]},
        rates=record("accepted: number?"),
        hint=NULLABLE | {"description": "What to do about something odd in its events."},
    ),
    "Flow": record(
        "flow, state: starting|running|rebuilding|retrying|stopped, error: Error?,"
        f"batch_ms: number?, rate: number?, lag_events: integer?, {_TIMES}"
    ),
    "Status": record(
        "app, version, started, uptime_s: number, processes: object, streams: [Stream], views: [View], flows: [Flow],"
        "pressure: Pressure, udp: [UdpPort], pulls: [Pull], published: [Topic]",
        freshness=record("p50_ms: number?, p99_ms: number?"),
    ),
    "Pressure": record(
        "state: ok|limiting|thrashing|lagging, because: [object], hint?, switches_per_minute: whole, room: {whole}"
    ),
    "Pull": record("stream, url, scheme, state, paused?, error?, since, position: any, events: whole, lag: {number}"),
    "Topic": record("name, topic, state: beginning|level|lagging, since, error: Error?, position?"),
    "UdpPort": record(
        "stream, host, port: whole, queued_bytes: whole",
        kernel_drops={"type": ["integer", "null"], "description": "Datagrams lost before the edge could read them."},
    ),
    "Graph": record(
        "app",
        nodes=array(also(record("name, kind, doc, state?"), _TIMES)),
        edges=array(record("from, to, grouping?, parallelism: whole?")),
    ),
}
