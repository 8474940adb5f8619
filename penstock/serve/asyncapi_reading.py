"""Describes for AsyncAPI how views and streams are read: over sockets, Server-Sent Events and long polls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.serve.asyncapi_parts import MOVED, Channel, as_event, batch_of, message, on_socket
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


@dataclass(frozen=True)
class Shown:
    """A view or a stream under its own name, or under that of a channel."""

    kind: Literal["view", "stream"]
    target: str
    channel: str | None = None

    @property
    def name(self) -> str:
        return f"channel.{self.channel}" if self.channel else f"{self.kind}.{self.target}"

    @property
    def address(self) -> str:
        return f"/channels/{self.channel}" if self.channel else f"/{self.kind}s/{self.target}"

    @property
    def words(self) -> str:
        return f"The channel {self.channel}" if self.channel else f"The {self.kind} {self.target}"

    def messages(self) -> dict[str, str]:
        """By type, the schemas of its own messages."""
        return {own: f"{self.kind}.{self.target}.{own}" for own in _OWN[self.kind]}


def reading_channels(things: Sequence[Shown]) -> Iterator[Channel]:
    for shown in things:
        yield _socket(shown)
        yield _events(shown)
        yield _poll(shown) if shown.kind == "view" else _page(shown)
    yield _socket_for_all(things)


def _socket(shown: Shown) -> Channel:
    own = {kind: on_socket(schema) for kind, schema in shown.messages().items()}
    takes = {"subscribe": message("subscribe", subscribe(named=False)), **_TALK}
    words = f"{shown.words} over a WebSocket; subscriptions to others may share it"
    return Channel(
        f"{shown.name}.socket", f"{shown.address}/socket", words, "socket", own | _of_all(shown.kind), takes, _TICKET
    )


def _socket_for_all(things: Iterable[Shown]) -> Channel:
    schemas = dict.fromkeys(schema for shown in things for schema in shown.messages().values())
    sends = {schema: on_socket(schema) for schema in schemas} | _of_all("stream")
    takes = {"subscribe": message("subscribe", subscribe(named=True)), **_TALK}
    return Channel("socket", "/socket", "Any number of views, streams and channels", "socket", sends, takes)


def _of_all(kind: str) -> Spec:
    also = ("position", "reset", "stall", "acked", *(("subscribed",) if kind == "stream" else ()))
    named = {kind: on_socket(f"message.{kind}") for kind in also}
    return named | {kind: on_socket(f"message.{kind}", named=False) for kind in ("error", "pong")}


def _events(shown: Shown) -> Channel:
    own = {kind: as_event(schema) for kind, schema in shown.messages().items()}
    others = {kind: as_event(f"message.{kind}", resumable=False) for kind in ("reset", "stall", "error")}
    query = _QUERY | _RESUME | (_ORDER | _REACHED if shown.kind == "view" else _AFTER)
    words = f"{shown.words} as Server-Sent Events"
    sends = own | others | {"position": MOVED}
    return Channel(f"{shown.name}.events", f"{shown.address}/events", words, "http", sends, query=query)


def _poll(shown: Shown) -> Channel:
    reply = record(messages=batch_of(polled_names(shown.target)), position=ref("Position"))
    since: Spec = {"since": text("A position of this view.")} | _WAIT
    words = f"{shown.words} as a long poll: what came behind since=, or 204"
    sends = {"messages": message("messages", reply)}
    return Channel(f"{shown.name}.poll", shown.address, words, "http", sends, query=since | _QUERY | _ORDER)


def _page(shown: Shown) -> Channel:
    stream = shown.target
    reply = record(stream={"const": stream}, events=array(ref(f"stream.{stream}")), next=ref("Position"))
    words = f"{shown.words} a page at a time, waiting for the first event with wait="
    query = _AFTER | _WAIT | {"limit": {"type": "integer", "minimum": 1}} | _QUERY
    return Channel(f"{shown.name}.poll", shown.address, words, "http", {"page": message("page", reply)}, query=query)
