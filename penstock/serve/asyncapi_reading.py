"""Describes for AsyncAPI how views and streams are read: over sockets, Server-Sent Events and long polls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.serve.asyncapi_parts import MOVED, Channel, as_event, batch_of, message, on_socket
from penstock.serve.message_schemas import OF_STREAMS, OF_VIEWS, PING, UNSUBSCRIBE, message_names, subscribe
from penstock.serve.openapi_parts import Spec, array, record, ref, text

_TALK = {"unsubscribe": message("unsubscribe", UNSUBSCRIBE), "ping": message("ping", PING)}
_OWN = {"view": OF_VIEWS, "stream": OF_STREAMS}
_QUERY: Spec = {"where": text("A condition in SQL."), "select": text("Columns, with commas between.")}
_ORDER: Spec = {
    "order_by": text("Columns, with commas between; `-` before one turns it around."),
    "limit": {"type": ["integer", "string"], "minimum": 0, "description": "Rows at most; `null`: all."},
}
_RESUME: Spec = {"last_event_id": text("The id of the last event, where the header cannot be set.")}
_AFTER: Spec = {"after": text("A position of this stream, `start` or `end`.")}


def reading_channels(views: Iterable[str], streams: Iterable[str]) -> Iterator[Channel]:
    views, streams = list(views), list(streams)
    for view in views:
        yield _socket("view", view)
        yield _events("view", view, _QUERY | _ORDER | _RESUME)
        yield _poll(view)
    for stream in streams:
        yield _socket("stream", stream)
        yield _events("stream", stream, _AFTER | _QUERY | _RESUME)
        yield _page(stream)
    yield _socket_for_all(views, streams)


def _socket(kind: str, name: str) -> Channel:
    return Channel(
        f"{kind}.{name}.socket",
        f"/{kind}s/{name}/socket",
        f"The {kind} {name} over a WebSocket; subscriptions to others may share it",
        "socket",
        {own: on_socket(f"{kind}.{name}.{own}") for own in _OWN[kind]} | _of_all(),
        {"subscribe": message("subscribe", subscribe(kind)), **_TALK},
    )


def _socket_for_all(views: Iterable[str], streams: Iterable[str]) -> Channel:
    named = [f"{kind}.{name}" for kind, names in (("view", views), ("stream", streams)) for name in names]
    sends = {f"{own}.{kind}": on_socket(f"{own}.{kind}") for own in named for kind in _OWN[own.partition(".")[0]]}
    takes = {"subscribe": message("subscribe", subscribe()), **_TALK}
    return Channel(
        "socket", "/socket", "Any number of views and streams over one WebSocket", "socket", sends | _of_all(), takes
    )


def _of_all() -> Spec:
    named = {kind: on_socket(f"message.{kind}") for kind in ("position", "reset")}
    return named | {kind: on_socket(f"message.{kind}", named=False) for kind in ("error", "pong")}


def _events(kind: str, name: str, query: Spec) -> Channel:
    sends = {own: as_event(f"{kind}.{name}.{own}") for own in _OWN[kind]} | {
        "reset": as_event("message.reset", resumable=False),
        "error": as_event("message.error", resumable=False),
        "position": MOVED,
    }
    summary = f"The {kind} {name} as Server-Sent Events"
    return Channel(f"{kind}.{name}.events", f"/{kind}s/{name}/events", summary, "http", sends, query=query)


def _poll(view: str) -> Channel:
    reply = record(messages=batch_of(message_names("view", view)), position=ref("Position"))
    since: Spec = {"since": text("A position of this view."), "wait": {"type": "number", "minimum": 0}}
    return Channel(
        f"view.{view}.poll",
        f"/views/{view}",
        f"The view {view} as a long poll: what came behind since=, or 204",
        "http",
        {"messages": message("messages", reply)},
        query=since | _QUERY | _ORDER,
    )


def _page(stream: str) -> Channel:
    reply = record(stream={"const": stream}, events=array(ref(f"stream.{stream}")), next=ref("Position"))
    wait: Spec = {"wait": {"type": "number", "minimum": 0}, "limit": {"type": "integer", "minimum": 1}}
    return Channel(
        f"stream.{stream}.poll",
        f"/streams/{stream}",
        f"The stream {stream} a page at a time, waiting for the first event with wait=",
        "http",
        {"page": message("page", reply)},
        query=_AFTER | wait | _QUERY,
    )
