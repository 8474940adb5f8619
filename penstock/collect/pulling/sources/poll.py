"""Asks an HTTP source for JSON again and again: an object is one event, an array many; no change costs nothing.

`ETag` and `Last-Modified` are the position: they are stored with the events that came with them, so a reply that is
in the log is not asked for again, also after a restart. `Retry-After` is honoured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession

from penstock.collect.judging.json_events import SLICE_BYTES
from penstock.collect.pulling.http_get import HttpGet, bounded
from penstock.collect.pulling.source import Arrived, Ask, Lag, Parts
from penstock.collect.pulling.sources.ndjson import values
from penstock.origin import Origin

EVERY_S = 10.0
FOR = "for"
_ASKED = {"etag": ("ETag", "If-None-Match"), "modified": ("Last-Modified", "If-Modified-Since")}


class PollSource:
    """The parts of the position are `etag` and `modified`, whichever the source gives, and `for`, what was asked."""

    def __init__(self, origin: Origin, body_bytes: int, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self._get = HttpGet(origin, "application/json")
        self._body_bytes, self._sleep = body_bytes, sleep
        self._every_s = EVERY_S if origin.every_us is None else origin.every_us / 1e6

    @asynccontextmanager
    async def open(self, ask: Ask) -> AsyncIterator[AsyncIterator[Arrived]]:
        async with (
            self._get.session() as opened,
            self._get(opened, ask.parameters, conditions(ask.position, ask.parameters)) as reply,
        ):
            yield self.read(opened, reply, ask)

    def lag(self) -> Lag:
        return {}

    async def read(self, session: ClientSession, reply: ClientResponse, ask: Ask) -> AsyncIterator[Arrived]:
        """The events of a reply that has begun, and of all that follow.

        What was given out is in the log before this connection ends well, so the next request may build on it.
        """
        position, asked = ask.position, ask.parameters
        if (arrived := await self._arrived(reply, asked)) is not None:
            position = arrived.position or {}
            yield arrived
        while True:
            await self._sleep(self._every_s)
            asked = ask.parameters
            async with self._get(session, asked, conditions(position, asked)) as reply:
                arrived = await self._arrived(reply, asked)
            if arrived is not None:
                position = arrived.position or {}
                yield arrived

    async def _arrived(self, reply: ClientResponse, asked: Mapping[str, str]) -> Arrived | None:
        if reply.status != 200:
            return None
        body = await bounded(reply, self._body_bytes)
        raws = values(body) if len(body) <= SLICE_BYTES else await asyncio.to_thread(values, body)
        position = {part: reply.headers.get(name) for part, (name, _) in _ASKED.items()}
        return Arrived(raws, {**position, FOR: dict(asked) or None})


def conditions(position: Parts, asked: Mapping[str, str]) -> dict[str, str]:
    """What makes a source answer 304 when there is nothing new; an answer to another question says nothing."""
    if (position.get(FOR) or {}) != dict(asked):
        return {}
    return {header: str(position[part]) for part, (_, header) in _ASKED.items() if position.get(part)}
