"""What a signal handler may do to a loop that waits: ring."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Bell:
    """Wakes who waits for it, also from the handler of a signal. An `Event` of `threading` may not be set there: its
    lock is not reentrant, and a signal that comes while the same thread holds it waits for ever."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Until it rings, or has rung since it was waited for."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
            while True:
                self._rings.get_nowait()
