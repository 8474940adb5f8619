"""A clock that a test moves by hand."""

from __future__ import annotations

import time


class Hands:
    def __init__(self, now_us: int) -> None:
        self.us = now_us

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return time.monotonic()
