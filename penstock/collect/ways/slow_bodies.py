"""Gives up bodies that come too slowly, so that a thousand trickling senders hold neither memory nor connections.

A body must grow within a time, and bring a number of bytes per second, reckoned over at least `FIRST_S`. It is looked
at once a second for all bodies together: those that are there when their request begins, nearly all, are never seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from aiohttp import StreamReader

from penstock.clock import Clock
from penstock.config import Limits
from penstock.errors import SlowBodyError

LOOK_S = 1.0
FIRST_S = 30.0
"""A slow start is no crime: the rate is asked for after this long."""


@dataclass(slots=True)
class _Seen:
    began_s: float
    bytes: int
    grew_s: float


class SlowBodies:
    """The bodies that are being read; lives on the edge's loop."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._seen: dict[StreamReader, _Seen] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._seen)

    @contextmanager
    def watching(self, content: StreamReader) -> Iterator[None]:
        """While a body is read. Reading raises `SlowBodyError` when it is given up."""
        now_s = self._clock.monotonic()
        self._seen[content] = _Seen(now_s, content.total_bytes, now_s)
        try:
            yield
        finally:
            self._seen.pop(content, None)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_looking(), name="slow bodies")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Give up those that are too slow."""
        now_s = self._clock.monotonic()
        for content, seen in list(self._seen.items()):
            if content.total_bytes > seen.bytes:
                seen.bytes, seen.grew_s = content.total_bytes, now_s
            why = self._too_slow(seen, now_s)
            if why is not None:
                self._seen.pop(content, None)
                content.set_exception(
                    SlowBodyError("the body comes too slowly", detail=why, hint="send it again, or in smaller parts")
                )

    def _too_slow(self, seen: _Seen, now_s: float) -> str | None:
        if now_s - seen.grew_s > self._limits.body_pause_s:
            return f"nothing came for {self._limits.body_pause_s:g} s, after {seen.bytes} bytes"
        passed = now_s - seen.began_s
        if passed > FIRST_S and seen.bytes < passed * self._limits.body_bytes_s:
            return f"{seen.bytes} bytes in {passed:.0f} s; at least {self._limits.body_bytes_s} per second are needed"
        return None
