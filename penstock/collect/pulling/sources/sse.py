"""Reads Server-Sent Events over HTTP, resumed by `Last-Event-ID` after a break and after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import ClientResponse, ClientSession

from penstock.collect.pulling.http_get import HttpGet
from penstock.collect.pulling.source import Arrived, Ask, Ended, Lag, NotNow
from penstock.origin import Origin
from penstock.sse_parser import SseParser

CONTENT = "text/event-stream"
ID = "id"


class SseSource:
    """The position has one part, `id`: the last event id behind which everything is in the log."""

    def __init__(self, origin: Origin, event_bytes: int) -> None:
        self._get = HttpGet(origin, CONTENT)
        self._event_bytes = event_bytes

    @asynccontextmanager
    async def open(self, ask: Ask) -> AsyncIterator[AsyncIterator[Arrived]]:
        async with self._get.session() as opened, self._get(opened, ask.parameters, resume_headers(ask)) as reply:
            if reply.status == 204:
                raise Ended("the source answered 204: it has nothing more to send")
            if reply.content_type != CONTENT:
                raise NotNow(f"the source sends '{reply.content_type}', not '{CONTENT}'")
            yield self.read(opened, reply, ask)

    def lag(self) -> Lag:
        return {}

    async def read(self, session: ClientSession, reply: ClientResponse, ask: Ask) -> AsyncIterator[Arrived]:
        """The events of a reply that has begun."""
        parser = SseParser(self._event_bytes, str(ask.position.get(ID) or ""))
        stored = parser.last_id
        async for chunk in reply.content.iter_any():
            events = parser.feed(chunk)
            moved = parser.last_id != stored
            if events or moved:
                stored = parser.last_id
                yield Arrived([event.data for event in events], {ID: stored or None} if moved else None)
        raise NotNow("the source closed the connection", None if parser.retry_ms is None else parser.retry_ms / 1000)


def resume_headers(ask: Ask) -> dict[str, str]:
    """Asks the source to go on behind the last id. A line end cannot be in one; other odd characters go as UTF-8."""
    last = ask.position.get(ID)
    return {"Last-Event-ID": str(last)} if last else {}
