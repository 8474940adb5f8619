"""Keeps one pull going: takes its lease, reads its source, waits, reads it again, and says how it is.

What is read, and into what, is its subclass's: events into a stream (`pull.py`), rows into a table (`table_pull.py`).

1. Only the edge that holds the pull's lease reads, and only its commits are taken.
2. A source that is away, slow or sends nonsense costs nobody else anything.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Literal

from penstock.clock import Clock, rfc3339
from penstock.collect.pulling.credentials import Credentials, problem_of
from penstock.collect.pulling.lease import Leases
from penstock.collect.pulling.pull_source import NotNow, SourceEnded
from penstock.declaration import PullDef
from penstock.errors import PenstockError
from penstock.observe.signals import PullStateChanged, Signals

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
LONGEST_ASKED_S = 3600.0
"""A source may ask for a longer pause than ours, within reason."""
LEASE_LOOK_S = 1.0
"""How often an edge that waits for a lease looks whether it was given back."""

State = Literal["waiting", "connecting", "connected", "disconnected", "paused", "ended", "stopped"]
Sleep = Callable[[float], Awaitable[Any]]


class PullLoop(ABC):
    """One source; lives on the edge's loop. `key` is its own in the control stream."""

    def __init__(
        self,
        declared: PullDef,
        key: str,
        leases: Leases,
        clock: Clock,
        signals: Signals,
        random: Random,
        sleep: Sleep,
    ) -> None:
        self.declared, self.key = declared, key
        self._leases = leases
        self._clock, self._signals, self._random, self._sleep = clock, signals, random, sleep
        self._credentials = Credentials(declared.origin)
        self._state: State = "connecting"
        self._error: str | None = None
        self._paused: str | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._since_us = clock.now_us()
        self._failures = 0

    # What a subclass does

    @abstractmethod
    async def _connection(self) -> None:
        """One connection from its beginning to its end. Whatever it raises ends it; it is called again after a pause,
        which `NotNow` may choose, and not at all after `SourceEnded`."""

    @abstractmethod
    def _load(self) -> None:
        """Take up what the log says of this pull: the lease is ours now, and may have been another's before."""

    @abstractmethod
    def _progress(self) -> tuple[Any, int]:
        """For `status`: where the source is resumed, and how many events or changes it has given."""

    @abstractmethod
    def lag(self) -> Mapping[str, float]:
        """How far behind its source it is, in the units that can be told."""

    # How it is

    def status(self) -> dict[str, Any]:
        position, events = self._progress()
        return {
            "stream": self.declared.stream,
            "url": self.declared.url,
            "scheme": self.declared.origin.scheme.name,
            "state": self.state,
            "paused": self._paused,
            "error": self._error,
            "since": rfc3339(self._since_us),
            "position": position,
            "events": events,
            "lag": dict(self.lag()),
        }

    @property
    def state(self) -> State:
        return "paused" if self._paused is not None and self._state == "connected" else self._state

    def pause(self, reason: str) -> None:
        """Take nothing more until `resume`; the connection stays, and the source feels that nobody reads."""
        if self._paused is None:
            self._signals(PullStateChanged(self.declared.stream, self.declared.url, "paused", reason))
        self._paused = reason
        self._open.clear()

    def resume(self) -> None:
        if self._paused is not None:
            self._paused = None
            self._signals(PullStateChanged(self.declared.stream, self.declared.url, self._state, None))
        self._open.set()

    # Going on

    async def run(self) -> None:
        """Until cancelled, until the source says that it is over, or until another process writes the log."""
        while self._state not in ("ended", "stopped"):
            await self._wait(await self._once())

    async def _once(self) -> float | None:
        """One connection; when the source wants to be asked again, if it said so."""
        try:
            await self._own()
            await self._connection()
        except SourceEnded as over:
            self._enter("ended", str(over))
        except NotNow as later:
            self._enter("disconnected", str(later))
            return later.after_s
        except PenstockError as error:
            self._enter("disconnected" if error.retry else "stopped", f"{error.code}: {error.message}", error.hint)
        except Exception as error:
            said = problem_of(error, self.declared.origin)
            self._enter("disconnected", said or f"{type(error).__name__}: {error}")
        return None

    async def _own(self) -> None:
        while wait_s := await self._leases.take(self.key):
            self._enter("waiting", "another edge runs this pull")
            await self._sleep(min(wait_s, LEASE_LOOK_S))
        if self._state == "waiting":
            self._enter("connecting")
        self._load()

    async def _wait(self, after_s: float | None) -> None:
        """Full jitter, so that many that lost one source do not come back as one; never before the source wants."""
        if self._state in ("ended", "stopped"):
            return
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures, 10))
        self._failures += 1
        jitter_s = self._random.uniform(0, longest)
        await self._sleep(jitter_s if after_s is None else min(after_s, LONGEST_ASKED_S) + min(jitter_s, after_s / 10))

    def _enter(self, state: State, error: str | None = None, hint: str | None = None) -> None:
        self._error = None if error is None else self._credentials.redact(error if hint is None else f"{error}; {hint}")
        if state != self._state:
            self._state, self._since_us = state, self._clock.now_us()
            self._signals(PullStateChanged(self.declared.stream, self.declared.url, state, self._error))
