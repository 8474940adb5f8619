"""Time as an argument, so that tests can play, stop and repeat it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What a part of the system may know of time."""

    def now_us(self) -> int:
        """Microseconds since 1970, by the wall clock."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for intervals and deadlines."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


def rfc3339(us: int) -> str:
    """Microseconds since 1970 as RFC 3339 in UTC with milliseconds.

    >>> rfc3339(1_500)
    '1970-01-01T00:00:00.001Z'
    """
    whole, rest = divmod(us, 1_000_000)
    moment = datetime.fromtimestamp(whole, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1000:03d}Z"
