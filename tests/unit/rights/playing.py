"""A clock that stands still until a test moves it."""

from __future__ import annotations

START_US = 1_700_000_000_000_000


class PlayedClock:
    def __init__(self, us: int = START_US) -> None:
        self.us = us

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / 1e6

    def pass_s(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)

    @property
    def now_s(self) -> int:
        return self.us // 1_000_000
