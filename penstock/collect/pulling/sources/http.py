"""Reads a plain HTTP address by what it answers: an event stream, JSON lines, or JSON that is asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession

from penstock.collect.judging.json_events import SLICE_BYTES, split
from penstock.collect.pulling.http_get import HttpGet, bounded
from penstock.collect.pulling.lines import Lines
from penstock.collect.pulling.pull_source import (
    NotNow,
    PositionParts,
    SourceEnded,
    SourceEvents,
    SourceLag,
    SourceRequest,
)
from penstock.config import Limits
from penstock.errors import PenstockError
from penstock.pull_origin import Origin
from penstock.sse_parser import SseParser

EVENT_STREAM = "text/event-stream"
LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-seq")
AGAIN_S = 1.0
"""After a reply of lines that ended by itself, unless `every=` says otherwise."""
EVERY_S = 10.0
"""Between two requests for JSON, unless `every=` says otherwise."""
ID = "id"
FOR = "for"
_VALIDATORS = {"etag": ("ETag", "If-None-Match"), "modified": ("Last-Modified", "If-Modified-Since")}


class HttpSource:
    """Chooses at each connection, by the content type of the first reply."""

    def __init__(self, origin: Origin, limits: Limits, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self._get = HttpGet(origin, f"{EVENT_STREAM}, {LINES[0]}, application/json;q=0.9")
        self._sse = SseSource(origin, limits.event_bytes)
        self._ndjson = NdjsonSource(origin, limits.event_bytes, limits.body_bytes, sleep)
        self._poll = PollSource(origin, limits.body_bytes, sleep)

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        headers = resume_headers(request) | conditions(request.position, request.parameters)
        async with self._get.session() as opened, self._get(opened, request.parameters, headers) as reply:
            if reply.status == 204:
                raise SourceEnded("the source answered 204: it has nothing more to send")
            yield self._chosen(reply.status, reply.content_type).read(opened, reply, request)

    def lag(self) -> SourceLag:
        return {}

    def _chosen(self, status: int, content: str) -> SseSource | NdjsonSource | PollSource:
        if content == EVENT_STREAM:
            return self._sse
        if content in LINES:
            return self._ndjson
        if status == 304 or content == "application/json" or content.endswith("+json"):
            return self._poll
        raise NotNow(
            f"the source sends '{content}': say how to read it with sse+http, ndjson+http or poll+http", after_s=30.0
        )


class NdjsonSource:
    """Reads JSON lines out of a reply, however long it goes on; a reply that is one array is read whole.

    A line that a broken connection cut off is no event. A last line without an end is one only if the reply says by
    its own framing that it is complete. It has no position of its own: `resume=` asks by the largest value of a field.
    """

    def __init__(
        self, origin: Origin, event_bytes: int, body_bytes: int, sleep: Callable[[float], Awaitable[Any]]
    ) -> None:
        self._get = HttpGet(origin, f"{LINES[0]}, application/json;q=0.5")
        self._event_bytes, self._body_bytes, self._sleep = event_bytes, body_bytes, sleep
        self._again_s = AGAIN_S if origin.every_us is None else origin.every_us / 1e6

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        async with self._get.session() as opened, self._get(opened, request.parameters) as reply:
            yield self.read(opened, reply, request)

    def lag(self) -> SourceLag:
        return {}

    async def read(
        self, session: ClientSession, reply: ClientResponse, request: SourceRequest
    ) -> AsyncIterator[SourceEvents]:
        """The events of a reply that has begun, and of those that follow when it ended by itself."""
        async for arrived in self._events(reply):
            yield arrived
        while True:
            await self._sleep(self._again_s)
            async with self._get(session, request.parameters) as reply:
                async for arrived in self._events(reply):
                    yield arrived

    async def _events(self, reply: ClientResponse) -> AsyncIterator[SourceEvents]:
        lines = Lines(self._event_bytes)
        began = False
        async for chunk in reply.content.iter_any():
            if not began and (began := bool(chunk.strip())) and chunk.lstrip()[:1] == b"[":
                yield SourceEvents(values(await bounded(reply, self._body_bytes, chunk)))
                break
            if raws := lines.feed(chunk.replace(b"\x1e", b"")):
                yield SourceEvents(raws)
        rest = lines.rest().strip()
        if "Content-Length" not in reply.headers and reply.headers.get("Transfer-Encoding") != "chunked":
            raise NotNow("the source closed the connection")
        if rest:
            yield SourceEvents([rest])


def values(body: bytes) -> list[bytes]:
    """An array's elements, or the one value. Raises `NotNow` for what is no JSON: it can be asked for again."""
    try:
        return split(body, "json") if body.strip() else []
    except PenstockError as error:
        raise NotNow(f"the source's reply is not JSON: {error.detail or error.message}") from None


class PollSource:
    """Asks for JSON again and again: an object is one event, an array many; no change costs nothing.

    `ETag` and `Last-Modified` are stored with the events that came with them, so a reply that is in the log is not
    asked for again, also after a restart. `Retry-After` is honoured. The parts of the position are `etag` and
    `modified`, whichever the source gives, and `for`, the parameters.
    """

    def __init__(self, origin: Origin, body_bytes: int, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self._get = HttpGet(origin, "application/json")
        self._body_bytes, self._sleep = body_bytes, sleep
        self._every_s = EVERY_S if origin.every_us is None else origin.every_us / 1e6

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        async with (
            self._get.session() as opened,
            self._get(opened, request.parameters, conditions(request.position, request.parameters)) as reply,
        ):
            yield self.read(opened, reply, request)

    def lag(self) -> SourceLag:
        return {}

    async def read(
        self, session: ClientSession, reply: ClientResponse, request: SourceRequest
    ) -> AsyncIterator[SourceEvents]:
        """The events of a reply that has begun, and of all that follow.

        What was given out is in the log before this connection ends well, so the next request may build on it.
        """
        position, parameters = request.position, request.parameters
        if (arrived := await self._arrived(reply, parameters)) is not None:
            position = arrived.position or {}
            yield arrived
        while True:
            await self._sleep(self._every_s)
            parameters = request.parameters
            async with self._get(session, parameters, conditions(position, parameters)) as reply:
                arrived = await self._arrived(reply, parameters)
            if arrived is not None:
                position = arrived.position or {}
                yield arrived

    async def _arrived(self, reply: ClientResponse, parameters: Mapping[str, str]) -> SourceEvents | None:
        if reply.status != 200:
            return None
        body = await bounded(reply, self._body_bytes)
        raws = values(body) if len(body) <= SLICE_BYTES else await asyncio.to_thread(values, body)
        position = {part: reply.headers.get(name) for part, (name, _) in _VALIDATORS.items()}
        return SourceEvents(raws, {**position, FOR: dict(parameters) or None})


def conditions(position: PositionParts, parameters: Mapping[str, str]) -> dict[str, str]:
    """What makes a source answer 304 when there is nothing new; an answer to another question says nothing."""
    if (position.get(FOR) or {}) != dict(parameters):
        return {}
    return {header: str(position[part]) for part, (_, header) in _VALIDATORS.items() if position.get(part)}


class SseSource:
    """Reads Server-Sent Events, resumed by `Last-Event-ID` after a break and after a restart.

    The position has one part, `id`: the last event id behind which everything is in the log.
    """

    def __init__(self, origin: Origin, event_bytes: int) -> None:
        self._get = HttpGet(origin, EVENT_STREAM)
        self._event_bytes = event_bytes

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        async with (
            self._get.session() as opened,
            self._get(opened, request.parameters, resume_headers(request)) as reply,
        ):
            if reply.status == 204:
                raise SourceEnded("the source answered 204: it has nothing more to send")
            if reply.content_type != EVENT_STREAM:
                raise NotNow(f"the source sends '{reply.content_type}', not '{EVENT_STREAM}'")
            yield self.read(opened, reply, request)

    def lag(self) -> SourceLag:
        return {}

    async def read(
        self, session: ClientSession, reply: ClientResponse, request: SourceRequest
    ) -> AsyncIterator[SourceEvents]:
        """The events of a reply that has begun."""
        parser = SseParser(self._event_bytes, str(request.position.get(ID) or ""))
        stored = parser.last_id
        async for chunk in reply.content.iter_any():
            events = parser.feed(chunk)
            moved = parser.last_id != stored
            if events or moved:
                stored = parser.last_id
                yield SourceEvents([event.data for event in events], {ID: stored or None} if moved else None)
        raise NotNow("the source closed the connection", None if parser.retry_ms is None else parser.retry_ms / 1000)


def resume_headers(request: SourceRequest) -> dict[str, str]:
    """Asks the source to go on behind the last id. A line end cannot be in one; other odd characters go as UTF-8."""
    last = request.position.get(ID)
    return {"Last-Event-ID": str(last)} if last else {}
