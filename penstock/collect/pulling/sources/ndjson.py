"""Reads JSON lines out of an HTTP reply, however long it goes on; a reply that is one array is read whole.

A line that a broken connection cut off is no event. A last line without an end is one only if the reply says by its
own framing that it is complete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession

from penstock.collect.judging.json_events import split
from penstock.collect.pulling.http_get import HttpGet, bounded
from penstock.collect.pulling.lines import Lines
from penstock.collect.pulling.source import Arrived, Ask, Lag, NotNow
from penstock.errors import PenstockError
from penstock.origin import Origin

CONTENTS = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-seq")
AGAIN_S = 1.0
"""After a reply that ended by itself, unless `every=` says otherwise."""


class NdjsonSource:
    """It has no position of its own: `resume=` asks by the largest value of a field."""

    def __init__(
        self, origin: Origin, event_bytes: int, body_bytes: int, sleep: Callable[[float], Awaitable[Any]]
    ) -> None:
        self._get = HttpGet(origin, f"{CONTENTS[0]}, application/json;q=0.5")
        self._event_bytes, self._body_bytes, self._sleep = event_bytes, body_bytes, sleep
        self._again_s = AGAIN_S if origin.every_us is None else origin.every_us / 1e6

    @asynccontextmanager
    async def open(self, ask: Ask) -> AsyncIterator[AsyncIterator[Arrived]]:
        async with self._get.session() as opened, self._get(opened, ask.parameters) as reply:
            yield self.read(opened, reply, ask)

    def lag(self) -> Lag:
        return {}

    async def read(self, session: ClientSession, reply: ClientResponse, ask: Ask) -> AsyncIterator[Arrived]:
        """The events of a reply that has begun, and of those that follow when it ended by itself."""
        async for arrived in self._events(reply):
            yield arrived
        while True:
            await self._sleep(self._again_s)
            async with self._get(session, ask.parameters) as reply:
                async for arrived in self._events(reply):
                    yield arrived

    async def _events(self, reply: ClientResponse) -> AsyncIterator[Arrived]:
        lines = Lines(self._event_bytes)
        began = False
        async for chunk in reply.content.iter_any():
            if not began and (began := bool(chunk.strip())) and chunk.lstrip()[:1] == b"[":
                yield Arrived(values(await bounded(reply, self._body_bytes, chunk)))
                break
            if found := lines.feed(chunk.replace(b"\x1e", b"")):
                yield Arrived(found)
        rest = lines.rest().strip()
        if "Content-Length" not in reply.headers and reply.headers.get("Transfer-Encoding") != "chunked":
            raise NotNow("the source closed the connection")
        if rest:
            yield Arrived([rest])


def values(body: bytes) -> list[bytes]:
    """An array's elements, or the one value. Raises `NotNow` for what is no JSON: it can be asked for again."""
    try:
        return split(body, "json") if body.strip() else []
    except PenstockError as error:
        raise NotNow(f"the source's reply is not JSON: {error.detail or error.message}") from None
