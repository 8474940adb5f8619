"""Holds what a source has sent until the log takes it: a bounded buffer that gives out what has arrived together.

While it is full the source is not read, and so its sender waits. What a source gave out together stays together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from penstock.clock import Clock
from penstock.collect.pulling.source import Arrived

GATHER_S = 0.03
"""After the first event, how long to wait for more: a commit of one event costs 4 ms of CPU, and a batch of Spark takes
ten times as long as this."""
TOGETHER_EVENTS = 500
BUFFER_EVENTS = 4 * TOGETHER_EVENTS
BUFFER_BYTES = 4 * 1024**2
MOMENT_US = 1_000_000
"""What came further apart is not given out together, so that its `_received` is right to the second."""


class PullBuffer:
    """Between one connection's reader and the appends; lives on the edge's loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[int, Arrived]] = deque()
        self._events = self._bytes = 0
        self._ended = False
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._space = asyncio.Event()

    async def fill(self, source: AsyncIterator[Arrived]) -> None:
        """Read the source to its end, no faster than the buffer empties. Raises what the source raises."""
        try:
            async for arrived in source:
                self._put(arrived)
                while self._events >= BUFFER_EVENTS or self._bytes >= BUFFER_BYTES:
                    self._space.clear()
                    await self._space.wait()
        finally:
            self._ended = True
            self._arrived.set()
            self._enough.set()

    async def take(self) -> tuple[Arrived, int] | None:
        """What arrived within a moment, about `TOGETHER_EVENTS` at most, and when the first of it did; None when the
        source has ended."""
        await self._arrived.wait()
        if not self._enough.is_set():
            try:
                async with asyncio.timeout(GATHER_S):
                    await self._enough.wait()
            except TimeoutError:
                pass
        if not self._waiting:
            return None
        taken = self._joined()
        self._space.set()
        self._mark()
        return taken

    def _joined(self) -> tuple[Arrived, int]:
        raws: list[bytes] = []
        position: dict[str, object] | None = None
        first_us = self._waiting[0][0]
        while self._waiting and (not raws or self._fits(len(raws), first_us)):
            _, arrived = self._waiting.popleft()
            raws += arrived.raws
            if arrived.position is not None:
                position = {**(position or {}), **arrived.position}
        self._events -= len(raws)
        self._bytes -= sum(map(len, raws))
        return Arrived(raws, position), first_us

    def _fits(self, events: int, first_us: int) -> bool:
        came_us, arrived = self._waiting[0]
        return events + len(arrived.raws) <= TOGETHER_EVENTS and came_us - first_us <= MOMENT_US

    def _put(self, arrived: Arrived) -> None:
        self._waiting.append((self._clock.now_us(), arrived))
        self._events += len(arrived.raws)
        self._bytes += sum(map(len, arrived.raws))
        self._mark()

    def _mark(self) -> None:
        full = self._events >= TOGETHER_EVENTS or self._bytes >= BUFFER_BYTES
        for signal, holds in ((self._arrived, bool(self._waiting)), (self._enough, full)):
            if holds or self._ended:
                signal.set()
            else:
                signal.clear()
