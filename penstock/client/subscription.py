"""Follows a view or a stream across breaks: connects, waits ever longer, and resumes from the last position.

1. Every item is given once, in order, and `position` is behind the item that was given last: to resume from there
   gives exactly the rest, on any transport.
2. Nothing is read from the network while nobody asks for the next item, but for one message whose wait was given up.
3. What passes is tried again for ever (or for `patience_s`); what does not pass is raised.
4. A wait for the next item may be cancelled (by a timeout, say): the next wait goes on with it, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, Generic, Literal, TypeVar

from penstock.client.assembly import Assembly
from penstock.client.backoff import Backoff
from penstock.client.read_request import ReadRequest
from penstock.client.transport import OPEN, Transport
from penstock.client.verdict import TransientFailure
from penstock.clock import Clock
from penstock.errors import PenstockError, UnauthorizedError, UnreachableError
from penstock.protocol import Message

_log = logging.getLogger("penstock.client")
_LEVELS = {"broken": logging.INFO, "away": logging.WARNING, "back": logging.INFO}
AWAY_S = 60.0
"""After so long without a server, and each time again, there is a notice."""

NoticeKind = Literal["broken", "away", "back", "stalled", "reset"]
Item = TypeVar("Item")
Steps = Sequence[tuple[str, Item | None]]
"""Positions, each with what must be dealt with to resume from there."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened on the way.

    `broken`: the connection ended and is made anew; `away`: for a minute nobody has answered, and it is still tried;
    `back`: messages come again; `stalled`: the server says that this reader is too slow; `reset`: changes could not
    lead from the last position to the present, so that a snapshot follows.
    """

    kind: NoticeKind
    name: str
    """Of the view or stream."""
    text: str
    error: PenstockError | None = None


Notify = Callable[[Notice], None]


def logged(notice: Notice) -> None:
    """To the logger `penstock.client`: what passes by itself as information, the rest as warnings."""
    _log.log(_LEVELS.get(notice.kind, logging.WARNING), "%s: %s", notice.name, notice.text)


class Freshness:
    """How far behind a reader is, as far as the messages say, and how long there are none."""

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
        """Seconds from the door to here of the newest event; it grows while stalled or cut off. None: not known."""
        if self._behind_s is None or not self._grows:
            return self._behind_s
        return self._behind_s + self._clock.monotonic() - self._said_at

    def _say(self, behind_s: float | None, *, grows: bool) -> None:
        self._behind_s, self._said_at, self._grows = behind_s, self._clock.monotonic(), grows


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


class ConnectionSeries(Generic[Item]):
    """One connection after the other, each from where the last one broke.

    It is apart from `Following`, so that a reader that is dropped ends its connection at once: nothing here leads
    back to the reader.
    """

    def __init__(
        self, request: ReadRequest, since: str | None, means: Means, assembly: Callable[[str | None], Assembly[Item]]
    ) -> None:
        self.request, self.position = request, since
        self.freshness = Freshness(means.clock)
        self._means, self._assembly = means, assembly
        self._backoff = Backoff(means.backoff_most_s, means.random)
        self._broke_at: float | None = None
        self._noticed_at = 0.0

    async def run(self) -> AsyncGenerator[Steps[Item], None]:
        while True:
            try:
                async with aclosing(self._connection()) as batches:
                    async for steps in batches:
                        yield steps
            except TransientFailure as failure:
                self.freshness.broke()
                await self._pause(failure.why)
            except UnauthorizedError as refusal:
                self.freshness.broke()
                if not self._means.is_new_key():
                    raise
                await self._pause(refusal)
            finally:
                self.freshness.broke()

    async def _connection(self) -> AsyncGenerator[Steps[Item], None]:
        """What one connection brings. Whoever asks for more has taken all before it, so `position` is behind it."""
        assembly = self._assembly(self.position)
        try:
            async with aclosing(self._means.transport.messages(self.request, self.position)) as messages:
                async for message in messages:
                    self._heard(message)
                    yield list(assembly.take(message))
        except UnreachableError as garbled:
            raise TransientFailure(garbled) from None
        raise TransientFailure(UnreachableError("the connection ended"))

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
            self._broke_at = self._noticed_at = now
            self._tell("broken", f"{why.message}; trying again", why)
        elif now - self._noticed_at >= AWAY_S:
            self._noticed_at = now
            self._tell("away", f"no answer for {now - self._broke_at:.0f} s: {why.message}", why)
        patience_s = self._means.patience_s
        if patience_s is not None and now - self._broke_at >= patience_s:
            raise why
        await self._means.sleep(self._backoff.pause_s(why.retry_after_s))

    def _tell(self, kind: NoticeKind, text: str, error: PenstockError | None = None) -> None:
        self._means.notify(Notice(kind, self.request.name, text, error))


def _too_slow(behind: Mapping[str, Any]) -> str:
    unit = "events" if "events" in behind else "batches"
    return f"too slow by {behind.get(unit, 0)} {unit}, {behind.get('seconds', 0)} s"


class Following(Generic[Item]):
    """An asynchronous iterator that ends only by an error or by `aclose`."""

    def __init__(
        self,
        request: ReadRequest,
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
        self._connections = ConnectionSeries(request, since, means, assembly)
        self._ready: deque[tuple[str, Item | None]] = deque()
        self._messages: AsyncGenerator[Steps[Item], None] | None = None
        self._reading: asyncio.Task[Steps[Item]] | None = None
        self._ended = False

    @property
    def request(self) -> ReadRequest:
        return self._connections.request

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
        """How old the newest event was when it came here; it grows while stalled or cut off. None: not known."""
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

    async def _next_message(self) -> Steps[Item]:
        """In a task of its own, which outlives a wait that is given up: the next wait goes on with it."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name=f"read {self.request.name}")
        reading = self._reading
        await asyncio.wait([reading])  # if this is cancelled, what was read is there for the next wait
        self._reading = None
        if reading.cancelled():
            raise StopAsyncIteration
        if reading.exception() is not None:
            self._ended = True
        return reading.result()

    async def _read(self) -> Steps[Item]:
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
