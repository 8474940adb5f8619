"""Reads another Penstock: the events of a stream, or the changes of a view, from a position that survives both sides.

A stream is read by pages that wait for news; each page and the position behind it go into one commit here. A view is
followed over Server-Sent Events: its rows at first, each as an upsert, then every change. An epoch that is no more, or
a position that retention has passed, is a `reset`: it is told loudly, and reading begins anew.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pyarrow as pa
from aiohttp import ClientResponse, ClientSession

from penstock.clock import Clock
from penstock.collect.judging.json_events import SLICE_BYTES
from penstock.collect.pulling.http_get import HttpGet, bounded
from penstock.collect.pulling.pull_source import NotNow, SourceEvents, SourceLag, SourceRequest, SourceReset
from penstock.declaration import StreamDef
from penstock.errors import BadPositionError, PenstockError, PositionGoneError
from penstock.position import Position
from penstock.pull_origin import Origin
from penstock.sse_parser import ServerSentEvent, SseParser

TOKEN = "token"
PAGE_EVENTS = 1_000
WAIT_S = 20
MESSAGE_BYTES = 64 * 1024**2
"""A page or a batch of changes; a page that is larger is asked for again with fewer events."""
LAG_S = 5.0
_Object = dict[str, msgspec.Raw]
_GONE = (PositionGoneError.code, BadPositionError.code)
"""A position of an epoch that is no more, or from before what retention has left. Any other refusal (a proxy's 400, a
parameter that is not understood) says nothing of the position, and to read all again would double it."""


class _Page(msgspec.Struct):
    events: list[_Object]
    next: str


class _Message(msgspec.Struct):
    type: str
    position: str | None = None
    rows: list[_Object] = []
    upserts: list[_Object] = []
    deletes: list[_Object] = []
    part: int = 1
    parts: int = 1
    accepted: dt.datetime | None = None
    reason: str = ""
    error: dict[str, Any] = {}


class PenstockStreamSource:
    """`/streams/{name}`. The position has one part, `token`: the other side's own position behind what we have."""

    def __init__(self, origin: Origin, stream: StreamDef, clock: Clock) -> None:
        self._get = HttpGet(origin, "application/json")
        self._integers = [field.name for field in stream.events.fields if pa.types.is_integer(field.type)]
        self._clock = clock
        self._limit = PAGE_EVENTS
        self._lag: float | None = None
        self._asked_s = 0.0

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        token = request.position.get(TOKEN)
        async with self._get.session() as opened:
            first = await self._page(opened, token, wait_s=0)
            yield self._events(opened, first)

    def lag(self) -> SourceLag:
        return {} if self._lag is None else {"events": self._lag}

    async def _events(self, session: ClientSession, page: _Page) -> AsyncIterator[SourceEvents]:
        while True:
            await self._measure(session, page)
            if page.events:
                yield SourceEvents(await asyncio.to_thread(self._raws, page.events), {TOKEN: page.next})
            page = await self._page(session, page.next, WAIT_S)

    async def _page(self, session: ClientSession, after: str | None, wait_s: int) -> _Page:
        while True:
            parameters = {"limit": str(self._limit), "wait": str(wait_s), **({"after": after} if after else {})}
            try:
                async with self._get(session, parameters) as reply:
                    body = await bounded(reply, MESSAGE_BYTES)
                self._limit = min(PAGE_EVENTS, self._limit * 2)
                return await asyncio.to_thread(msgspec.json.decode, body, type=_Page)
            except NotNow as refused:
                if refused.code in _GONE and after:
                    raise SourceReset(f"the other side no longer knows the position ({refused})") from None
                if refused.status is not None or self._limit == 1:
                    raise
                self._limit //= 2

    def _raws(self, events: Sequence[_Object]) -> list[bytes]:
        return [msgspec.json.encode(self._fields(event)) for event in events]

    def _fields(self, event: _Object) -> _Object:
        """The event's own fields; an integer that went as text, because JavaScript could not hold it, is one again."""
        fields = {name: value for name, value in event.items() if not name.startswith("_")}
        for name in self._integers:
            text = bytes(fields.get(name, b""))
            if text[:1] == b'"' and text.strip(b'"').removeprefix(b"-").isdigit():
                fields[name] = msgspec.Raw(text.strip(b'"'))
        return fields

    async def _measure(self, session: ClientSession, page: _Page) -> None:
        """A page that is not full reaches the end; else the other side is asked where that is, now and then."""
        if len(page.events) < self._limit:
            self._lag = 0.0
        elif self._clock.monotonic() - self._asked_s >= LAG_S:
            self._asked_s = self._clock.monotonic()
            try:
                self._lag = float(await self._behind(session, page.next))
            except (NotNow, PenstockError, msgspec.DecodeError, StopIteration):
                self._lag = None

    async def _behind(self, session: ClientSession, token: str) -> int:
        async with self._get(session, path="/streams") as reply:
            listed = msgspec.json.decode(await bounded(reply, MESSAGE_BYTES))
        here = Position.parse(token)
        end = next(Position.parse(s["position"]) for s in listed["streams"] if s["stream"] == here.name)
        return max(0, sum(end.offsets) - sum(here.offsets)) if end.epoch == here.epoch else 0


class PenstockViewSource:
    """`/views/{name}`: each changed row as an event with its columns and `change`, which is `upsert` or `delete`."""

    def __init__(self, origin: Origin, clock: Clock) -> None:
        self._get = HttpGet(origin, "text/event-stream")
        self._path = f"{self._get.url.path}/events"
        self._clock = clock
        self._lag_s: float | None = None

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        token = request.position.get(TOKEN)
        headers = {"Last-Event-ID": str(token)} if token else {}
        try:
            async with (
                self._get.session() as opened,
                self._get(opened, {"limit": "null"}, headers, path=self._path) as reply,
            ):
                yield self._events(reply, token)
        except NotNow as refused:
            if refused.code in _GONE and token:
                raise SourceReset(f"the other side no longer knows the position ({refused})") from None
            raise

    def lag(self) -> SourceLag:
        return {} if self._lag_s is None else {"seconds": self._lag_s}

    async def _events(self, reply: ClientResponse, token: str | None) -> AsyncIterator[SourceEvents]:
        parser = SseParser(MESSAGE_BYTES, token or "")
        stored, whole = token, True
        async for chunk in reply.content.iter_any():
            for event in parser.feed(chunk):
                message = await _decoded(event)
                whole = message.part == message.parts
                raws = await asyncio.to_thread(_changes, message)
                if message.accepted is not None:
                    self._lag_s = max(0.0, self._clock.now_us() / 1e6 - message.accepted.timestamp())
                if whole and message.position is not None:
                    stored = message.position
                yield SourceEvents(raws, {TOKEN: stored} if whole else None)
            if whole and parser.last_id and parser.last_id != stored:
                stored = parser.last_id
                yield SourceEvents([], {TOKEN: stored})


async def _decoded(event: ServerSentEvent) -> _Message:
    decode = msgspec.json.Decoder(_Message).decode
    message = decode(event.data) if len(event.data) <= SLICE_BYTES else await asyncio.to_thread(decode, event.data)
    if message.type == "reset":
        raise SourceReset(f"the other side reset the view: {message.reason}")
    if message.type == "error":
        raise NotNow(f"the other side said: {message.error.get('message')}")
    return message


def _changes(message: _Message) -> list[bytes]:
    encode = msgspec.json.encode
    changed = [encode(row | {"change": _UPSERT}) for row in (*message.rows, *message.upserts)]
    return changed + [encode(key | {"change": _DELETE}) for key in message.deletes]


_UPSERT, _DELETE = msgspec.Raw(b'"upsert"'), msgspec.Raw(b'"delete"')
