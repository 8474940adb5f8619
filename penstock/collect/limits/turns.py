"""Lets accounts take turns at the log, so that a small request does not wait behind all that a flood has sent before.

Up to a number of bytes is judged and written at one time, and an account may have as many of them as are still free:
one alone gets half, so that whoever comes finds room at once. While others send too, however little, it gets a quarter,
or one request: whatever was begun is ahead of theirs. What does not fit waits in a queue of its account's, and the
queues are served in turn. An account's own requests keep their order.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict, deque
from contextlib import suppress
from time import monotonic

_Waiting = tuple[int, asyncio.Future[None]]

ALONE_S = 0.5
"""An account is alone when no other one has come for so long, or for twice as long at most."""


class Turns:
    """Who may begin next; lives on the edge's loop."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._largest = max(1, most_bytes // 4)
        """What a request counts at most: larger ones than all the room must not wait for ever, nor take all of it. And
        what an account may have begun while it is not alone."""
        self._busy = 0
        self._held: defaultdict[str, int] = defaultdict(int)
        self._queues: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._now: set[str] = set()
        self._before: set[str] = set()
        self._until_s = 0.0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def busy(self) -> int:
        """Bytes that have begun."""
        return self._busy

    def begin(self, account: str, size: int) -> bool:
        """Whether there is room, and nobody of the account's waits: then it has begun, and must be ended."""
        cost = min(size, self._largest)
        self._notice(account)
        if account in self._queues or not self._fits(account, cost):
            return False
        self._start(account, cost)
        return True

    async def wait(self, account: str, size: int) -> None:
        """Return when it is this account's turn: then it has begun, and must be ended."""
        cost = min(size, self._largest)
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(account, deque()).append((cost, begun))
        self._serve()
        try:
            await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled():
                self.end(account, size)
            else:
                with suppress(KeyError, ValueError):
                    self._queues[account].remove((cost, begun))
                    self._forget_if_empty(account)
            raise

    def end(self, account: str, size: int) -> None:
        cost = min(size, self._largest)
        self._busy -= cost
        self._held[account] -= cost
        if not self._held[account]:
            del self._held[account]
        if self._queues:
            self._serve()

    def _fits(self, account: str, cost: int) -> bool:
        free = self._most - self._busy
        held = self._held.get(account, 0)
        if held and self._crowded and held + cost > self._largest:
            return False
        return held + cost <= free if held else cost <= free

    @property
    def _crowded(self) -> bool:
        return len(self._now) > 1 or not self._before <= self._now

    def _notice(self, account: str) -> None:
        """Remember who has begun lately: now, and in the time before."""
        now_s = monotonic()
        if now_s >= self._until_s:
            self._before = self._now if now_s < self._until_s + ALONE_S else set()
            self._now = set()
            self._until_s = now_s + ALONE_S
        self._now.add(account)

    def _start(self, account: str, cost: int) -> None:
        self._busy += cost
        self._held[account] += cost

    def _serve(self) -> None:
        """Let one of each account begin, round after round, for as long as there is room."""
        moved = True
        while moved:
            moved = False
            for account in list(self._queues):
                cost, begun = self._queues[account][0]
                if begun.cancelled():
                    self._queues[account].popleft()
                elif self._fits(account, cost):
                    self._queues[account].popleft()
                    self._queues.move_to_end(account)
                    self._start(account, cost)
                    begun.set_result(None)
                    moved = True
                self._forget_if_empty(account)

    def _forget_if_empty(self, account: str) -> None:
        if not self._queues[account]:
            del self._queues[account]
