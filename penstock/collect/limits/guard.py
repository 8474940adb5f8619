"""Stands before one stream, whatever the way in: says who must wait, and drops what the stream's rule lets go.

Looking at it costs a request a few comparisons: how the views lag and how full the room is, is found out elsewhere and
only noted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any

import pyarrow as pa

from penstock.clock import Clock
from penstock.collect.judging.arrival import Decoded
from penstock.collect.limits.room import Room
from penstock.collect.limits.shedding import Shedder
from penstock.collect.sender import Sender
from penstock.declaration import StreamDef
from penstock.errors import LaggingError, PenstockError
from penstock.rights.allowances import Buckets

_UNLIMITED = ("pull", "replay")
"""Ways without a rate: we read a source at our own pace, and replay what was counted before."""


class Guard:
    """One stream's limits; lives on the edge's loop."""

    def __init__(self, stream: StreamDef, room: Room, shed_above: float, clock: Clock, random: Random) -> None:
        self.stream = stream.name
        self.lagging: LaggingError | None = None
        """Why senders must wait, while a view downstream lags."""
        said = f"this sender sends more to '{stream.name}' than its rate allows"
        self.buckets = Buckets(said, stream.rate, clock, unit="events") if stream.rate else None
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

    def admit(self, decoded: Decoded, sender: Sender) -> tuple[Decoded, int]:
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


def _values(decoded: Decoded, name: str) -> list[Any]:
    """A field of every event, whether they are objects or came as columns."""
    if decoded.columns is not None:
        values: list[Any] = decoded.columns.column(name).to_pylist()
        return values
    return [getattr(event, name) for event in decoded.events]


def _only(decoded: Decoded, kept: Sequence[int]) -> Decoded:
    """These events, with everything that is known of each."""
    known = {each.name: getattr(decoded, each.name) for each in fields(decoded)}
    places = [decoded.place(at) for at in kept]
    picked: dict[str, Any] = {"places": places}
    for name, values in known.items():
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
