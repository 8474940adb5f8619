"""Finds the matches of a pattern in the events of a key: a script like a user's class, with partial matches as state.

1. Each event that fits the first step begins a partial match; each partial match looks at each later event once.
2. A partial match that waits for a step takes the first event that fits it (`next`: the very next one, or it ends);
   `followed_by_any` takes it and waits on as well. A step of several events takes as many as it can until the next
   step fits. An event that fits a `not_followed_by` ends it.
3. An event counts for a match while its time is less than `within` behind the match's first event. What only the end of
   `within` can make whole becomes so when that time is complete.
4. A key holds so many partial matches; the oldest goes to `dead`, by name.
"""

from __future__ import annotations

import datetime as dt
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import Column
from penstock.flows.ordered.pattern_ranges import may_fit, ranges_of
from penstock.patterns import AfterMatch, Pattern, PatternStep
from penstock.schema import simple_type
from penstock.stateful import EPOCH, Out, Timer
from penstock.views.where.filter import Where, compile_where
from penstock.views.where.syntax import parse

MOST_PARTIAL = 1_000
_DEADLINE = "within"
_US = dt.timedelta(microseconds=1)
_encode = msgspec.msgpack.Encoder().encode


class Partial(msgspec.Struct):
    """A match that is not whole yet."""

    first: int
    """The number of its first event, counted in its key."""
    last: int
    start_us: int
    at: int
    """The step that it has reached."""
    count: int
    """Events that it has in that step."""
    taken: list[list[bytes]]
    """Its events by step."""


class _State(msgspec.Struct, kw_only=True):
    events: int = 0
    partials: list[Partial] = []


class _Step:
    """A step that takes events, with what must not come before it."""

    def __init__(self, step: PatternStep, fits: Where, guards: list[Where]) -> None:
        self.fits = fits.test
        self.guards = [guard.test for guard in guards]
        self.strict = step.link == "next"
        self.any = step.link == "followed_by_any"
        self.least, self.most = step.least, step.most


class PatternScript:
    """The script of one pattern over events of one schema. Travels to executors."""

    State = _State
    version = 1

    def __init__(
        self, pattern: Pattern, schema: pa.Schema, key: tuple[str, ...], within_us: int | None, after_match: AfterMatch
    ) -> None:
        self.pattern = pattern
        self.schema = schema
        self.key = key
        self.within_us = within_us
        self.after_match = after_match

    def __getstate__(self) -> dict[str, Any]:
        names = ("pattern", "schema", "key", "within_us", "after_match")
        return {name: getattr(self, name) for name in names}

    def meaning(self) -> str:
        """What its fingerprint is made of: no code of the project takes part."""
        return repr((self.pattern, self.within_us, self.after_match))

    # Columns

    @cached_property
    def names(self) -> list[str]:
        """The columns of an event that conditions and matches have."""
        return [f.name for f in self.schema if not f.name.startswith("_")]

    @cached_property
    def row_kind(self) -> type[msgspec.Struct]:
        fields: list[Any] = [(f.name, python_type(f.type) | None) for f in self.schema if f.name in self.names]
        return msgspec.defstruct("Matched", fields)

    @cached_property
    def Output(self) -> type[msgspec.Struct]:
        keys: list[Any] = [(name, python_type(self.schema.field(name).type) | None) for name in self.key]
        kind: Any = self.row_kind
        steps = [s for s in self.pattern.steps if s.link != "not_followed_by"]
        return msgspec.defstruct("Match", [*keys, *((s.name, list[kind] if s.many else kind) for s in steps)])

    def columns(self) -> list[Column]:
        """What a condition may name: the event's columns, its time, and each step as an object."""
        own = [Column(f.name, simple_type(f.type)) for f in self.schema if f.name in self.names]
        parts = ",".join(f"{column.name}:{column.type}" for column in own)
        steps = [Column(step.name, f"struct<{parts}>") for step in self.pattern.steps]
        return [*own, Column("_time", "timestamp"), *steps]

    @cached_property
    def steps(self) -> list[_Step]:
        """Those that take events."""
        made: list[_Step] = []
        guards: list[Where] = []
        for step in self.pattern.steps:
            where = compile_where(step.where, self.columns())
            if step.link == "not_followed_by":
                guards.append(where)
            else:
                made.append(_Step(step, where, guards))
                guards = []
        self._tail = [guard.test for guard in guards]
        return made

    @cached_property
    def _places(self) -> list[int | None]:
        """For each step of the pattern, which of those it is that take events."""
        at, places = 0, list[int | None]()
        for step in self.pattern.steps:
            takes = step.link != "not_followed_by"
            places.append(at if takes else None)
            at += takes
        return places

    def wanted(self, events: pa.Table) -> pa.Table:
        """The events that may fit some step by themselves. Where a step is the very next event, all count."""
        if any(step.link == "next" for step in self.pattern.steps):
            return events
        mask: Any = pa.array([False] * events.num_rows, pa.bool_())
        for step in self.pattern.steps:
            mask = pc.or_(mask, may_fit(events, ranges_of(parse(step.where), {})))
        return events.filter(mask)

    # Events

    def on_event(self, state: _State, event: Any, out: Out) -> None:
        steps, number = self.steps, state.events
        state.events += 1
        row = tuple(getattr(event, name) for name in self.names)
        time_us = event._time_us
        time = event._time
        packed: bytes | None = None
        partials, state.partials = state.partials, []
        waiting, blocked = len(partials), False
        while partials:
            partial = partials.pop(0)
            for other in self._moved(partial, row, time, time_us, number):
                if other.last == number and packed is None:
                    packed = _encode(dict(zip(self.names, row, strict=True)))
                if other.last == number and other.taken[-1][-1] == b"":
                    other.taken[-1][-1] = packed or b""
                if not self._is_whole(other):
                    state.partials.append(other)
                    continue
                self._emit(other, out)
                blocked = blocked or self.after_match == "skip_past_last"
                partials = self._after(other, partials)
                state.partials = self._after(other, state.partials)
                if self.after_match != "none":
                    break
        if not blocked and steps[0].fits(self._scope(row, time, None)):
            packed = packed or _encode(dict(zip(self.names, row, strict=True)))
            fresh = Partial(number, number, time_us, 0, 1, [[packed]])
            if self._is_whole(fresh):
                self._emit(fresh, out)
            else:
                state.partials.append(fresh)
        if len(state.partials) > MOST_PARTIAL:
            oldest = state.partials.pop(0)
            said = f"a key holds {MOST_PARTIAL} partial matches at most: the one of its event {oldest.first} went"
            out.reject("too_many_partial", said)
        if waiting or state.partials:
            self._wait(state, out)

    def on_timer(self, state: _State, timer: Timer, out: Out) -> None:
        """What waited for the end of `within` is whole; the oldest match first."""
        assert self.within_us is not None
        now_us = (timer.at - EPOCH) // _US
        left, state.partials = state.partials, []
        while left:
            partial = left.pop(0)
            if partial.start_us + self.within_us > now_us:
                state.partials.append(partial)
            elif self._is_ripe(partial):
                self._emit(partial, out)
                left, state.partials = self._after(partial, left), self._after(partial, state.partials)
        self._wait(state, out)

    def _wait(self, state: _State, out: Out) -> None:
        if self.pattern.waits:
            ripe = [partial.start_us for partial in state.partials if self._is_ripe(partial)]
            out.timer(_DEADLINE, EPOCH + (min(ripe) + (self.within_us or 0)) * _US if ripe else None)

    def _moved(self, partial: Partial, row: tuple[Any, ...], time: Any, time_us: int, number: int) -> list[Partial]:
        """What a partial match becomes by an event: itself, further on, both, or nothing. An event that it takes is
        packed by whoever called."""
        steps = self.steps
        if self.within_us is not None and time_us - partial.start_us >= self.within_us:
            return [partial] if self._is_ripe(partial) else []
        step, last = steps[partial.at], partial.at == len(steps) - 1
        scope = self._scope(row, time, partial)
        ready = partial.count >= step.least
        both: list[Partial] = []
        if ready:
            guards = self._tail if last else steps[partial.at + 1].guards
            if any(guard(scope) for guard in guards):
                return []
        if ready and not last:
            following = steps[partial.at + 1]
            if following.fits(scope):
                taken = [*(list(events) for events in partial.taken), [b""]]
                both = [Partial(partial.first, number, partial.start_us, partial.at + 1, 1, taken)]
                if not following.any:
                    return both
        if (step.most is None or partial.count < step.most) and step.fits(scope):
            partial.taken[-1].append(b"")
            partial.count += 1
            partial.last = number
            return [*both, partial]
        if ready and not last and steps[partial.at + 1].strict:
            return both
        return [*both, partial]

    def _scope(self, row: tuple[Any, ...], time: Any, partial: Partial | None) -> tuple[Any, ...]:
        """The event and what each step took last."""
        taken = partial.taken if partial is not None else []
        steps = (
            _unpacked(taken[at][-1]) if at is not None and at < len(taken) and taken[at] else None
            for at in self._places
        )
        return (*row, time, *steps)

    def _is_whole(self, partial: Partial) -> bool:
        step = self.steps[-1]
        return partial.at == len(self.steps) - 1 and partial.count == step.most and not self._tail

    def _is_ripe(self, partial: Partial) -> bool:
        """Whether it is whole when `within` is over."""
        return self.pattern.waits and partial.at == len(self.steps) - 1 and partial.count >= self.steps[-1].least

    def _after(self, whole: Partial, partials: list[Partial]) -> list[Partial]:
        if self.after_match == "skip_past_last":
            return [partial for partial in partials if partial.first > whole.last]
        if self.after_match == "skip_to_next":
            return [partial for partial in partials if partial.first != whole.first]
        return partials

    def _emit(self, whole: Partial, out: Out) -> None:
        steps = [step for step in self.pattern.steps if step.link != "not_followed_by"]
        rows = [[msgspec.msgpack.decode(event, type=self.row_kind) for event in events] for events in whole.taken]
        out.emit(**{s.name: events if s.many else events[0] for s, events in zip(steps, rows, strict=True)})


@lru_cache(4096)
def _unpacked(event: bytes) -> Any:
    return msgspec.msgpack.decode(event) if event else None


def python_type(kind: pa.DataType) -> Any:
    """The annotation of a field that is stored as this type."""
    if pa.types.is_struct(kind):
        return msgspec.defstruct("Part", [(f.name, python_type(f.type) | None) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return list[python_type(kind.value_type)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, python_type(kind.item_type)]  # type: ignore[misc]
    for test, found in _TYPES:
        if test(kind):
            return found
    return str


_TYPES: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_binary, bytes),
    (pa.types.is_timestamp, dt.datetime),
    (pa.types.is_date, dt.date),
)
