"""Time for webhooks: a clock, and the one way to wait by it, so that a test can let three days pass in a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.clock import Clock

Sleep = Callable[[float], Awaitable[None]]


class Pace:
    """`sleep` must wait by the same clock."""

    def __init__(self, clock: Clock, sleep: Sleep = asyncio.sleep) -> None:
        self._clock, self.sleep = clock, sleep

    def now_us(self) -> int:
        return self._clock.now_us()

    async def until(self, moment_us: int) -> None:
        """Waits until the clock shows this, however it is set in the meantime."""
        while (left_us := moment_us - self._clock.now_us()) > 0:
            await self.sleep(left_us / 1e6)

    async def next_digest(self, last_us: int | None, digest_s: float) -> int:
        """Waits until the next digest is due; returns when that is."""
        due_us = (self.now_us() if last_us is None else last_us) + round(digest_s * 1e6)
        await self.until(due_us)
        return self.now_us()
