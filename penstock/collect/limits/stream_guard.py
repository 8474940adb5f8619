"""Stands before one stream, whatever the way in: says who must wait, and drops what the stream's rule lets go.

Looking at it costs a request a few comparisons: how the views lag and how full the room is, is found out elsewhere and
only noted here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa

from penstock.clock import Clock
from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.limits.room import Room
from penstock.collect.sender import Sender
from penstock.declaration import StreamDef
from penstock.errors import LaggingError, PenstockError
from penstock.overload import Shed
from penstock.rights.allowances import Buckets

LEAST = 1 / 1024
HALVE_S = 1.0
"""How long a new part is given to show before it is halved again."""
CALM_S = 5.0
"""How long it must be calm before more is taken."""
SEEN = 1_024
"""Priorities that are remembered to know what is a large one."""

Field = Callable[[str], Sequence[Any]]
"""The values of one field, one for each event."""
Keep = Callable[[int, Field], list[int]]


class Shedder:
    """Drops events of one stream by its declared rule while there is too much of them, and takes more again slowly.

    `part` is the part that is kept: 1 when all is well. Above the mark it is halved every second, and when it has been
    calm for a while it is doubled, so that it settles where the load can be borne instead of swinging.

    - `newest`: what arrives above the mark is dropped, all of it.
    - `random`: each event is kept with the probability `part`.
    - `sample`: an event is kept if hash(key) < part, so that a key is kept whole or not at all. What is kept at 1/4 is
      kept at 1/2 too.
    - `priority`: the `part` with the largest priorities is kept, as seen among the last events.

    Lives on the edge's loop.
    """

    def __init__(self, stream: StreamDef, shed: Shed, clock: Clock, random: Random) -> None:
        self.rule = shed.rule
        self.part = 1.0
        self._clock, self._random = clock, random
        self._changed_s = self._over_s = -CALM_S
        self._key, self._field = stream.key, shed.field or ""
        self._recent: deque[float] = deque()
        self._ranked: list[float] = []
        rules: dict[str, Keep] = {
            "newest": lambda count, field: [],
            "random": self._at_random,
            "sample": self._whole_keys,
            "priority": self._important,
        }
        self._keep = rules[shed.rule]

    def look(self, over: bool) -> None:
        """Called often, with whether there is too much now."""
        now_s = self._clock.monotonic()
        if over:
            self._over_s = now_s
            if self.rule == "newest":
                self.part = 0.0
            elif self.part == 1.0 or now_s - self._changed_s >= HALVE_S:
                self._set(max(LEAST, self.part / 2), now_s)
        elif self.rule == "newest":
            self.part = 1.0
        elif self.part < 1.0 and now_s - max(self._over_s, self._changed_s) >= CALM_S:
            self._set(min(1.0, self.part * 2), now_s)

    def kept(self, count: int, field: Field) -> list[int] | None:
        """Which of so many events are kept, by their numbers; None: all of them."""
        if self.rule == "priority":
            self._remember(field(self._field))
        if self.part == 1.0:
            return None
        return self._keep(count, field)

    def _set(self, part: float, now_s: float) -> None:
        self.part, self._changed_s = part, now_s

    def _at_random(self, count: int, field: Field) -> list[int]:
        return [at for at in range(count) if self._random.random() < self.part]

    def _whole_keys(self, count: int, field: Field) -> list[int]:
        bound = self.part * 2**32
        keys = zip(*(field(name) for name in self._key), strict=True)
        return [at for at, key in enumerate(keys) if crc32(repr(key).encode()) < bound]

    def _important(self, count: int, field: Field) -> list[int]:
        ranked, seen = self._ranked, len(self._ranked)
        least = ranked[min(seen - 1, int(seen * (1 - self.part)))]
        first, behind = bisect_left(ranked, least), bisect_right(ranked, least)
        of_least = (self.part * seen - (seen - behind)) / (behind - first)
        values = map(_number, field(self._field))
        draw = self._random.random
        return [at for at, value in enumerate(values) if value > least or (value == least and draw() < of_least)]

    def _remember(self, values: Sequence[Any]) -> None:
        for value in map(_number, values[-SEEN:]):
            if len(self._recent) >= SEEN:
                self._forget(self._recent.popleft())
            self._recent.append(value)
            insort(self._ranked, value)

    def _forget(self, value: float) -> None:
        del self._ranked[bisect_left(self._ranked, value)]


def _number(value: Any) -> float:
    """A priority; an event without one comes last."""
    return float("-inf") if value is None or value != value else float(value)


_UNLIMITED = ("pull", "replay")
"""Ways without a rate: we read a source at our own pace, and replay what was counted before."""


class StreamGuard:
    """One stream's limits; lives on the edge's loop."""

    def __init__(self, stream: StreamDef, room: Room, shed_above: float, clock: Clock, random: Random) -> None:
        self.stream = stream.name
        self.lagging: LaggingError | None = None
        """Why senders must wait, while a view downstream lags."""
        message = f"this sender sends more to '{stream.name}' than its rate allows"
        self.buckets = Buckets(message, stream.rate, clock, unit="events") if stream.rate else None
        self.shedder = Shedder(stream, stream.shed, clock, random) if stream.shed else None
        self._room, self._shed_above = room, shed_above

    @property
    def is_plain(self) -> bool:
        """Whether it lets everybody and everything pass now."""
        return self.lagging is None and self.buckets is None and self.shedder is None

    def check(self, account: str) -> None:
        """Before anything of a request is read. Raises `TooManyError` or `LaggingError`."""
        if self.lagging is not None and self.shedder is None:
            raise _copy(self.lagging)
        if self.buckets is not None:
            self.buckets.check(account)

    def admit(self, decoded: DecodedEvents, sender: Sender) -> tuple[DecodedEvents, int]:
        """What is taken of these events, and how many are dropped. Raises `TooManyError` or `LaggingError`."""
        if sender.way == "replay":
            return decoded, 0
        if self.lagging is not None and self.shedder is None and sender.way != "pull":
            raise _copy(self.lagging)
        if self.buckets is not None and sender.way not in _UNLIMITED:
            self.buckets.take(sender.account, decoded.received)
        if self.shedder is None:
            return decoded, 0
        self.look()
        kept = self.shedder.kept(len(decoded.events), lambda name: _values(decoded, name)) if decoded.events else None
        if kept is None or len(kept) == len(decoded.events):
            return decoded, 0
        return _only(decoded, kept), len(decoded.events) - len(kept)

    def admit_rows(self, batch: pa.RecordBatch, received: int, sender: Sender) -> tuple[pa.RecordBatch, int]:
        """The same for the changes of a table's rows, of which so many count as received now; what a pull or a replay
        brings is never dropped."""
        if sender.way in _UNLIMITED:
            return batch, 0
        if self.buckets is not None and received:
            self.buckets.take(sender.account, received)
        if self.shedder is None or not batch.num_rows:
            return batch, 0
        self.look()
        kept = self.shedder.kept(batch.num_rows, lambda name: batch.column(name).to_pylist())
        if kept is None or len(kept) == batch.num_rows:
            return batch, 0
        return batch.take(pa.array(kept, pa.int64())), batch.num_rows - len(kept)

    def give_back(self, events: int, sender: Sender) -> None:
        """So many that were admitted were not taken after all: the commit failed, or they were known as a whole."""
        if self.buckets is not None and sender.way not in _UNLIMITED:
            self.buckets.give_back(sender.account, events)

    def look(self) -> None:
        """Let the part that is kept follow the load."""
        if self.shedder is not None:
            self.shedder.look(self.over)

    @property
    def over(self) -> bool:
        """Whether there is too much now."""
        return self.lagging is not None or self._room.fill >= self._shed_above


def _values(decoded: DecodedEvents, name: str) -> list[Any]:
    """A field of every event, whether they are objects or came as columns."""
    if decoded.columns is not None:
        values: list[Any] = decoded.columns.column(name).to_pylist()
        return values
    return [getattr(event, name) for event in decoded.events]


def _only(decoded: DecodedEvents, kept: Sequence[int]) -> DecodedEvents:
    """These events, with everything that is known of each."""
    picked: dict[str, Any] = {"places": [decoded.place(at) for at in kept]}
    for name, values in ((each.name, getattr(decoded, each.name)) for each in fields(decoded)):
        if isinstance(values, pa.RecordBatch):
            picked[name] = values.take(pa.array(kept, pa.int64()))
        elif isinstance(values, Sequence) and name not in ("rejections", "places"):
            picked[name] = [values[at] for at in kept]
    if decoded.columns is not None:
        picked["events"] = range(len(kept))
    return replace(decoded, **picked)


def _copy(error: LaggingError) -> PenstockError:
    """Each request raises an error of its own: a shared one would collect the tracebacks of all."""
    return LaggingError(error.message, detail=error.detail, hint=error.hint).after(error.retry_after_s or 1.0)
