"""The ways on which messages come: the same messages with the same positions on each, so that one may resume another's.

A reader calls `messages` once for each connection, takes what comes, and closes it. While nobody asks for the next
message, nothing is read from the network, so that the server sees a slow reader as one. What connects needs aiohttp and
imports it then: a program that only sends never pays for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from penstock.client.read_request import ReadRequest
from penstock.client.verdict import TransientFailure, close_failure, failure_in
from penstock.errors import BadRequestError, UnreachableError
from penstock.protocol import Message, encode
from penstock.sse_parser import SseParser

if TYPE_CHECKING:
    import aiohttp

    from penstock.client.http_calls import HttpCalls

Way = Literal["websocket", "sse", "poll"]

OPEN: Message = {"type": "open"}
"""What a transport gives first where it can tell that it is connected before there is any news."""
_UNBOUNDED = 2**62
_decode = msgspec.json.Decoder(dict).decode
IDLE_S = 40.0
"""Silence for so long is a dead connection: a server says something at least every 30 s."""


class Transport(Protocol):
    """One way to follow a view or a stream."""

    def messages(self, request: ReadRequest, since: str | None) -> AsyncGenerator[Message, None]:
        """The messages behind `since` until the connection ends.

        Raises `TransientFailure` when the same may be asked again, else a `PenstockError` for whoever reads. A message
        of type `error` is raised, not given. A stream's `since` is never None.
        """


def transport(way: Way, calls: HttpCalls, idle_s: float, compress: bool) -> Transport:
    """The transport of this name."""
    if way == "websocket":
        return OverSocket(calls, idle_s, compress)
    if way == "sse":
        return OverEvents(calls, idle_s)
    if way == "poll":
        return OverPolls(calls)
    raise BadRequestError(f"there is no transport '{way}'", hint="use websocket, sse or poll")


def _message(content: str | bytes | Message) -> Message:
    """A message that is not an error: that is raised."""
    try:
        message: Message = content if isinstance(content, dict) else _decode(content)
    except msgspec.MsgspecError:
        raise TransientFailure(UnreachableError("the server sent something that is no message")) from None
    if message.get("type") == "error":
        raise failure_in(message.get("error") or {})
    return message


class FromEnd:
    """A transport that can begin at the end of a stream: which end that is, is known before anything else is read.

    Else a connection that broke before its first message would begin at a later end, and miss what came between.
    """

    def __init__(self, calls: HttpCalls, inner: Transport) -> None:
        self._calls, self._inner = calls, inner

    async def messages(self, request: ReadRequest, since: str | None) -> AsyncGenerator[Message, None]:
        if request.kind == "stream" and since == "end":
            reply = await self._calls.get(request.path, {"after": "end", "limit": "1"}) or {}
            since = reply["next"]
            yield {"type": "position", "position": since}
        async with aclosing(self._inner.messages(request, since)) as messages:
            async for message in messages:
                yield message


class OverSocket:
    """The transport `websocket`, with one subscription on each, so that a slow reader of one holds up no other."""

    def __init__(self, calls: HttpCalls, idle_s: float, compress: bool) -> None:
        self._calls, self._idle_s, self._compress = calls, idle_s, compress

    async def messages(self, request: ReadRequest, since: str | None) -> AsyncGenerator[Message, None]:
        from aiohttp import WSMsgType

        async with self._calls.socket(f"{request.path}/socket", self._compress) as socket:
            await socket.send_str(encode(request.message(since)).decode())
            yield OPEN
            while True:
                frame = await self._frame(socket)
                if frame.type is WSMsgType.TEXT:
                    yield _message(frame.data)
                elif frame.type is WSMsgType.PING:
                    await socket.pong(frame.data)
                elif frame.type is WSMsgType.CLOSE:
                    raise close_failure(frame.data, str(frame.extra or ""))
                elif frame.type in (WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                    raise close_failure(socket.close_code or 1006, str(socket.exception() or ""))

    async def _frame(self, socket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage:
        """The next frame. Silence is broken by a ping; whoever does not answer that is gone."""
        with suppress(TimeoutError):
            return await socket.receive(self._idle_s / 2)
        await socket.ping()
        try:
            return await socket.receive(self._idle_s / 2)
        except TimeoutError:
            raise TransientFailure(UnreachableError(f"the server said nothing for {self._idle_s:g} s")) from None


class OverEvents:
    """The transport `sse`, for networks that let plain HTTP through and nothing else. The server sends a comment every
    15 s."""

    def __init__(self, calls: HttpCalls, idle_s: float) -> None:
        self._calls, self._idle_s = calls, idle_s

    async def messages(self, request: ReadRequest, since: str | None) -> AsyncGenerator[Message, None]:
        parameters = request.parameters()
        if since is not None:
            parameters["after" if request.kind == "stream" else "last_event_id"] = since
        parser, position = SseParser(_UNBOUNDED), ""
        async with self._calls.events(f"{request.path}/events", parameters, self._idle_s) as content:
            yield OPEN
            while data := await content.readany():
                for event in parser.feed(data):
                    position = event.id
                    yield _message(event.data)
                if parser.last_id != position:  # an id without an event only moves the position
                    position = parser.last_id
                    yield {"type": "position", "position": position}
        raise TransientFailure(UnreachableError("the server ended the stream of events"))


WAIT_S = 20
"""How long one request waits for news: less than any proxy's patience."""


class OverPolls:
    """The transport `poll`, for networks that let no reply stay open."""

    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls

    async def messages(self, request: ReadRequest, since: str | None) -> AsyncGenerator[Message, None]:
        follow = self._events if request.kind == "stream" else self._changes
        async for message in follow(request, since):
            yield _message(message)

    async def _changes(self, request: ReadRequest, since: str | None) -> AsyncGenerator[Message, None]:
        if since is None:
            reply = await self._get(request, {})
            since = reply["position"]
            yield {"type": "snapshot", "view": request.name, "position": since, "rows": reply["rows"]}
        while True:
            reply = await self._get(request, {"since": since})
            for message in reply.get("messages", ()):
                yield message
            since = reply.get("position", since)

    async def _events(self, request: ReadRequest, since: str | None) -> AsyncGenerator[Message, None]:
        while True:
            reply = await self._get(request, {"after": since or "start"})
            since = reply["next"]
            yield {"type": "events", "stream": request.name, "position": since, "events": reply["events"]}

    async def _get(self, request: ReadRequest, more: dict[str, str]) -> Mapping[str, Any]:
        """A reply; an empty one when nothing came in time."""
        parameters = request.parameters() | more | {"wait": str(WAIT_S)}
        return await self._calls.get(request.path, parameters, WAIT_S) or {}
