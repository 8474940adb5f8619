"""When a child that died is started again: at once, then ever later, and not at all when it cannot live."""

from __future__ import annotations

FIRST_S = 0.2
LONGEST_S = 10.0
HEALTHY_S = 30.0
"""A life this long forgives the deaths before it."""
INSTANT_S = 5.0
"""A shorter life is an instant death: nothing that waiting would cure."""
INSTANT_DEATHS = 5


class Restarts:
    """The deaths of one child, and what follows from them.

    >>> deaths = Restarts()
    >>> [deaths.after(1.0) for _ in range(5)]
    [0.2, 0.4, 0.8, 1.6, None]
    """

    def __init__(self) -> None:
        self.count = 0
        self._delay_s = FIRST_S
        self._instant = 0

    def after(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start; None: give up."""
        self._instant = self._instant + 1 if lived_s < INSTANT_S else 0
        if self._instant >= INSTANT_DEATHS:
            return None
        if lived_s >= HEALTHY_S:
            self._delay_s = FIRST_S
        delay, self._delay_s = self._delay_s, min(LONGEST_S, self._delay_s * 2)
        self.count += 1
        return delay
