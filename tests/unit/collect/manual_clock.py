"""A clock that a test moves by hand."""

from __future__ import annotations


class ManualClock:
    def __init__(self, us: int = 1_750_000_000_000_000) -> None:
        self.us = us

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / 1e6

    def pass_s(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)
