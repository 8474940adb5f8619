"""Reads a plain HTTP address by what it answers: an event stream, JSON lines, or JSON that is asked for again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.collect.pulling.http_get import HttpGet
from penstock.collect.pulling.source import Arrived, Ask, Ended, Lag, NotNow
from penstock.collect.pulling.sources import ndjson, sse
from penstock.collect.pulling.sources.ndjson import NdjsonSource
from penstock.collect.pulling.sources.poll import PollSource, conditions
from penstock.collect.pulling.sources.sse import SseSource, resume_headers
from penstock.config import Limits
from penstock.origin import Origin


class HttpSource:
    """Chooses at each connection, by the content type of the first reply."""

    def __init__(self, origin: Origin, limits: Limits, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self._get = HttpGet(origin, f"{sse.CONTENT}, {ndjson.CONTENTS[0]}, application/json;q=0.9")
        self._sse = SseSource(origin, limits.event_bytes)
        self._ndjson = NdjsonSource(origin, limits.event_bytes, limits.body_bytes, sleep)
        self._poll = PollSource(origin, limits.body_bytes, sleep)

    @asynccontextmanager
    async def open(self, ask: Ask) -> AsyncIterator[AsyncIterator[Arrived]]:
        headers = resume_headers(ask) | conditions(ask.position, ask.parameters)
        async with self._get.session() as opened, self._get(opened, ask.parameters, headers) as reply:
            if reply.status == 204:
                raise Ended("the source answered 204: it has nothing more to send")
            yield self._chosen(reply.status, reply.content_type).read(opened, reply, ask)

    def lag(self) -> Lag:
        return {}

    def _chosen(self, status: int, content: str) -> SseSource | NdjsonSource | PollSource:
        if content == sse.CONTENT:
            return self._sse
        if content in ndjson.CONTENTS:
            return self._ndjson
        if status == 304 or content == "application/json" or content.endswith("+json"):
            return self._poll
        raise NotNow(
            f"the source sends '{content}': say how to read it with sse+http, ndjson+http or poll+http", after_s=30.0
        )
