"""The routes of data access and of the state of things, with what each takes and answers."""

from __future__ import annotations

from dataclasses import replace

from penstock.json_schema import ANYTHING, Spec, also, array, choice, message, obj, record, ref, text
from penstock.route import WAIT, Link, Parameter, Reply, Right, Route, Subject, Talk, json_body
from penstock.serve.describe.message_schemas import COMPLETE
from penstock.serve.describe.talks import (
    as_events,
    from_socket,
    from_socket_for_all,
    page,
    polled,
    to_socket,
    to_socket_for_all,
)

# Parameters


def _column(subject: Subject) -> Spec:
    return choice(*subject.columns) if subject.columns else text()


def _rank(subject: Subject) -> Spec:
    return choice(*subject.columns, *(f"-{name}" for name in subject.columns)) if subject.columns else text()


def _most_events(subject: Subject) -> Spec:
    limits = subject.limits
    return {"type": "integer", "minimum": 1, "maximum": limits.read_events_most, "default": limits.read_events}


_ROWS: Spec = {"oneOf": [{"type": "integer", "minimum": 0}, {"const": "null"}]}
_FILTER = (
    Parameter("where", "A condition in SQL over the columns."),
    Parameter("params", "A JSON object: the values of the parameters (`:name`) in `where`.", ANYTHING, form="json"),
    Parameter("select", "Columns to give, with commas between; the key's are always among them.", _column, form="list"),
)
_ORDER = (
    Parameter(
        "order_by", "Columns to order by, with commas between; `-` before one turns it around.", _rank, form="list"
    ),
    Parameter("limit", "Rows at most; `null`: all.", _ROWS),
)
_REACHED = (
    Parameter("after", "An ack: answer once the view has absorbed that event.", waits=True),
    Parameter("at_least", "A position of this view: answer once it is reached.", waits=True),
)
_KEY = Parameter("key", "One row: the key's value, or a JSON object of the key's columns.")
_SINCE = Parameter("since", "A position of this view: answer with the messages behind it.", waits=True)
_AFTER = Parameter("after", "A position of this stream, `start` or `end`.")
_TICKET = Parameter("ticket", "Of POST /tickets, where no header can be set.", is_credential=True)
_RESUME = (
    Parameter("last_event_id", "The id of the last event, where the header cannot be set.", also_called="lastEventId"),
    _TICKET,
)
_TAG = Parameter("If-None-Match", "The ETag of an earlier answer.", place="header")
OF_ROWS = frozenset({_KEY.name, *(parameter.name for parameter in _REACHED)})
"""Parameters that say nothing about what comes behind a position."""

# Views, streams and channels


def _rows(subject: Subject) -> Spec:
    thing = subject.thing
    head = "position: Position, frontier: Frontier"
    rows = also(record(head, view={"const": thing.target}, rows=array(ref(thing.name))), complete=COMPLETE)
    return {"oneOf": [rows, polled(subject)]}


def _schema(subject: Subject) -> Spec:
    number: Spec = {"type": "integer", "minimum": 1}
    listed = record("since?, held: flag", version=number)
    stream: Spec = {"const": subject.thing.target}
    return record("since?, schema: object", stream=stream, version=number, versions=array(listed))


READ_VIEW = Route(
    "GET /views/{view}",
    "read",
    "read_view",
    "Rows of {thing}, or with since= its changes as a long poll",
    (*_FILTER, *_ORDER, _KEY, *_REACHED, _SINCE, WAIT, _TAG),
    replies=(
        Reply(200, _rows, links=(Link("what comes then", "since", "position"),)),
        Reply(204, words="since=: nothing came in time"),
        Reply(304, words="Not changed"),
    ),
    errors=(406, 410, 503, 504, 507),
    talk=Talk(
        "poll",
        lambda s: {"messages": message("messages", polled(s))},
        words="{Thing} as a long poll: what came behind since=, or 204",
        without=OF_ROWS,
    ),
)
VIEW_EVENTS = Route(
    "GET /views/{view}/events",
    "read",
    "view_events",
    "{Thing} as Server-Sent Events",
    (*_FILTER, *_ORDER, *_REACHED, WAIT, *_RESUME),
    talk=Talk("events", as_events),
)
VIEW_SOCKET = Route(
    "GET /views/{view}/socket",
    "read",
    "view_socket",
    "{Thing} over a WebSocket; subscriptions to others may share it",
    (_TICKET,),
    talk=Talk("socket", to_socket, from_socket),
)
READ_STREAM = Route(
    "GET /streams/{stream}",
    "read",
    "read_stream",
    "Events of {thing}",
    (_AFTER, Parameter("limit", "Events at most.", _most_events), WAIT, *_FILTER),
    replies=(Reply(200, page, links=(Link("next", "after", "next"),)),),
    errors=(406, 410, 503),
    talk=Talk(
        "poll",
        lambda s: {"page": message("page", page(s))},
        words="{Thing} a page at a time, waiting for the first event with wait=",
    ),
)
STREAM_EVENTS = Route(
    "GET /streams/{stream}/events",
    "read",
    "stream_events",
    "{Thing} as Server-Sent Events",
    (*_FILTER, _AFTER, *_RESUME),
    talk=Talk("events", as_events),
)
STREAM_SOCKET = replace(VIEW_SOCKET, request="GET /streams/{stream}/socket", name="stream_socket")


def _channel(name: str, summary: str, view: Route, stream: Route) -> Route:
    """The route of a channel is that of the view or the stream that it shows; until that is known, both."""
    both = {parameter.name: parameter for parameter in (*stream.parameters, *view.parameters)}
    return replace(
        view,
        request=view.request.replace("/views/{view}", "/channels/{channel}"),
        name=name,
        summary=summary,
        parameters=tuple(both.values()),
        shown_as={"view": view, "stream": stream},
    )


def _get(path: str, right: Right, name: str, summary: str, schema: Spec | str) -> Route:
    """What takes no parameters; `schema` may be the fields of its reply."""
    body = record(schema) if isinstance(schema, str) else schema
    return Route(f"GET {path}", right, name, summary, replies=(Reply(200, body),))


def _document(path: str, name: str, summary: str) -> Route:
    replies = (Reply(200, ANYTHING), Reply(304, words="Not changed"))
    return Route(f"GET {path}", "any", name, summary, (_TAG,), replies=replies)


def _rebuild(kind: str) -> Route:
    when: Spec = {"type": "integer", "description": "When it was asked for, in microseconds."}
    return Route(
        f"POST /{kind}s/{{{kind}}}/rebuild",
        "admin",
        f"rebuild_{kind}",
        "Build {thing} anew from the log, and what is made from it",
        replies=(Reply(202, record(kind, rebuild=when), "Asked for"),),
        errors=(503, 507),
        needs_writer=True,
    )


_OF_TICKET = {kind: text() for kind in ("view", "stream", "channel")}
PAGE = Route("GET /", "open", "page", "The live page", replies=(Reply(200, text(), "The live page", "text/html"),))
ROUTES = (
    _get("/views", "some", "views", "All views", "views: [View]"),
    READ_VIEW,
    VIEW_EVENTS,
    VIEW_SOCKET,
    _rebuild("view"),
    _rebuild("flow"),
    _get("/streams", "some", "streams", "All streams", "streams: [Stream]"),
    READ_STREAM,
    STREAM_EVENTS,
    STREAM_SOCKET,
    Route(
        "GET /streams/{stream}/schema",
        "read",
        "schema_of",
        "The JSON Schema of the events of {thing}, and its versions",
        (Parameter("version", "One of its versions; left out: the newest.", {"type": "integer", "minimum": 1}),),
        replies=(Reply(200, _schema),),
        errors=(404, 503),
    ),
    _get("/channels", "some", "channels", "All channels", "channels: [Channel]"),
    _channel("read_channel", "Rows or events of {thing}", READ_VIEW, READ_STREAM),
    _channel("channel_events", VIEW_EVENTS.summary, VIEW_EVENTS, STREAM_EVENTS),
    _channel("channel_socket", VIEW_SOCKET.summary, VIEW_SOCKET, STREAM_SOCKET),
    Route(
        "GET /socket",
        "some",
        "socket",
        "Any number of views, streams and channels",
        talk=Talk("socket", to_socket_for_all, from_socket_for_all),
    ),
    Route(
        "POST /tickets",
        "any",  # its handler asks for the right to read what the body names
        "ticket",
        "A ticket for the events or the socket of one view, stream or channel",
        body=json_body(obj(**_OF_TICKET) | {"minProperties": 1, "maxProperties": 1}),
        replies=(
            Reply(201, also(record("open_until", ticket=text("Show it as ?ticket=.")), **_OF_TICKET), "A ticket"),
        ),
        errors=(404, 503, 507),
    ),
    _get(
        "/subscribers",
        "some",
        "subscribers",
        "The named subscriptions that are remembered",
        "subscribers: [Subscriber]",
    ),
    Route(
        "DELETE /subscribers/{name}",
        "some",
        "forget_subscriber",
        "Forget a named subscription, so that it begins anew",
        (
            Parameter("name", place="path"),
            Parameter("credential", "Of another credential, for an administrator: its id."),
        ),
        replies=(Reply(200, record("forgotten")),),
        errors=(404, 503, 507),
        needs_writer=True,
    ),
    _get("/status", "some", "status", "How everything is", ref("Status")),
    _get("/graph", "some", "graph", "What is made from what", ref("Graph")),
    _get("/healthz", "open", "health", "Whether the process lives", record(status={"const": "ok"})),
    Route(
        "GET /readyz",
        "open",
        "readiness",
        "Whether this edge should get requests",
        (Parameter("for", "Ask for one part.", choice("collect", "serve", "flows")),),
        replies=(Reply(200, ANYTHING), Reply(503, ANYTHING, "Not ready yet")),
        errors=(400,),
    ),
    Route(
        "GET /metrics",
        "all",
        "metrics",
        "Metrics for Prometheus",
        replies=(Reply(200, text(), "Metrics", "text/plain"),),
    ),
    _document("/openapi.json", "openapi", "This interface: OpenAPI 3.1"),
    _document("/asyncapi.json", "asyncapi", "The same for sockets, events and messages: AsyncAPI 3.0"),
    PAGE,
)
