"""The loop of ordered flows: events, key after key, through a script; out come rows, changed states and letters.

The same function runs in the driver, in Spark's executors, in `verify` and in tests, and needs no Spark.

1. What comes out depends on the events of a key, their order, and what was complete at each commit: never on where a
   batch was cut.
2. A timer in event time fires at the commit that is the first to call its time complete, before that commit's events.
   One that was set in the past fires right after the event, or timer, that set it.
3. An exception in the script is a letter. The key's events of the batch are played again without that one, so that
   nothing of it stays in the state.
4. Rows leave in an order of their own: by commit, timers first, then by the events' order.
"""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from penstock import schema as columns_
from penstock.declaration import Order
from penstock.stateful import EPOCH, SEEN, TIMER, TIMERS, Out, Script, Timer
from penstock.views.unpack import frozen, unpack

SEQUENCE, STEP, LATE = "#seq", "#step", "_late"
"""Columns beside an event's own: its number in the batch, the number of its commit there, and whether it is late."""
MOST_TIMERS = 10_000
"""Timers of one key that fire at one moment: a script whose timer sets itself again in the past is stopped."""

Key = tuple[Any, ...]
Tag = tuple[int, int, int, bytes, int]
"""By what emitted rows are sorted: commit or time, timers before events, time or number, key, rank."""
_encode = msgspec.msgpack.Encoder().encode
_US = dt.timedelta(microseconds=1)
_NEVER = -(2**63)
_COUNTED = pa.list_(pa.struct([("name", pa.string()), ("at", pa.int64()), ("clock", pa.bool_())]))
_LAZY = frozenset({columns_.TIME, columns_.RECEIVED})
_TYPED = (dt.datetime, dt.date, bytes)
"""What Arrow's values are that `msgspec` takes as they are."""


@dataclass(frozen=True)
class FoldSpec:
    """What a fold must know of its flow; travels to executors."""

    flow: str
    script: Script
    key_fields: tuple[pa.Field, ...]
    order: Order
    keep_us: int | None

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.key_fields)

    @property
    def state_schema(self) -> pa.Schema:
        """A row of the state: the key, the fields of `State`, the newest time of its events, and its timers."""
        own = [f.remove_metadata() for f in self.script.state.fields]
        extra = [pa.field(SEEN, columns_.TIMESTAMP), pa.field(TIMERS, pa.list_(pa.field("element", TIMER)))]
        return pa.schema([*self.key_fields, *own, *extra])

    @property
    def rows_schema(self) -> pa.Schema:
        """What is emitted, before it is an event of the flow's stream."""
        own = getattr(self.script.script, "fields", None)
        if own is None:
            own = [] if self.script.rows is None else [f.remove_metadata() for f in self.script.rows.fields]
        return pa.schema([*own, pa.field(columns_.TIME, columns_.TIMESTAMP)])


@dataclass(frozen=True)
class BatchGround:
    """What a batch stands on, the same for all of its keys."""

    complete_us: tuple[int | None, ...]
    """For each commit of the batch what was complete when its events were judged; it never goes back. Where nothing is
    ever late, the newest time before it, by which `keep=` goes then."""
    now_us: int
    """The clock, read once."""
    timed: bool = True
    """Something becomes complete, so that timers can fire."""
    fired: tuple[tuple[Key, str], ...] = ()
    """Timers by the clock that have come due, by key and name; they fire before all else."""

    @property
    def end_us(self) -> int | None:
        return self.complete_us[-1] if self.complete_us else None


@dataclass(frozen=True)
class Letter:
    """An event, or a timer, on which the script failed."""

    input: str | None
    """None: it is a timer."""
    partition: int
    offset: int
    key: str | None
    said: str
    raw: bytes
    reason: str = "poison"


@dataclass
class Folded:
    """What came out of a fold."""

    rows: pa.Table
    """Emitted, in their order."""
    states: pa.Table
    """Rows that are new or have changed."""
    gone: list[Key]
    """Keys whose state is no more."""
    letters: list[Letter] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)
    """Of the rows, so that those of several parts can be put in order."""


@dataclass(slots=True)
class _Key:
    """One key while its events are folded."""

    values: Key
    state: Any
    timers: dict[tuple[str, bool], int]
    seen_us: int | None
    row: tuple[bytes, dict[tuple[str, bool], int], int | None] | None
    """State, timers and newest time as they are stored; None: nothing is."""


class Fold:
    """One batch."""

    def __init__(self, spec: FoldSpec, ground: BatchGround) -> None:
        self._spec = spec
        self._ground = ground
        self._kind = spec.script.kind
        self._on_event = spec.script.script.on_event
        self._on_timer = spec.script.on_timer
        self._out = Out(spec.script.output, spec.key, ground.now_us, timed=ground.timed)
        self._emitted: list[tuple[Tag, Any, int | None]] = []
        self._letters: list[Letter] = []
        self._completes = [_NEVER if us is None else us for us in ground.complete_us]
        self._rank = 0
        self._fired: dict[Key, list[str]] = {}
        for key, name in ground.fired:
            self._fired.setdefault(key, []).append(name)

    def run(self, events: Mapping[str, pa.Table], states: pa.Table) -> Folded:
        """Fold events, by input, each in its order, over the states of all keys that they or a timer touch."""
        groups = self._grouped(events)
        stored = {key.values: key for key in self._opened(states)}
        done = [self._play(stored.get(v) or _Key(v, self._kind(), {}, None, None), e) for v, e in groups.items()]
        done += [self._play(key, ()) for values, key in stored.items() if values not in groups]
        return self._folded(done)

    # In

    def _grouped(self, events: Mapping[str, pa.Table]) -> dict[Key, list[Any]]:
        """The events of each key in their order, with sequence, step and time."""
        groups: dict[Key, list[Any]] = {}
        for name, table in events.items():
            kind = event_kind(name, table.schema.names)
            columns = {f.name: _values(table.column(f.name), f.name) for f in table.schema}
            made = map(kind, *(columns[part] for part in table.schema.names if part[0] != "#"))
            times = columns[columns_.TIME]
            keys = zip(*(columns[part] for part in self._spec.key), strict=True)
            items = zip(columns[SEQUENCE], columns[STEP], times, made, strict=True)
            for values, item in zip(keys, items, strict=True):
                group = groups.get(values)
                if group is None:
                    groups[values] = [item]
                else:
                    group.append(item)
        for values in [v for v in groups if None in v]:
            self._letters += [event_letter(event, "its key is null", "null_key") for *_, event in groups.pop(values)]
        if len(events) > 1:
            for group in groups.values():
                group.sort(key=_first)
        return groups

    def _opened(self, states: pa.Table) -> Iterator[_Key]:
        names = self._spec.script.state.names
        columns = {name: unpack(_chunk(states.column(name))) for name in (*self._spec.key, *names)}
        keys = zip(*(columns[name] for name in self._spec.key), strict=True)
        rows = zip(*(columns[name] for name in names), strict=True) if names else iter([()] * states.num_rows)
        times, timers = _micros(states.column(SEEN)), timers_of(states.column(TIMERS))
        for values, row, seen_us, pending in zip(keys, rows, times, timers, strict=True):
            state = msgspec.convert(dict(zip(names, row, strict=True)), self._kind, builtin_types=_TYPED)
            yield _Key(frozen(list(values)), state, dict(pending), seen_us, (_encode(state), pending, seen_us))

    # One key

    def _play(self, key: _Key, events: Sequence[Any]) -> _Key:
        """The events of a key in the batch. If the script fails, all is played again, more carefully."""
        rows, letters = len(self._emitted), len(self._letters)
        try:
            self._walk(key, events, careful=False)
        except Exception:
            del self._emitted[rows:], self._letters[letters:]
            self._out.reset()
            self._put_back(key)
            self._walk(key, events, careful=True)
        return key

    def _put_back(self, key: _Key) -> None:
        if key.row is None:
            key.state, key.timers, key.seen_us = self._kind(), {}, None
        else:
            key.state = msgspec.msgpack.decode(key.row[0], type=self._kind)
            key.timers, key.seen_us = dict(key.row[1]), key.row[2]

    def _walk(self, key: _Key, events: Sequence[Any], *, careful: bool) -> None:
        out, completes, by_time = self._out, self._completes, self._spec.order == "time"
        on_event, keep_us = self._on_event, self._spec.keep_us
        out.key = key.values
        self._fire_clocks(key, careful=careful)
        for seq, step, time_us, event in events:
            limit = time_us if by_time else completes[step]
            if key.timers:
                self._fire_due(key, limit, careful=careful)
            if keep_us is not None and self._is_old(key, limit):
                self._begin_anew(key)
            out.timers = key.timers
            if careful:
                if not self._try(key, event, on_event):
                    continue
            else:
                on_event(key.state, event, out)
            if key.seen_us is None or (time_us is not None and time_us > key.seen_us):
                key.seen_us = time_us
            major = time_us if by_time else step
            if out.emitted:
                self._take((major, 1, seq, b"", 0), time_us)
            if out.rejected:
                self._letters += [event_letter(event, said, reason) for reason, said in out.rejected]
                out.rejected = []
            if out.forgotten:
                self._begin_anew(key)
            if out.changed:
                out.changed = False
                self._fire_due(key, limit, (major, 1, seq, b""), careful=careful)
        if key.timers and self._completes:
            self._fire_due(key, self._completes[-1], careful=careful)

    def _fire_clocks(self, key: _Key, *, careful: bool) -> None:
        for name in self._fired.get(key.values, ()):
            due_us = key.timers.pop((name, True), None)
            if due_us is not None:
                self._fire(
                    key, Timer(name, EPOCH + due_us * _US, True), (-1, 0, 0, _encode(key.values)), careful=careful
                )

    def _fire_due(
        self, key: _Key, limit: int, at_once: tuple[int, int, int, bytes] | None = None, *, careful: bool
    ) -> None:
        """Fire what is due at `limit`, in the order of time; `at_once`: behind the event that has just set some."""
        count, least = 0, 0
        while True:
            due = min(((us, name) for (name, clock), us in key.timers.items() if not clock), default=None)
            if due is None or due[0] > limit:
                return
            at_us, name = due
            del key.timers[name, False]
            timer = Timer(name, EPOCH + at_us * _US)
            count += 1
            if count > MOST_TIMERS:
                said = f"it was set again in the past {MOST_TIMERS} times in a row, and is left out"
                self._letters.append(timer_letter(timer, self._spec.flow, key.values, said))
                continue
            least = max(least, self._moment(at_us))  # what a timer sets in the past fires behind it
            self._fire(key, timer, at_once or (least, 0, at_us, _encode(key.values)), careful=careful)

    def _moment(self, at_us: int) -> int:
        """The commit at which a timer fires, or its time."""
        return at_us if self._spec.order == "time" else bisect.bisect_left(self._completes, at_us)

    def _fire(self, key: _Key, timer: Timer, place: tuple[int, int, int, bytes], *, careful: bool) -> None:
        out = self._out
        out.timers = key.timers
        if self._on_timer is None:
            return
        self._rank += 1
        if not careful:
            self._on_timer(key.state, timer, out)
        elif not self._try(key, timer, self._on_timer):
            return
        # A clock is not repeatable: what it lets a script emit has the time of the key's newest event.
        self._take((*place, self._rank), key.seen_us if timer.clock else (timer.at - EPOCH) // _US)
        if out.forgotten:
            self._begin_anew(key)
        out.changed = False

    def _take(self, tag: Tag, time_us: int | None) -> None:
        """Rows that were just emitted; they stay in the order in which they came."""
        self._emitted += [(tag, row, time_us) for row in self._out.emitted]
        self._out.emitted = []

    def _is_old(self, key: _Key, limit: int) -> bool:
        keep_us = self._spec.keep_us
        return keep_us is not None and key.seen_us is not None and not key.timers and limit >= key.seen_us + keep_us

    def _begin_anew(self, key: _Key) -> None:
        self._out.forgotten = False
        key.state, key.timers, key.seen_us = self._kind(), {}, None

    def _try(self, key: _Key, cause: Any, function: Callable[..., Any]) -> bool:
        """Call the script; if it fails, everything is as before the call, and a letter tells."""
        state, timers = _encode(key.state), dict(key.timers)
        try:
            function(key.state, cause, self._out)
        except Exception as error:
            self._out.reset()
            key.state = msgspec.msgpack.decode(state, type=self._kind)
            key.timers = timers
            said = f"{type(error).__name__}: {error}"
            if isinstance(cause, Timer):
                self._letters.append(timer_letter(cause, self._spec.flow, key.values, f"on_timer: {said}"))
            else:
                self._letters.append(event_letter(cause, f"on_event: {said}"))
            return False
        return True

    # Out

    def _folded(self, done: Sequence[_Key]) -> Folded:
        spec = self._spec
        self._emitted.sort(key=_first)
        blank = _encode(self._kind())
        end = self._completes[-1] if self._completes else _NEVER
        changed, gone = [], []
        for key in done:
            state = _encode(key.state)
            if self._is_old(key, end) or (key.seen_us is None and not key.timers and state == blank):
                if key.row is not None:
                    gone.append(key.values)
            elif key.row != (state, key.timers, key.seen_us):
                changed.append(key)
        rows = [] if spec.script.rows is None else spec.script.rows.columns([row for _, row, _ in self._emitted])
        times = _times([us for _, _, us in self._emitted])
        keys = [pa.array([key.values[at] for key in changed], f.type) for at, f in enumerate(spec.key_fields)]
        states = spec.script.state.columns([key.state for key in changed])
        timers = [[{"name": n, "at": us, "clock": c} for (n, c), us in sorted(k.timers.items())] for k in changed]
        pending = pa.array(timers, _COUNTED).cast(spec.state_schema.field(TIMERS).type)
        seen = _times([key.seen_us for key in changed])
        return Folded(
            rows=pa.Table.from_arrays([*rows, times], schema=spec.rows_schema),
            states=pa.Table.from_arrays([*keys, *states, seen, pending], schema=spec.state_schema),
            gone=gone,
            letters=self._letters,
            tags=[tag for tag, _, _ in self._emitted],
        )


def fold(spec: FoldSpec, ground: BatchGround, events: Mapping[str, pa.Table], states: pa.Table) -> Folded:
    """Fold one batch; see `Fold.run`."""
    return Fold(spec, ground).run(events, states)


def _first(item: Any) -> Any:
    return item[0]


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _values(column: pa.ChunkedArray, name: str) -> list[Any]:
    """The times of the system are numbers until a script asks for one: most never do."""
    return _micros(column) if name in _LAZY else unpack(_chunk(column))


def _micros(column: pa.ChunkedArray) -> list[int | None]:
    whole = column.cast(pa.int64())
    return list(whole.to_pylist()) if column.null_count else list(whole.to_numpy().tolist())


def _times(times_us: Sequence[int | None]) -> pa.Array:
    return pa.array(times_us, pa.int64()).cast(columns_.TIMESTAMP)


def timers_of(column: pa.ChunkedArray) -> list[dict[tuple[str, bool], int]]:
    """The timers of each row of a state, by name and whether the clock decides."""
    array = _chunk(column)
    if not len(array.flatten()):
        return [{} for _ in range(len(array))]
    return [{(t["name"], t["clock"]): t["at"] for t in row or ()} for row in array.cast(_COUNTED).to_pylist()]


_KINDS: dict[tuple[str, tuple[str, ...]], type[msgspec.Struct]] = {}
"""Classes of events, made once: a class costs as much as a thousand events."""


def event_kind(stream: str, names: Sequence[str]) -> type[msgspec.Struct]:
    """The class of the events that a script gets of a stream: its columns, and `late` and `stream` beside them."""
    columns = tuple(name for name in names if not name.startswith("#"))
    if (stream, columns) not in _KINDS:
        parts = {"stream": property(lambda event: stream), "late": property(lambda event: getattr(event, LATE))}
        own: dict[str, Any] = {name: part for name, part in parts.items() if name not in columns}
        own |= {name: _moment_of(f"{name}_us") for name in columns if name in _LAZY}
        fields: list[Any] = [(f"{name}_us" if name in _LAZY else name, Any) for name in columns]
        _KINDS[stream, columns] = msgspec.defstruct("Event", fields, namespace={**own, "_stream": stream}, gc=False)
    return _KINDS[stream, columns]


def _moment_of(name: str) -> property:
    def moment(event: Any) -> dt.datetime | None:
        us = getattr(event, name)
        return None if us is None else EPOCH + us * _US

    return property(moment)


def event_letter(event: Any, said: str, reason: str = "poison") -> Letter:
    fields = {name: getattr(event, name) for name in event.__struct_fields__ if not name.startswith("_")}
    place = getattr(event, columns_.PARTITION), getattr(event, columns_.OFFSET)
    raw = msgspec.json.encode(fields, enc_hook=str)
    return Letter(type(event)._stream, *place, getattr(event, columns_.KEY), said, raw, reason)


def timer_letter(timer: Timer, flow: str, key: Key, said: str) -> Letter:
    raw = msgspec.json.encode({"flow": flow, "timer": timer.name, "at": timer.at, "key": list(key)}, enc_hook=str)
    return Letter(None, -1, -1, None if not key else str(key[0]), said, raw)
