"""Remembers the last seconds of a few totals, so that `status` can say how fast things move."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW_S = 10.0


class Rates:
    """Totals by name at moments of the last ten seconds.

    >>> rates = Rates()
    >>> rates.note(0.0, {"rsvps": 100})
    >>> rates.note(2.0, {"rsvps": 150})
    >>> rates.per_second("rsvps")
    25.0
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._moments: deque[tuple[float, Mapping[str, int]]] = deque()

    def note(self, now_s: float, totals: Mapping[str, int]) -> None:
        self._moments.append((now_s, totals))
        while len(self._moments) > 2 and now_s - self._moments[1][0] >= self._window_s:
            self._moments.popleft()

    def per_second(self, name: str) -> float:
        """0 until two moments are known."""
        known = [(moment, totals[name]) for moment, totals in self._moments if name in totals]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return 0.0
        return round(max(0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]), 3)
