"""Builds the stored columns of a stream's events, and finds those that columns cannot hold.

1. What the columns cannot hold (an integer beyond 64 bits, a decimal with too many digits, a time outside of all
   calendars) is the event's fault and rejected here, never an error of the server.
2. All events are tried at once. Only when that fails are the bad ones looked for.

`intake.py` joins the events of many requests and asks for their columns once, because the cost of building columns lies
in the calls, not in the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.clock import rfc3339
from penstock.collect.judging.event_ids import Texts, content_hashes, id_texts, key_texts
from penstock.collect.judging.incoming_events import ArrivedEvents, BuiltBatch, Mask, Micros
from penstock.collect.judging.json_events import MOST_REJECTED, hopeless
from penstock.collect.judging.rejection import Refused, concealed, refused, short
from penstock.collect.judging.time_columns import LAST_US, ThreeClocks, TimeField, timestamps
from penstock.declaration import StreamDef
from penstock.schema import simple_type


@dataclass(frozen=True, slots=True)
class System:
    """The columns in their order, and which rows came from a clock that is too wrong to be corrected."""

    columns: list[pa.Array]
    time: Micros
    came: Micros
    skewed: Mask | None = None


NO_ROWS = System([], np.empty(0, np.int64), np.empty(0, np.int64))


class SystemColumns:
    """The columns that every event of a stream gets: `_time`, `_received`, `_id`, `_key`, and `_sent` where clocks are
    corrected."""

    def __init__(self, stream: StreamDef) -> None:
        self._time = None if stream.time is None else TimeField(stream, stream.time)
        self._clocks = None if stream.max_skew_us is None else ThreeClocks(stream, stream.max_skew_us)
        self._future_us = stream.future_us
        self._own_id = bool(stream.id) and not stream.identified_by_envelope
        self._id = (
            _fingerprints(stream) if stream.fingerprinted else id_texts(stream, stream.id if self._own_id else ())
        )
        self._key = key_texts(stream, stream.key)

    def build(self, columns: Sequence[pa.Array], arrived: ArrivedEvents) -> System:
        """From the columns of the fields, and of the undeclared ones where they are kept. Raises `Refused` for a time
        that no calendar holds."""
        came = np.asarray(arrived.received, np.int64)
        occurred, has_time = self._occurred(columns, came, arrived.times)
        by_envelope = arrived.ids is not None and not self._own_id
        ids = pa.array(arrived.ids, pa.string()) if by_envelope else self._id(columns, len(came))
        rest = [timestamps(came), ids, self._key(columns, len(came))]
        if self._clocks is None:
            return System([timestamps(occurred), *rest], occurred, came)
        first = came if arrived.first is None else _filled(arrived.first, came)
        time, sent, skewed = self._clocks.correct(occurred, has_time, first, columns, arrived.sent)
        return System([sent, timestamps(time), *rest], time, came, skewed)

    def _occurred(
        self, columns: Sequence[pa.Array], came: Micros, times: Sequence[int | None] | None
    ) -> tuple[Micros, Mask | None]:
        """Where an event has no time of its own, it happened when it came."""
        if self._time is not None:
            time, has_time = self._time.read(columns)
            return (time, None) if has_time is None else (np.where(has_time, time, came), has_time)
        if times is None:
            return came, None
        return _filled(times, came), None

    def ahead(self, system: System) -> list[tuple[int, Refused]]:
        """The rows whose time is further ahead of their arrival than the stream allows."""
        time, came = system.time, system.came
        rows = np.flatnonzero(time - came > self._future_us).tolist()
        return [(row, self._too_early(int(time[row]), int(came[row]))) for row in rows]

    def _too_early(self, time_us: int, came_us: int) -> Refused:
        limit = rfc3339(min(came_us + self._future_us, LAST_US))
        name = "time" if self._time is None else self._time.name
        return Refused("from_the_future", f"'{name}': expected at most {limit}, found {rfc3339(time_us)}")


def _filled(times: Sequence[int | None], came: Micros) -> Micros:
    return np.array([us if time is None else time for time, us in zip(times, came, strict=True)], np.int64)


def _fingerprints(stream: StreamDef) -> Texts:
    hashes = content_hashes(stream)
    return lambda columns, rows: hashes(range(rows), columns)


class EventColumns:
    """The columns of one stream. Stateless: any thread may ask."""

    def __init__(self, stream: StreamDef) -> None:
        self._stream = stream
        self._system = SystemColumns(stream)

    def build(self, arrived: ArrivedEvents) -> BuiltBatch | None:
        """Columns of all events; None when some events do not fit."""
        try:
            batch, system = self._columns(arrived)
        except Exception:
            return None
        return self._without_future(BuiltBatch(batch, range(len(arrived.events)), [], system.skewed), system, arrived)

    def build_apart(self, arrived: ArrivedEvents) -> BuiltBatch:
        """Columns of the events that fit, after finding those that do not; slow when there are many."""
        faults = list(self._faults(range(len(arrived.events)), arrived))
        bad = {row for row, _ in faults}
        rows = [row for row in range(len(arrived.events)) if row not in bad]
        batch, system = self._columns(arrived.pick(rows))
        return self._without_future(BuiltBatch(batch, rows, faults, system.skewed), system, arrived)

    def _columns(self, arrived: ArrivedEvents) -> tuple[pa.RecordBatch, System]:
        stored, rows = self._stream.stored, len(arrived.events)
        if not rows:
            return pa.RecordBatch.from_pylist([], stored), NO_ROWS
        batch = arrived.columns
        columns = self._stream.events.columns(arrived.events) if batch is None else batch.columns
        kept: list[pa.Array] = []
        if self._stream.unknown == "keep":
            kept.append(pa.array(arrived.unknown or [None] * rows, pa.string()))
        system = self._system.build([*columns, *kept], arrived)
        return pa.RecordBatch.from_arrays([*columns, *kept, *system.columns], schema=stored), system

    def _without_future(self, built: BuiltBatch, system: System, arrived: ArrivedEvents) -> BuiltBatch:
        ahead = self._system.ahead(system)
        if not ahead:
            return built
        if len(ahead) > MOST_REJECTED and arrived.columns is not None:  # they are of one request
            first = self._said(ahead[0][1])
            raise hopeless(first.reason, first.detail)
        faults = [*built.faults, *((int(built.rows[at]), self._said(why)) for at, why in ahead)]
        kept = np.ones(built.batch.num_rows, np.bool_)
        kept[[at for at, _ in ahead]] = False
        return BuiltBatch(
            built.batch.filter(pa.array(kept)),
            np.asarray(built.rows)[kept].tolist(),
            sorted(faults, key=lambda fault: fault[0]),
            None if built.skewed is None else built.skewed[kept],
        )

    def _faults(self, rows: Sequence[int], arrived: ArrivedEvents) -> Iterator[tuple[int, Refused]]:
        """The rows that do not fit, found by halving until each stands alone."""
        try:
            self._columns(arrived.pick(rows))
        except Exception as error:
            if len(rows) == 1:
                yield rows[0], self._said(self._blame(arrived.events[rows[0]], error))
            else:
                yield from self._faults(rows[: len(rows) // 2], arrived)
                yield from self._faults(rows[len(rows) // 2 :], arrived)

    def _said(self, why: Refused) -> Refused:
        """What may be said of a fault: never the value of a private field."""
        return concealed(why, self._stream.events.kind) if self._stream.events.private else why

    def _blame(self, event: Any, error: Exception) -> Refused:
        """The fault, with the name of the field that has it."""
        why = refused(error)
        nothing = dict.fromkeys(self._stream.events.names)
        for name in () if isinstance(error, Refused) else nothing:
            try:
                self._stream.events.columns([SimpleNamespace(**nothing | {name: getattr(event, name)})])
            except Exception:
                kind = simple_type(self._stream.events.arrow.field(name).type)
                found = short(repr(getattr(event, name)))
                return Refused(why.reason, f"'{name}': expected what fits {kind}, found {found}")
        return why
