"""Describes for AsyncAPI how views and streams are read: over sockets, Server-Sent Events and long polls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.serve.asyncapi_parts import MOVED, Channel, as_event, batch_of, message, on_socket
from penstock.serve.documented import Thing
from penstock.serve.message_schemas import (
    ACK,
    OF_STREAMS,
    OF_VIEWS,
    PACE,
    PING,
    UNSUBSCRIBE,
    polled_names,
    subscribe,
)
from penstock.serve.openapi_parts import Spec, array, record, ref, text

_TALK = {
    kind: message(kind, schema)
    for kind, schema in (("unsubscribe", UNSUBSCRIBE), ("ack", ACK), ("pace", PACE), ("ping", PING))
}
_OWN = {"view": OF_VIEWS, "stream": OF_STREAMS}
_QUERY: Spec = {
    "where": text("A condition in SQL."),
    "params": text("A JSON object: the values of the parameters (`:name`) in `where`."),
    "select": text("Columns, with commas between."),
}
_ORDER: Spec = {
    "order_by": text("Columns, with commas between; `-` before one turns it around."),
    "limit": {"type": ["integer", "string"], "minimum": 0, "description": "Rows at most; `null`: all."},
}
_TICKET: Spec = {"ticket": text("Of POST /tickets, where no header can be set.")}
_WAIT: Spec = {"wait": {"type": "number", "minimum": 0, "description": "Seconds."}}
_REACHED: Spec = {"after": text("An ack."), "at_least": text("A position.")} | _WAIT
_RESUME: Spec = {"last_event_id": text("The id of the last event, where the header cannot be set.")} | _TICKET
_AFTER: Spec = {"after": text("A position of this stream, `start` or `end`.")}


def _messages(thing: Thing) -> dict[str, str]:
    """By type, the schemas of its own messages."""
    return {own: f"{thing.name}.{own}" for own in _OWN[thing.kind]}


def _words(thing: Thing) -> str:
    return thing.words[0].upper() + thing.words[1:]


def reading_channels(things: Sequence[Thing]) -> Iterator[Channel]:
    for thing in things:
        yield _socket(thing)
        yield _events(thing)
        yield _poll(thing) if thing.kind == "view" else _page(thing)
    yield _socket_for_all(things)


def _socket(thing: Thing) -> Channel:
    own = {kind: on_socket(schema) for kind, schema in _messages(thing).items()}
    takes = {"subscribe": message("subscribe", subscribe(named=False)), **_TALK}
    words = f"{_words(thing)} over a WebSocket; subscriptions to others may share it"
    return Channel(
        f"{thing.name}.socket", f"{thing.address}/socket", words, "socket", own | _of_all(thing.kind), takes, _TICKET
    )


def _socket_for_all(things: Sequence[Thing]) -> Channel:
    own = {thing.target for thing in things if thing.channel is None}
    shown = [thing for thing in things if thing.channel is None or thing.target not in own]
    schemas = dict.fromkeys(schema for thing in shown for schema in _messages(thing).values())
    sends = {schema: on_socket(schema) for schema in schemas} | _of_all("stream")
    takes = {"subscribe": message("subscribe", subscribe(named=True)), **_TALK}
    return Channel("socket", "/socket", "Any number of views, streams and channels", "socket", sends, takes)


def _of_all(kind: str) -> Spec:
    also = ("position", "reset", "stall", "acked", *(("subscribed",) if kind == "stream" else ()))
    named = {kind: on_socket(f"message.{kind}") for kind in also}
    return named | {kind: on_socket(f"message.{kind}", named=False) for kind in ("error", "pong")}


def _events(thing: Thing) -> Channel:
    own = {kind: as_event(schema, id=ref("Position")) for kind, schema in _messages(thing).items()}
    own["reset"] = as_event("message.reset", id={"const": "", "description": "What the browser remembered is gone."})
    others = {kind: as_event(f"message.{kind}") for kind in ("stall", "error")}
    query = _QUERY | _RESUME | (_ORDER | _REACHED if thing.kind == "view" else _AFTER)
    words = f"{_words(thing)} as Server-Sent Events"
    sends = own | others | {"position": MOVED}
    return Channel(f"{thing.name}.events", f"{thing.address}/events", words, "http", sends, query=query)


def _poll(thing: Thing) -> Channel:
    reply = record(messages=batch_of(polled_names(thing)), position=ref("Position"))
    since: Spec = {"since": text("A position of this view.")} | _WAIT
    words = f"{_words(thing)} as a long poll: what came behind since=, or 204"
    sends = {"messages": message("messages", reply)}
    return Channel(f"{thing.name}.poll", thing.address, words, "http", sends, query=since | _QUERY | _ORDER)


def _page(thing: Thing) -> Channel:
    stream = thing.target
    reply = record(stream={"const": stream}, events=array(ref(thing.name)), next=ref("Position"))
    words = f"{_words(thing)} a page at a time, waiting for the first event with wait="
    query = _AFTER | _WAIT | {"limit": {"type": "integer", "minimum": 1}} | _QUERY
    return Channel(f"{thing.name}.poll", thing.address, words, "http", {"page": message("page", reply)}, query=query)
