"""How long to wait before the next try: ever longer, at random, and as long as the server asks."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from penstock.protocol import http_date_s, retry_after_s

FIRST_S = 0.1
_LONGEST_ASKED_S = 3600.0
"""A server that asks for more is asked again after an hour."""


class Backoff:
    """Full jitter: the n-th wait is anything from 0 to `FIRST_S` * 2^n, so that many producers do not come at once."""

    def __init__(self, most_s: float, random: Random) -> None:
        self._most_s, self._random = most_s, random
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def pause_s(self, asked_s: float | None = None) -> float:
        """The next wait: at least what the server asked for."""
        longest_s = min(self._most_s, FIRST_S * 2 ** min(self._failures, 30))
        self._failures += 1
        jitter_s = self._random.uniform(0, longest_s)
        return jitter_s if asked_s is None else min(asked_s, _LONGEST_ASKED_S) + jitter_s * 0.1


def asked_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """`Retry-After` in seconds: a number, or a date seen from the server's own `Date` if it gave one.

    >>> asked_s({"Retry-After": "2"}, 0)
    2.0
    """
    date_s = http_date_s(headers.get("Date"))
    return retry_after_s(headers.get("Retry-After"), now_s if date_s is None else date_s)
