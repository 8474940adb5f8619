"""Lets accounts take turns at the log, so that a small request does not wait behind all that a flood has sent before.

Up to a number of bytes is judged and written at one time. What comes on top waits in a queue of its account's, and the
queues are served by deficit round robin: each gets as many bytes in its turn as the others. An account's own requests
keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

QUANTUM_BYTES = 256 * 1024
"""What an account may begin in one turn; larger requests save up for it."""

_Waiting = tuple[int, asyncio.Future[None]]


class Turns:
    """Who may begin next; lives on the edge's loop."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._busy = 0
        self._queues: dict[str, deque[_Waiting]] = {}
        self._saved: dict[str, int] = {}
        self._round: deque[str] = deque()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def begin(self, size: int) -> bool:
        """Whether nobody waits and there is room: then it has begun, and must be ended."""
        if self._queues or (self._busy and self._busy + size > self._most):
            return False
        self._busy += size
        return True

    def end(self, size: int) -> None:
        self._busy -= size
        if self._queues:
            self._serve()

    async def wait(self, account: str, size: int) -> None:
        """Return when it is this account's turn: then it has begun, and must be ended."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if account not in self._queues:
            self._queues[account] = deque()
            self._saved[account] = 0
            self._round.append(account)
        self._queues[account].append((size, begun))
        try:
            await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled():
                self._busy -= size
            with suppress(KeyError, ValueError):
                self._queues[account].remove((size, begun))
                self._forget_if_empty(account)
            self._serve()
            raise

    def _serve(self) -> None:
        """Let as many begin as there is room for, account by account."""
        while self._round:
            account = self._round[0]
            size, begun = self._queues[account][0]
            if self._busy and self._busy + size > self._most:
                return
            if self._saved[account] < size:
                self._saved[account] += QUANTUM_BYTES
                if self._saved[account] < size:
                    self._round.rotate(-1)
                    continue
            self._queues[account].popleft()
            self._saved[account] -= size
            self._busy += size
            if not begun.done():
                begun.set_result(None)
            self._forget_if_empty(account)
            if account in self._queues and self._saved[account] < self._queues[account][0][0]:
                self._round.rotate(-1)

    def _forget_if_empty(self, account: str) -> None:
        if not self._queues[account]:
            del self._queues[account], self._saved[account]
            self._round.remove(account)
