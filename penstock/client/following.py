"""Follows a view or a stream across breaks: connects, waits ever longer, and resumes from the last position.

1. Every item is given once, in order, and `position` is behind the item that was given last: to resume from there
   gives exactly the rest, on any transport.
2. Nothing is read from the network while nobody asks for the next item, but for one message whose wait was given up.
3. What passes is tried again for ever (or for `patience_s`); what does not pass is raised.
4. A wait for the next item may be cancelled (by a timeout, say): the next wait goes on with it, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

from penstock.client.asking import Asking
from penstock.client.assembly import Assembly
from penstock.client.backoff import Backoff
from penstock.client.freshness import Freshness
from penstock.client.notice import Notice, NoticeKind, Notify
from penstock.client.refusing import Passing
from penstock.client.transport import OPEN, Transport
from penstock.clock import Clock
from penstock.errors import PenstockError, UnauthorizedError, UnreachableError
from penstock.protocol import Message

AWAY_S = 60.0
"""After so long without a server, and each time again, somebody is told."""

Item = TypeVar("Item")
Some = Sequence[tuple[str, Item | None]]
"""Positions, each with what must be dealt with to resume from there."""


@dataclass(frozen=True)
class Means:
    """What following needs of the world."""

    transport: Transport
    notify: Notify
    clock: Clock
    random: Random
    sleep: Callable[[float], Awaitable[None]]
    backoff_most_s: float
    patience_s: float | None
    """How long nobody may answer before it is an error; None: for ever."""
    is_new_key: Callable[[], bool]
    """Whether a refused key has been replaced since."""


class Connections(Generic[Item]):
    """One connection after the other, each from where the last one broke.

    It is apart from `Following`, so that a reader that is dropped ends its connection at once: nothing here leads
    back to the reader.
    """

    def __init__(
        self, asking: Asking, since: str | None, means: Means, assembly: Callable[[str | None], Assembly[Item]]
    ) -> None:
        self.asking, self.position = asking, since
        self.freshness = Freshness(means.clock)
        self._means, self._assembly = means, assembly
        self._backoff = Backoff(means.backoff_most_s, means.random)
        self._broke_at: float | None = None
        self._told_at = 0.0

    async def run(self) -> AsyncGenerator[Some[Item], None]:
        while True:
            try:
                async with aclosing(self._connection()) as taken:
                    async for some in taken:
                        yield some
            except Passing as failure:
                self.freshness.broke()
                await self._pause(failure.why)
            except UnauthorizedError as refusal:
                self.freshness.broke()
                if not self._means.is_new_key():
                    raise
                await self._pause(refusal)
            finally:
                self.freshness.broke()

    async def _connection(self) -> AsyncGenerator[Some[Item], None]:
        """What one connection brings. Whoever asks for more has taken all before it, so `position` is behind it."""
        assembly = self._assembly(self.position)
        try:
            async with aclosing(self._means.transport.messages(self.asking, self.position)) as messages:
                async for message in messages:
                    self._heard(message)
                    yield list(assembly.take(message))
        except UnreachableError as garbled:
            raise Passing(garbled) from None
        raise Passing(UnreachableError("the connection ended"))

    def _heard(self, message: Message) -> None:
        self.freshness.heard(message)
        if message is not OPEN:  # who accepts and says nothing is not well yet
            self._backoff.succeeded()
        if self._broke_at is not None:
            away_s, self._broke_at = self._means.clock.monotonic() - self._broke_at, None
            self._tell("back", f"connected again after {away_s:.1f} s")
        kind = message.get("type")
        if kind == "reset":
            self._tell("reset", str(message.get("reason")))
        elif kind == "stall":
            self._tell("stalled", _too_slow(message.get("behind") or {}))

    async def _pause(self, why: PenstockError) -> None:
        now = self._means.clock.monotonic()
        if self._broke_at is None:
            self._broke_at = self._told_at = now
            self._tell("broken", f"{why.message}; trying again", why)
        elif now - self._told_at >= AWAY_S:
            self._told_at = now
            self._tell("away", f"no answer for {now - self._broke_at:.0f} s: {why.message}", why)
        patience_s = self._means.patience_s
        if patience_s is not None and now - self._broke_at >= patience_s:
            raise why
        await self._means.sleep(self._backoff.pause_s(why.retry_after_s))

    def _tell(self, kind: NoticeKind, text: str, error: PenstockError | None = None) -> None:
        self._means.notify(Notice(kind, self.asking.name, text, error))


def _too_slow(behind: Mapping[str, Any]) -> str:
    unit = "events" if "events" in behind else "batches"
    return f"too slow by {behind.get(unit, 0)} {unit}, {behind.get('seconds', 0)} s"


class Following(Generic[Item]):
    """An asynchronous iterator that ends only by an error or by `aclose`."""

    def __init__(
        self,
        asking: Asking,
        since: str | None,
        means: Means,
        assembly: Callable[[str | None], Assembly[Item]],
        seen: Callable[[str], None] = lambda position: None,
    ) -> None:
        """`seen` is called with every position."""
        self.given: str | None = None
        """The position of the item that was given last; `position` moves on where nothing is to be given."""
        self.before = since
        """Where `position` was before that item was given."""
        self._seen = seen
        self._connections = Connections(asking, since, means, assembly)
        self._ready: deque[tuple[str, Item | None]] = deque()
        self._messages: AsyncGenerator[Some[Item], None] | None = None
        self._reading: asyncio.Task[Some[Item]] | None = None
        self._ended = False

    @property
    def asking(self) -> Asking:
        return self._connections.asking

    @property
    def position(self) -> str | None:
        """Where to go on from once the item that was given last is dealt with."""
        return self._connections.position

    @property
    def connected(self) -> bool:
        """Whether messages come."""
        return self._connections.freshness.connected

    @property
    def lag_s(self) -> float | None:
        """How old the newest event was when it came here; while stalled or cut off, growing. None: nobody said."""
        return self._connections.freshness.lag_s

    def __aiter__(self) -> Following[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            while self._ready:
                position, item = self._ready.popleft()
                if item is not None:
                    self.before = self._connections.position
                    self.given = position
                self._connections.position = position
                self._seen(position)
                if item is not None:
                    return item
            if self._ended:
                raise StopAsyncIteration
            self._ready.extend(await self._next_message())

    async def _next_message(self) -> Some[Item]:
        """In a task of its own, which outlives a wait that is given up: the next wait goes on with it."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name=f"read {self.asking.name}")
        reading = self._reading
        await asyncio.wait([reading])  # if this is cancelled, what was read is there for the next wait
        self._reading = None
        if reading.cancelled():
            raise StopAsyncIteration
        if reading.exception() is not None:
            self._ended = True
        return reading.result()

    async def _read(self) -> Some[Item]:
        if self._messages is None:
            self._messages = self._connections.run()
        return await anext(self._messages)

    async def aclose(self) -> None:
        """End it; `position` stays."""
        self._ended = True
        self._ready.clear()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        messages, self._messages = self._messages, None
        if messages is not None:
            await messages.aclose()

    async def __aenter__(self) -> Following[Item]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
