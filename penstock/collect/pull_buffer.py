"""Holds what a source has sent until the log takes it: a bounded buffer that gives out what has arrived together.

While it is full the source is not read, and so its sender waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

GATHER_S = 0.03
"""After the first event, how long to wait for more: a commit of one event costs 4 ms of CPU, and a batch of Spark takes
ten times as long as this."""
TOGETHER_EVENTS = 500
BUFFER_EVENTS = 4 * TOGETHER_EVENTS
BUFFER_BYTES = 4 * 1024**2


class PullBuffer:
    """Between one connection's reader and the appends; lives on the edge's loop."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._bytes = 0
        self._ended = False
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._space = asyncio.Event()

    async def fill(self, events: AsyncIterator[bytes]) -> None:
        """Read the source to its end, no faster than the buffer empties. Raises what the source raises."""
        try:
            async for event in events:
                while len(self._events) >= BUFFER_EVENTS or self._bytes >= BUFFER_BYTES:
                    self._space.clear()
                    await self._space.wait()
                self._put(event)
        finally:
            self._ended = True
            self._arrived.set()
            self._enough.set()

    async def take(self) -> list[bytes]:
        """What arrived within a moment, at most `TOGETHER_EVENTS`; empty when the source has ended."""
        await self._arrived.wait()
        if not self._enough.is_set():
            try:
                async with asyncio.timeout(GATHER_S):
                    await self._enough.wait()
            except TimeoutError:
                pass
        taken, self._events = self._events[:TOGETHER_EVENTS], self._events[TOGETHER_EVENTS:]
        self._bytes -= sum(map(len, taken))
        self._space.set()
        self._mark()
        return taken

    def _put(self, event: bytes) -> None:
        self._events.append(event)
        self._bytes += len(event)
        self._mark()

    def _mark(self) -> None:
        full = len(self._events) >= TOGETHER_EVENTS or self._bytes >= BUFFER_BYTES
        for signal, holds in ((self._arrived, bool(self._events)), (self._enough, full)):
            if holds or self._ended:
                signal.set()
            else:
                signal.clear()
