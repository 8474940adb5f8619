"""How far behind a reader is, as far as anybody has told it."""

from __future__ import annotations

from datetime import datetime

from penstock.clock import Clock
from penstock.protocol import Message


class Freshness:
    """Takes in what messages say of time, and that there are none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._behind_s: float | None = None
        self._said_at = clock.monotonic()
        self._grows = False
        self.connected = False

    def heard(self, message: Message) -> None:
        """A batch says when its newest event was taken; a stall, how far behind this reader is."""
        kind = message.get("type")
        self.connected = True
        if kind == "stall":
            self._say(float((message.get("behind") or {}).get("seconds") or 0.0), grows=True)
        elif accepted := message.get("accepted"):
            now_s = self._clock.now_us() / 1e6
            self._say(max(0.0, now_s - datetime.fromisoformat(accepted).timestamp()), grows=False)
        elif kind in ("open", "snapshot", "changes", "position"):
            self._say(self._behind_s if not self._grows else None, grows=False)

    def broke(self) -> None:
        """From here on every second is one that nobody knows of."""
        if self.connected:
            self._say(self.lag_s or 0.0, grows=True)
        self.connected = False

    @property
    def lag_s(self) -> float | None:
        """Seconds from the door to here of the newest event; while stalled or cut off, growing. None: nobody said."""
        if self._behind_s is None or not self._grows:
            return self._behind_s
        return self._behind_s + self._clock.monotonic() - self._said_at

    def _say(self, behind_s: float | None, *, grows: bool) -> None:
        self._behind_s, self._said_at, self._grows = behind_s, self._clock.monotonic(), grows
