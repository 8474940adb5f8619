"""Puts the limits of an edge together: the room, the turns, the guards of its streams, and what to say of them.

Thrashing and lagging are told apart, because they need different things. Limits that go on and off all the time mean
that the load is about what can be borne, or that a mark is too small. A view that lags for minutes and does not get
nearer means that its flow is too slow for what comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from penstock.clock import Clock
from penstock.collect.limits.lag import Absorbed, Lags, Pausing
from penstock.collect.limits.room import Room
from penstock.collect.limits.stream_guard import StreamGuard
from penstock.collect.limits.turns import Turns
from penstock.config import Limits
from penstock.declaration import Application
from penstock.observe.signals import Signals
from penstock.position import Position

LOOK_S = 0.2
"""How often lags are looked at: a flow's batch takes about as long."""
THRASHING_SWITCHES = 8
"""Of limits, within a minute."""
LAGGING_S = 120.0
"""A lag that is no smaller after so long does not go away by itself."""
FULL, HALF = 0.9, 0.5
"""Where the room counts as full, and where no longer."""

_HINTS = {
    "limiting": "senders wait or are shed for a moment; nothing to do unless it lasts",
    "thrashing": "limits go on and off: raise max_lag, give the edge a faster disk, or let senders send less at once",
    "lagging": "the flow is slower than what comes: make its function cheaper, give Spark more cores, "
    "or declare overload='shed'",
}


class Pressure:
    """All limits of one edge; lives on the edge's loop."""

    def __init__(
        self, application: Application, limits: Limits, clock: Clock, signals: Signals, random: Random
    ) -> None:
        self._application, self._clock, self._signals = application, clock, signals
        self.room = Room(limits.unwritten_bytes, limits.unwritten_events, clock)
        self.turns = Turns(limits.busy_bytes)
        self.guards = {s.name: StreamGuard(s, self.room, limits.shed_above, clock, random) for s in application.entries}
        self._lags: Lags | None = None
        self._full = False
        self._switches: deque[float] = deque()
        self._task: asyncio.Task[None] | None = None

    def watch(self, end: Callable[[str], Position], absorbed: Absorbed, pulls: Pausing | None) -> None:
        """Hold senders back by how the views are; asked for before `start`."""
        self._lags = Lags(self._application, self.guards, end, absorbed, self._clock, self._signals)
        self._lags.pulls = pulls

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_looking(), name="pressure")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_looking(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """See how everything is now, and note which limits were switched."""
        now_s = self._clock.monotonic()
        switched = len(self._lags.look()) if self._lags is not None else 0
        full = self.room.fill > (HALF if self._full else FULL)
        switched += full != self._full
        self._full = full
        for guard in self.guards.values():
            guard.look()
        self._switches.extend([now_s] * switched)
        while self._switches and now_s - self._switches[0] > 60.0:
            self._switches.popleft()

    # What is said

    def status(self) -> dict[str, Any]:
        """For `/status`: how the limits are, because of whom, and what to do."""
        state = self._state()
        return {
            "state": state,
            "because": self._because(),
            "hint": _HINTS.get(state),
            "switches_per_minute": len(self._switches),
            "room": {
                "bytes": self.room.taken_bytes,
                "most_bytes": self.room.most_bytes,
                "events": self.room.taken_events,
                "most_events": self.room.most_events,
                "accounts": self.room.accounts,
                "waiting": self.turns.waiting,
            },
        }

    def _state(self) -> str:
        if self._lags is not None and any(lag.grows(LAGGING_S) for lag in self._lags.all):
            return "lagging"
        if len(self._switches) >= THRASHING_SWITCHES:
            return "thrashing"
        return "limiting" if self._because() else "ok"

    def _because(self) -> list[dict[str, Any]]:
        lags = self._lags.bodies() if self._lags is not None else []
        full = [{"room": "full", "retry_after_s": round(self.room.retry_after_s(), 1)}] if self._full else []
        shed = [
            {"stream": guard.stream, "shed": guard.shedder.rule, "part": guard.shedder.part}
            for guard in self.guards.values()
            if guard.shedder is not None and guard.shedder.part < 1.0
        ]
        return [*lags, *full, *shed]
