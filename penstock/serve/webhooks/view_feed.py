"""Follows a view for one webhook as a subscriber of the hub: a bounded buffer that wakes its reader only for changes.

1. A webhook that has everything costs a place in its query's group and no work: batches that change nothing for it move
   a position and wake nobody.
2. What waits is bounded, for one feed and for all of them. While catching up the group waits for the feed; a live
   feed that is full lets go, and whatever it missed is read again from the history.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.position import Position
from penstock.serve.fanout.hub import Hub
from penstock.serve.fanout.messages import Message
from penstock.serve.question import Question
from penstock.views.store import View

FEED_BYTES = 256 * 1024
"""What waits for one webhook; one message may be larger."""
ALL_BYTES = 64 * 1024**2
"""What waits for all webhooks together."""

MOMENT_S = 0.05
"""A webhook that gets nothing for so long has everything."""


class HeldBytes:
    """How many bytes wait in the feeds of an edge."""

    def __init__(self, most: int = ALL_BYTES) -> None:
        self.bytes = 0
        self._most = most

    @property
    def full(self) -> bool:
        return self.bytes >= self._most


class Fell(Exception):
    """Changes cannot lead on from where the webhook is."""


class ViewFeed:
    """A `Receiver` between `open` and `close`. Belongs to the edge's loop."""

    transport = "webhook"
    policy = ""
    deflates = False
    joins = False
    is_level = True
    unsent_bytes = 0
    pace_s: float | None = None

    def __init__(self, hub: Hub, view: View, question: Question, held: HeldBytes) -> None:
        self._hub, self._view, self._question, self._held = hub, view, question, held
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        self._some, self._room = asyncio.Event(), asyncio.Event()
        self._let_go = False
        self._task: asyncio.Task[None] | None = None
        self.turn = asyncio.Lock()
        self.on_pace: Callable[[], None] = lambda: None
        self.passed: str | None = None
        """How far batches have passed that changed nothing, if nothing came behind them."""

    def open(self, since: Position) -> None:
        self._task = asyncio.create_task(self._hub.subscribe(self._view, self._question, since, self))
        self._task.add_done_callback(lambda _: self._some.set())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._held.bytes -= self._bytes
        self._buffer.clear()
        self._bytes = 0

    async def next(self, level: Callable[[], None]) -> Message | None:
        """The next `changes`; None when the feed has let go. Calls `level` before it waits; raises `Fell`."""
        while not self._buffer:
            if self._let_go:
                return None
            if self._task is not None and self._task.done():
                self._task.result()
            self._some.clear()
            try:
                async with asyncio.timeout(MOMENT_S):
                    await self._some.wait()
            except TimeoutError:
                level()
                await self._some.wait()
        message = self._buffer.popleft()
        self._count(-len(message.payload))
        self._room.set()
        return message

    # For the group

    def offer(self, message: Message) -> bool:
        """Never behind, so that nothing is merged: a full feed lets go, and reads it again."""
        if message.kind == "position":
            if not self._buffer and not self._let_go:
                self.passed = message.position
        elif not self._let_go:
            self._let_go = bool(self._buffer) and (self._bytes >= FEED_BYTES or self._held.full)
            if self._let_go:
                self._some.set()
            else:
                self._take(message)
        return True

    async def send(self, message: Message) -> None:
        if message.kind == "reset":
            raise Fell(_reason(message))
        while self._buffer and (self._bytes >= FEED_BYTES or self._held.full):
            self._room.clear()
            await self._room.wait()
        self.offer(message)

    async def drained(self) -> None:
        """Nothing waits for a connection."""

    def stall(self, make: Callable[[], Message]) -> None:
        """Nobody is slow here: a late reader reads again."""

    def cut(self, policy: str, last: Message) -> None:
        """Nothing is cut, for the same reason."""

    def _take(self, message: Message) -> None:
        self.passed = None
        self._buffer.append(message)
        self._count(len(message.payload))
        self._some.set()

    def _count(self, size: int) -> None:
        self._bytes += size
        self._held.bytes += size


def _reason(message: Message) -> str:
    return message.payload.decode().partition('"reason":"')[2].rpartition('"')[0]
