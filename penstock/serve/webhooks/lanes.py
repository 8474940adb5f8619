"""Shares out how many deliveries may be under way, so that endpoints in trouble take no place of those that are well.

An endpoint has one delivery under way. Whoever failed last time, and whoever is new and has taken nothing yet, goes
through the slow lane. In the fast lane an attempt has a moment; then it moves over into the slow lane, or is ended when
that is full too: what a crowd of hanging endpoints uses up is their own room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

FAST = 128
SLOW = 64
MOMENT_S = 2.0
"""How long an attempt may stay in the fast lane."""


class Crowded(Exception):
    """The attempt was slow, and there was no room left for slow ones."""


class Lanes:
    """Of one edge; lives on its loop."""

    def __init__(self, fast: int = FAST, slow: int = SLOW, moment_s: float = MOMENT_S) -> None:
        self._fast, self._slow = asyncio.Semaphore(fast), asyncio.Semaphore(slow)
        self._moment_s = moment_s

    async def run(self, attempt: Callable[[], Awaitable[T]], *, troubled: bool) -> T:
        """The attempt's result; raises `Crowded`, or what it raises."""
        if troubled:
            async with self._slow:
                return await attempt()
        task = await self._begun(attempt)
        try:
            if not task.done():
                if self._slow.locked():
                    raise Crowded
                async with self._slow:
                    await asyncio.wait([task])
            return task.result()
        finally:
            await _ended(task)

    async def _begun(self, attempt: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """The attempt after its moment in the fast lane."""
        async with self._fast:
            task = asyncio.ensure_future(attempt())
            try:
                await asyncio.wait([task], timeout=self._moment_s)
            except BaseException:
                await _ended(task)
                raise
            return task


async def _ended(task: asyncio.Task[T]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
