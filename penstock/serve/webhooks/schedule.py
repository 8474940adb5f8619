"""Decides when webhooks deliver: digests on time, and what was not taken soon again, then ever later, for three days.

The schedule is an endpoint's breaker: while it waits nothing is sent (open), then the oldest delivery is tried alone
(half-open), and only when that was taken does the rest follow (closed). Nothing is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from penstock.clock import Clock
from penstock.serve.webhooks.webhook import Trouble

STEPS_S = (5.0, 30.0, 120.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0)
"""After the first failure, the second, and so on; the last one stays."""
JITTER = 0.2
"""Up to so much of a step is added or taken away, so that endpoints that failed together do not come back together."""
GIVE_UP_S = 3 * 86_400.0
"""An endpoint that took nothing for so long is disabled; the last try is at its end."""
RETRY_AFTER_MOST_S = 6 * 3_600.0
"""How far an endpoint's `Retry-After` can put the next try off."""


class Schedule:
    """For all endpoints of an edge; `random` is seeded in tests."""

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()

    def after(self, before: Trouble | None, now_us: int, error: str, retry_after_s: float | None) -> Trouble | None:
        """What to do after a failure at `now_us`; None: it has failed for too long."""
        since_us = before.since_us if before else now_us
        attempts = before.attempts + 1 if before else 1
        left_us = since_us + round(GIVE_UP_S * 1e6) - now_us
        if left_us <= 0:
            return None
        asked_s = min(retry_after_s or 0.0, RETRY_AFTER_MOST_S)
        delay_s = max(asked_s, self._jittered(STEPS_S[min(attempts, len(STEPS_S)) - 1]))
        return Trouble(since_us, attempts, now_us + min(left_us, round(delay_s * 1e6)), error)

    def _jittered(self, step_s: float) -> float:
        return step_s * self._random.uniform(1 - JITTER, 1 + JITTER)


Sleep = Callable[[float], Awaitable[None]]


class Pace:
    """A clock, and the one way to wait by it, so that a test can let three days pass in a moment.

    `sleep` must wait by the same clock.
    """

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
