"""Reads lines from a TCP connection, one event each. What is sent while nobody is connected is lost.

What stands behind the last line end when the other side closes is given out too: if it was cut off, it is no JSON, and
a dead letter shows it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from penstock.collect.pulling.credentials import trusted
from penstock.collect.pulling.http_get import CONNECT_S, keep_alive
from penstock.collect.pulling.lines import Lines
from penstock.collect.pulling.pull_source import SourceEvents, SourceLag, SourceRequest
from penstock.pull_origin import Origin

READ_BYTES = 64 * 1024


class TcpSource:
    """It has no position: the protocol knows none."""

    def __init__(self, origin: Origin, event_bytes: int) -> None:
        parts = urlsplit(origin.url)
        self._host, self._port = parts.hostname, parts.port
        self._origin = origin
        self._event_bytes = event_bytes

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        context = await trusted(self._origin) if self._origin.secure else None
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context, limit=READ_BYTES)
        try:
            keep_alive(writer.get_extra_info("socket"))
            yield self._events(reader)
        finally:
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    def lag(self) -> SourceLag:
        return {}

    async def _events(self, reader: asyncio.StreamReader) -> AsyncIterator[SourceEvents]:
        lines = Lines(self._event_bytes)
        try:
            while chunk := await reader.read(READ_BYTES):
                if raws := lines.feed(chunk):
                    yield SourceEvents(raws)
        except ConnectionError:
            if rest := lines.rest().strip():
                yield SourceEvents([rest])
            raise
        if rest := lines.rest().strip():
            yield SourceEvents([rest])
