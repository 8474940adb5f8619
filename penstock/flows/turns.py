"""Lets the batches of several flows run in turn, because two that share the cores both end when the later one would.

Of three batches that each need the cores for 150 ms, all end after 450 ms if they run at once; in turn they end after
150, 300 and 450. A turn ends by itself after a while, so that a flow that is catching up or hangs holds up no other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.clock import Clock

TURN_S = 0.25
"""How long a batch keeps others waiting: twice what a small one takes. Those that take longer share the cores."""


class Turns:
    """Who may run a batch now, in the order of asking. Called from the threads of all queries."""

    def __init__(self, clock: Clock, places: int = 1, turn_s: float = TURN_S) -> None:
        self._clock = clock
        self._places = places
        self._turn_s = turn_s
        self._change = threading.Condition()
        self._waiting: deque[object] = deque()
        self._ends: dict[object, float] = {}
        """Of those who run: when their turn is over, whether they have finished or not."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and have it while the block runs."""
        mine = object()
        with self._change:
            self._waiting.append(mine)
            while (wait_s := self._wait_s(mine)) > 0:
                self._change.wait(wait_s)
            self._waiting.popleft()
            self._ends[mine] = self._clock.monotonic() + self._turn_s
            self._change.notify_all()
        try:
            yield
        finally:
            with self._change:
                del self._ends[mine]
                self._change.notify_all()

    def _wait_s(self, mine: object) -> float:
        """How long to wait before looking again; 0: it is our turn."""
        if self._waiting[0] is not mine:
            return self._turn_s
        now = self._clock.monotonic()
        left = sorted(end - now for end in self._ends.values() if end > now)
        return 0.0 if len(left) < self._places else left[-self._places]
