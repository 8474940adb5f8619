"""Watches every view with a `max_lag` against its streams, and tells pulls and guards to hold back or go on.

Above `max_lag` senders wait until half of it is reached, so that one event more or less does not switch them on and
off. How old the oldest event is that the view has not absorbed follows from marks: when the stream had which length.
They begin with the process, so that after a restart a lag in time is at first smaller than it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.clock import Clock, rfc3339
from penstock.collect.limits.stream_guard import StreamGuard
from penstock.declaration import Application
from penstock.errors import LaggingError
from penstock.observe.signals import LagSwitched, Signals
from penstock.overload import MaxLag
from penstock.position import Frontier, Position

MOST_MARKS = 4_096
"""At five a second a quarter of an hour of lag; with more they are thinned out, to a two-thousandth of it."""
SPEED_S = 30.0
"""Over how long the speed of a flow is measured: several of its batches."""
UNKNOWN_S = 5.0
"""When to try again where no speed is known."""
LONGEST_S = 60.0


class Marks:
    """When a stream had which length. Asked with a length, it says when the event behind it came.

    >>> marks = Marks()
    >>> marks.add(1_000, 10)
    >>> marks.add(2_000, 20)
    >>> marks.came_us(10), marks.came_us(20)
    (2000, None)
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._us: list[int] = []
        self._apart_us = 0

    def add(self, now_us: int, length: int) -> None:
        if self._lengths and length <= self._lengths[-1]:
            return
        if self._us and now_us - self._us[-1] < self._apart_us:
            self._lengths[-1] = length  # seems a little older than it is
            return
        self._lengths.append(length)
        self._us.append(now_us)
        if len(self._us) >= MOST_MARKS:
            del self._lengths[::2], self._us[1::2]
            self._apart_us = 2 * (self._us[-1] - self._us[0]) // MOST_MARKS

    def forget(self, absorbed: int) -> None:
        """Nobody will ask for less any more."""
        gone = bisect_right(self._lengths, absorbed)
        del self._lengths[:gone], self._us[:gone]
        if len(self._us) < MOST_MARKS // 8:
            self._apart_us = 0

    def came_us(self, absorbed: int) -> int | None:
        at = bisect_right(self._lengths, absorbed)
        return self._us[at] if at < len(self._us) else None


@dataclass(frozen=True, slots=True)
class LagReading:
    """What was seen at one moment: lengths, and whether the flow's lag counts (one stopped by an error does not)."""

    now_us: int
    end: int
    absorbed: int
    counts: bool = True


class Lag:
    """One view and one stream that it is made from; lives on the edge's loop."""

    def __init__(self, view: str, stream: str, limit: MaxLag, marks: Marks) -> None:
        self.view, self.stream, self.limit = view, stream, limit
        self.over = False
        self.since_us: int | None = None
        self.events = self.us = self.absorbed = 0
        self._marks = marks
        self._seen: deque[tuple[int, int]] = deque()
        self._sizes: deque[tuple[int, float]] = deque()

    def look(self, look: LagReading) -> bool:
        """Take note; returns whether it was switched."""
        self.absorbed = look.absorbed
        self.events = max(0, look.end - look.absorbed)
        came_us = self._marks.came_us(look.absorbed) if self.events else None
        self.us = 0 if came_us is None else max(0, look.now_us - came_us)
        self._remember(look)
        over = look.counts and self._part() > (0.5 if self.over else 1.0)
        switched, self.over = over != self.over, over
        if switched:
            self.since_us = look.now_us if over else None
        return switched

    @property
    def speed(self) -> float:
        """Events that the flow absorbs per second."""
        (first_us, first), (last_us, last) = self._seen[0], self._seen[-1]
        return max(0, last - first) * 1e6 / (last_us - first_us) if last_us > first_us else 0.0

    @property
    def retry_after_s(self) -> float:
        """Until half of the limit is reached, at the flow's speed, while nothing new comes."""
        part = self._part()
        too_many = self.events * (1 - 0.5 / part) if part > 0.5 else 0.0
        return min(LONGEST_S, max(1.0, too_many / self.speed)) if self.speed else UNKNOWN_S

    def grows(self, for_s: float) -> bool:
        """Whether it has been over for so long, and is no smaller now than then."""
        if not self.over or self.since_us is None or not self._sizes:
            return False
        now_us = self._sizes[-1][0]
        return now_us - self.since_us >= for_s * 1e6 and self._part() >= self._sizes[0][1]

    def _part(self) -> float:
        """The lag as a part of what it may be."""
        if self.limit.us is not None:
            return self.us / self.limit.us
        return self.events / (self.limit.events or 1)

    def _remember(self, look: LagReading) -> None:
        if self._seen and look.absorbed < self._seen[-1][1]:
            self._seen.clear()  # another build
        self._seen.append((look.now_us, look.absorbed))
        while look.now_us - self._seen[0][0] > SPEED_S * 1e6:
            self._seen.popleft()
        self._sizes.append((look.now_us, self._part()))
        while look.now_us - self._sizes[0][0] > 2 * SPEED_S * 1e6:
            self._sizes.popleft()


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
        guards: Mapping[str, StreamGuard],
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

    def _look(self, lag: Lag, end: Position, now_us: int) -> LagReading:
        frontier, counts = self._absorbed(lag.view)
        reached = frontier.get(lag.stream)
        absorbed = sum(reached.offsets) if reached is not None and reached.epoch == end.epoch else 0
        return LagReading(now_us, sum(end.offsets), absorbed, counts)

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
