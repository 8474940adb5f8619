"""Watches every view with a `max_lag` against its streams, and tells pulls and guards to hold back or go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock.clock import Clock, rfc3339
from penstock.collect.limits.guard import Guard
from penstock.collect.limits.lag import Lag, Look, Marks
from penstock.declaration import Application
from penstock.errors import LaggingError
from penstock.observe.signals import LagSwitched, Signals
from penstock.position import Frontier, Position

Absorbed = Callable[[str], tuple[Frontier, bool]]
"""What a view has absorbed of the door's streams, and whether its lag counts: one stopped by an error does not."""


class Pausing(Protocol):
    """What can be told to stop reading sources: the pulls."""

    def pause(self, stream: str, reason: str) -> Any: ...

    def resume(self, stream: str) -> Any: ...


class Lags:
    """All lags of an app that matter; lives on the edge's loop."""

    def __init__(
        self,
        application: Application,
        guards: Mapping[str, Guard],
        end: Callable[[str], Position],
        absorbed: Absorbed,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._guards, self._end, self._absorbed = guards, end, absorbed
        self._clock, self._signals = clock, signals
        self.pulls: Pausing | None = None
        limited = [view for view in application.views if view.max_lag]
        self._marks = {root: Marks() for view in limited for root in application.roots(view.name)}
        self.all = [
            Lag(view.name, root, view.max_lag, self._marks[root])
            for view in limited
            if view.max_lag
            for root in sorted(application.roots(view.name))
        ]

    def look(self) -> list[Lag]:
        """Called a few times a second; returns those that were switched on or off."""
        now_us = self._clock.now_us()
        ends = {root: self._end(root) for root in self._marks}
        for root, marks in self._marks.items():
            marks.add(now_us, sum(ends[root].offsets))
        switched = [lag for lag in self.all if lag.look(self._look(lag, ends[lag.stream], now_us))]
        for lag in switched:
            self._signals(LagSwitched(lag.view, lag.stream, lag.over, lag.events, lag.us / 1e6))
        for stream, marks in self._marks.items():
            marks.forget(min(lag.absorbed for lag in self.all if lag.stream == stream))
            self._tell(stream, [lag for lag in self.all if lag.stream == stream and lag.over])
        return switched

    def bodies(self) -> list[dict[str, Any]]:
        """Those that senders wait for, as `status` shows them."""
        return [
            {
                "stream": lag.stream,
                "view": lag.view,
                "lag_events": lag.events,
                "lag_s": round(lag.us / 1e6, 1),
                "max_lag": str(lag.limit),
                "since": None if lag.since_us is None else rfc3339(lag.since_us),
                "speed": round(lag.speed, 1),
                "retry_after_s": round(lag.retry_after_s, 1),
            }
            for lag in self.all
            if lag.over
        ]

    def _look(self, lag: Lag, end: Position, now_us: int) -> Look:
        frontier, counts = self._absorbed(lag.view)
        reached = frontier.get(lag.stream)
        known = reached is not None and reached.epoch == end.epoch
        return Look(now_us, sum(end.offsets), sum(reached.offsets) if known and reached else 0, counts)

    def _tell(self, stream: str, over: list[Lag]) -> None:
        guard = self._guards[stream]
        if not over:
            if guard.lagging is not None:
                guard.lagging = None
                if self.pulls is not None:
                    self.pulls.resume(stream)
            return
        worst = max(over, key=lambda lag: lag.retry_after_s)
        began = guard.lagging is None
        guard.lagging = _lagging(worst)
        if began and self.pulls is not None:
            self.pulls.pause(stream, guard.lagging.message)


def _lagging(lag: Lag) -> LaggingError:
    return LaggingError(
        f"the view '{lag.view}' is behind, so '{lag.stream}' takes nothing more for a while",
        detail=f"{lag.events} events, the oldest {lag.us / 1e6:.1f} s old; max_lag is {lag.limit}",
        hint="send the same request again after the time in Retry-After; `penstock status` shows the flow",
    ).after(lag.retry_after_s)
