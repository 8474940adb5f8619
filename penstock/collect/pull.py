"""Reads sources outside into streams, for ever: connects, resumes, reconnects, and never runs ahead of the log.

1. A pull's position is stored in the commit of the events that it covers; a crash between the two is impossible.
2. What was read and cannot be written yet is kept and tried again; the source is not read further meanwhile.
3. A source that is away, slow or sends nonsense costs nobody else anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Literal

import msgspec

from penstock.clock import Clock, rfc3339
from penstock.collect.arrival import Decoded
from penstock.collect.cutting import SLICE_BYTES
from penstock.collect.intake import Intake, Outcome
from penstock.collect.pull_buffer import PullBuffer
from penstock.collect.pull_source import Source
from penstock.collect.rejection import Rejection
from penstock.collect.resume import ResumePoint
from penstock.collect.sender import Sender
from penstock.collect.signals import PullStateChanged, Signals
from penstock.collect.sources.websocket import WebSocketSource
from penstock.config import Limits
from penstock.declaration import Application, PullDef
from penstock.errors import PenstockError

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0

State = Literal["connecting", "connected", "disconnected", "stopped"]
Sleep = Callable[[float], Awaitable[Any]]


class Pulls:
    """All pulls of an app; lives on the edge's loop."""

    def __init__(
        self,
        application: Application,
        intakes: Mapping[str, Intake],
        memory: Mapping[str, Any],
        limits: Limits,
        clock: Clock,
        signals: Signals,
        random: Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._pulls = [
            Pull(
                declared,
                intakes[declared.stream],
                WebSocketSource(declared.url, limits.body_bytes),
                ResumePoint(declared, memory),
                clock,
                signals,
                random,
                sleep,
            )
            for declared in application.pulls
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.get_running_loop().create_task(pull.run()) for pull in self._pulls]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self) -> list[dict[str, Any]]:
        """For `/status` and `/readyz`: `since` is when the state began, `position` where the source is resumed."""
        return [pull.status() for pull in self._pulls]


class Pull:
    """One source into one stream."""

    def __init__(
        self,
        declared: PullDef,
        intake: Intake,
        source: Source,
        resume: ResumePoint,
        clock: Clock,
        signals: Signals,
        random: Random,
        sleep: Sleep,
    ) -> None:
        self._declared, self._intake, self._source, self._resume = declared, intake, source, resume
        self._clock, self._signals, self._random, self._sleep = clock, signals, random, sleep
        self._state: State = "connecting"
        self._error: str | None = None
        self._since_us = clock.now_us()
        self._failures = 0

    def status(self) -> dict[str, Any]:
        return {
            "stream": self._declared.stream,
            "url": self._declared.url,
            "state": self._state,
            "error": self._error,
            "since": rfc3339(self._since_us),
            "position": self._resume.since,
            "events": self._resume.events,
        }

    async def run(self) -> None:
        """Until cancelled, or until the log says that another process writes it."""
        while True:
            try:
                async with self._source.open(self._resume.ask()) as events:
                    self._enter("connected")
                    await self._read(events)
                self._enter("disconnected", "the source closed the connection")
            except PenstockError as error:
                self._enter("stopped", f"{error.code}: {error.message}")
                return
            except Exception as error:
                self._enter("disconnected", f"{type(error).__name__}: {error}")
            await self._wait()

    async def _read(self, events: Any) -> None:
        buffer = PullBuffer()
        reading = asyncio.get_running_loop().create_task(buffer.fill(events))
        try:
            while taken := await buffer.take():
                await self._take(taken)
                self._failures = 0
            await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading

    async def _take(self, raws: list[bytes]) -> None:
        """Until it is durable: the log is asked again for as long as it says that this may help."""
        received_us = self._clock.now_us()
        decoded = await self._decode(raws)
        while True:
            try:
                await self._append(decoded, received_us)
            except PenstockError as error:
                if not error.retry:
                    raise
                self._enter("disconnected", f"{error.code}: {error.message}")
                await self._wait()
            else:
                self._enter("connected")
                return

    async def _append(self, decoded: Decoded, received_us: int) -> None:
        stands: dict[str, Any] = {}

        def note(outcome: Outcome) -> Mapping[str, Any]:
            stands.update(self._resume.next(decoded, outcome))
            return {self._resume.key: dict(stands)}

        await self._intake.take(decoded, received_us, Sender("pull", self._declared.url), None, note)
        if stands:
            self._resume.move(stands)

    # Judging

    async def _decode(self, raws: list[bytes]) -> Decoded:
        if self._declared.map is None and sum(map(len, raws)) <= SLICE_BYTES:
            return self._intake.judge.decode_each(raws)
        return await asyncio.to_thread(self._decode_mapped, raws)

    def _decode_mapped(self, raws: list[bytes]) -> Decoded:
        mapped, places, failed = self._mapped(raws)
        decoded = self._intake.judge.decode_each(mapped)
        return Decoded(
            decoded.events,
            raws.__getitem__,
            failed + [replace(r, index=places[r.index], raw=raws[places[r.index]]) for r in decoded.rejections],
            decoded.unknown,
            [places[decoded.place(row)] for row in range(len(decoded.events))],
        )

    def _mapped(self, raws: Sequence[bytes]) -> tuple[list[bytes], list[int], list[Rejection]]:
        """What `map` made of the events, where each stood, and those on which it failed; None leaves an event out."""
        if self._declared.map is None:
            return list(raws), list(range(len(raws))), []
        mapped: list[bytes] = []
        places: list[int] = []
        failed: list[Rejection] = []
        for place, raw in enumerate(raws):
            try:
                made = self._declared.map(msgspec.json.decode(raw))
                if made is not None:
                    mapped.append(msgspec.json.encode(made))
                    places.append(place)
            except Exception as error:
                failed.append(Rejection(place, "map_failed", f"{type(error).__name__}: {error}", raw))
        return mapped, places, failed

    # State

    async def _wait(self) -> None:
        """Full jitter, so that many that lost one source do not come back as one."""
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures, 10))
        self._failures += 1
        await self._sleep(self._random.uniform(0, longest))

    def _enter(self, state: State, error: str | None = None) -> None:
        changed = state != self._state
        self._error = error
        if changed:
            self._state, self._since_us = state, self._clock.now_us()
            self._signals(PullStateChanged(self._declared.stream, self._declared.url, state, error))
