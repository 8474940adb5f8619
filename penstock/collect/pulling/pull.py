"""Reads one source outside into a stream, for ever: connects, resumes, reconnects, and never runs ahead of the log.

1. A pull's position is stored in the commit of the events that it covers; a crash between the two is impossible.
2. What was read and cannot be written yet is kept and tried again; the source is not read further meanwhile.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from penstock.clock import Clock
from penstock.collect.intake import Intake, Keys, Note
from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.rejection import Rejection
from penstock.collect.pulling.lease import Leases
from penstock.collect.pulling.pull_events import PullEvents
from penstock.collect.pulling.pull_loop import PullLoop, Sleep
from penstock.collect.pulling.pull_source import NotNow, PositionParts, Source, SourceEvents, SourceReset
from penstock.collect.pulling.resume import ResumePoint
from penstock.collect.sender import Sender
from penstock.declaration import PullDef, StreamDef
from penstock.errors import ConditionError, LeaseLostError, PenstockError
from penstock.log.group_commit import GroupCommit, first_taken
from penstock.log.log import Append
from penstock.observe.signals import PullReset, Signals


class Pull(PullLoop):
    """One source into one stream; lives on the edge's loop."""

    def __init__(
        self,
        declared: PullDef,
        intake: Intake,
        source: Source,
        events: PullEvents,
        resume: ResumePoint,
        leases: Leases,
        group: GroupCommit,
        clock: Clock,
        signals: Signals,
        random: Random,
        sleep: Sleep,
    ) -> None:
        super().__init__(declared, resume.key, leases, clock, signals, random, sleep)
        self._intake, self._source, self._events, self._resume = intake, source, events, resume
        self._group = group
        self._age = EventAge(intake.judge.stream)

    def lag(self) -> dict[str, float]:
        return {**self._age.lag(), **self._source.lag()}

    def _progress(self) -> tuple[Any, int]:
        return self._resume.shown(), self._resume.events

    def _load(self) -> None:
        self._resume.load()

    async def _connection(self) -> None:
        try:
            async with self._source.open(self._resume.ask()) as arrivals:
                self._enter("connected")
                await self._read(arrivals)
            self._enter("disconnected", "the source closed the connection")
        except SourceReset as reset:
            await self._begin_anew(reset)

    async def _read(self, arrivals: AsyncIterator[SourceEvents]) -> None:
        buffer = PullBuffer(self._clock)
        reading = asyncio.get_running_loop().create_task(buffer.fill(arrivals))
        try:
            while taken := await buffer.take():
                await self._open.wait()
                await self._take(*taken)
                self._failures = 0
            await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading

    async def _take(self, arrived: SourceEvents, received_us: int) -> None:
        """Until it is durable: the log is asked again for as long as it says that this may help."""
        decoded = await self._events.decode(arrived.raws)
        while True:
            try:
                await self._append(decoded, received_us, arrived.position)
            except LeaseLostError:
                raise
            except PenstockError as error:
                if not error.retry:
                    raise
                self._enter("disconnected", f"{error.code}: {error.message}")
                await self._wait(None)
            else:
                self._enter("connected")
                self._age.note(decoded, self._clock.now_us())
                return

    async def _append(self, decoded: DecodedEvents, received_us: int, position: PositionParts | None) -> None:
        stands: dict[str, Any] = {}

        def keys(rejections: Sequence[Rejection], _: int) -> Keys:
            stands.update(self._resume.next(decoded, rejections, position))
            return Keys(stands)

        if decoded.received:
            note = Note(keys, (self._leases.held(self.key), self._resume.unmoved()))
            try:
                await self._intake.take(decoded, received_us, Sender("pull", self.declared.url), None, note)
            except ConditionError:
                self._leases.check(self.key)
                raise NotNow("what it has read was written by an earlier attempt", 0.0) from None
        elif position is not None:
            await self._set(keys((), 0).sets)
        self._resume.move(stands)

    async def _set(self, sets: Mapping[str, Any]) -> None:
        """A commit of these keys alone, if the lease is ours."""
        try:
            await first_taken(self._group.append([Append(sets=sets, requires=(self._leases.held(self.key),))]))
        except ConditionError:
            self._leases.check(self.key)
            raise

    async def _begin_anew(self, reset: SourceReset) -> None:
        reason = self._credentials.redact(str(reset))
        self._signals(PullReset(self.declared.stream, self.declared.url, reason))
        with suppress(PenstockError):  # then the source says it again
            await self._set(self._resume.restarted(reset.position))
        self._enter("disconnected", f"it lost its place in the source: {reason}")


GATHER_S = 0.03
"""After the first event, how long to wait for more: a commit of one event costs 4 ms of CPU, and a batch of Spark takes
ten times as long as this."""
TOGETHER_EVENTS = 500
BUFFER_EVENTS = 4 * TOGETHER_EVENTS
BUFFER_BYTES = 4 * 1024**2
MOMENT_US = 1_000_000
"""What came further apart is not given out together, so that its `_received` is right to the second."""


class PullBuffer:
    """Holds what a source has sent until the log takes it, bounded; lives on the edge's loop.

    While it is full the source is not read, and so its sender waits. What a source gave out together stays together.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[int, SourceEvents]] = deque()
        self._events = self._bytes = 0
        self._ended = False
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._space = asyncio.Event()

    async def fill(self, source: AsyncIterator[SourceEvents]) -> None:
        """Read the source to its end, no faster than the buffer empties. Raises what the source raises."""
        try:
            async for arrived in source:
                self._put(arrived)
                while self._events >= BUFFER_EVENTS or self._bytes >= BUFFER_BYTES:
                    self._space.clear()
                    await self._space.wait()
        finally:
            self._ended = True
            self._arrived.set()
            self._enough.set()

    async def take(self) -> tuple[SourceEvents, int] | None:
        """What arrived within a moment, about `TOGETHER_EVENTS` at most, and when the first of it did; None when the
        source has ended."""
        await self._arrived.wait()
        if not self._enough.is_set():
            try:
                async with asyncio.timeout(GATHER_S):
                    await self._enough.wait()
            except TimeoutError:
                pass
        if not self._waiting:
            return None
        taken = self._joined()
        self._space.set()
        self._mark()
        return taken

    def _joined(self) -> tuple[SourceEvents, int]:
        raws: list[bytes] = []
        position: dict[str, object] | None = None
        first_us = self._waiting[0][0]
        while self._waiting and (not raws or self._fits(len(raws), first_us)):
            _, arrived = self._waiting.popleft()
            raws += arrived.raws
            if arrived.position is not None:
                position = {**(position or {}), **arrived.position}
        self._events -= len(raws)
        self._bytes -= sum(map(len, raws))
        return SourceEvents(raws, position), first_us

    def _fits(self, events: int, first_us: int) -> bool:
        came_us, arrived = self._waiting[0]
        return events + len(arrived.raws) <= TOGETHER_EVENTS and came_us - first_us <= MOMENT_US

    def _put(self, arrived: SourceEvents) -> None:
        self._waiting.append((self._clock.now_us(), arrived))
        self._events += len(arrived.raws)
        self._bytes += sum(map(len, arrived.raws))
        self._mark()

    def _mark(self) -> None:
        full = self._events >= TOGETHER_EVENTS or self._bytes >= BUFFER_BYTES
        for signal, holds in ((self._arrived, bool(self._waiting)), (self._enough, full)):
            if holds or self._ended:
                signal.set()
            else:
                signal.clear()


class EventAge:
    """How old the newest event was when a pull got it, by the field that the stream's `time=` names: the lag that any
    source shows whose events have a time."""

    def __init__(self, stream: StreamDef) -> None:
        self._time = stream.time
        self._age_s: float | None = None

    def note(self, decoded: DecodedEvents, received_us: int) -> None:
        if self._time is not None and decoded.events:
            time_us = _microseconds(getattr(decoded.events[-1], self._time))
            self._age_s = self._age_s if time_us is None else max(0.0, (received_us - time_us) / 1e6)

    def lag(self) -> dict[str, float]:
        return {} if self._age_s is None else {"seconds": round(self._age_s, 3)}


def _microseconds(value: Any) -> int | None:
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return round(moment.timestamp() * 1_000_000)
    return value * 1000 if isinstance(value, int) else None
