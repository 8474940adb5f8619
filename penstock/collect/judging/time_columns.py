"""Reads a field that holds a time as microseconds, whole columns at a time, and makes columns of times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.collect.judging.incoming_events import Mask, Micros
from penstock.collect.judging.rejection import Refused
from penstock.declaration import StreamDef
from penstock.schema import TIMESTAMP

FIRST_US = -62_135_596_800_000_000
"""The year 0001, before which no calendar here reaches."""
LAST_US = 253_402_300_799_999_999
"""The end of the year 9999."""

_EPOCH = pa.scalar(0, TIMESTAMP)


class TimeField:
    """A field of a stream's class that holds a time: integers are in milliseconds."""

    def __init__(self, stream: StreamDef, name: str) -> None:
        self.name = name
        self._index = stream.events.names.index(name)
        self._milliseconds = pa.types.is_integer(stream.events.arrow.types[self._index])

    def read(self, columns: Sequence[pa.Array]) -> tuple[Micros, Mask | None]:
        """The times, and which events have one (None: all). Raises `Refused` for a time that no calendar holds."""
        column = columns[self._index]
        time = micros(column)
        first, last = (FIRST_US // 1000, LAST_US // 1000) if self._milliseconds else (FIRST_US, LAST_US)
        if len(time) and (time.min() < first or time.max() > last):
            found = int(time.min()) if time.min() < first else int(time.max())
            raise Refused("out_of_range", f"'{self.name}': expected a time in the years 0001 to 9999, found {found}")
        has_time = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        return time * 1000 if self._milliseconds else time, has_time


def micros(column: pa.Array) -> Micros:
    """A column of integers or timestamps as numbers; a null is 0."""
    plain = column if column.null_count == 0 else column.fill_null(0 if pa.types.is_integer(column.type) else _EPOCH)
    numbers: Micros = plain.view(pa.int64()).to_numpy()
    return numbers


def timestamps(time: Micros, missing: Mask | None = None) -> pa.Array:
    if missing is not None and missing.any():
        return pa.array(np.where(missing, 0, time), pa.int64(), mask=missing).view(TIMESTAMP)
    return pa.Array.from_buffers(TIMESTAMP, len(time), [None, pa.py_buffer(np.ascontiguousarray(time))])


_NONE = np.int64(np.iinfo(np.int64).min)


class ThreeClocks:
    """Corrects events' times by how wrong their sender's clock is, as one stream declares it: received - (sent -
    occurred).

    `occurred` and `sent` are by the sender's clock, `received` by ours. On their difference the wrong clock has no
    effect, so an event that lay three days in a phone lands three days ago, whatever the phone believes. Where `sent`
    is further from `received` than `max_skew`, the clock is not believed at all: nothing is corrected, and the event
    counts as skewed. The raw values stay where they are.
    """

    def __init__(self, stream: StreamDef, max_skew_us: int) -> None:
        self._field = None if stream.sent is None else TimeField(stream, stream.sent)
        self._max_skew_us = max_skew_us

    def correct(
        self,
        occurred: Micros,
        has_time: Mask | None,
        came: Micros,
        columns: Sequence[pa.Array],
        header: Sequence[int | None] | Micros | None,
    ) -> tuple[Micros, pa.Array, Mask | None]:
        """The corrected times, `_sent` as it is stored, and which events are skewed."""
        sent = self._sent(columns, header, len(came))
        has_sent = sent != _NONE
        if not has_sent.any():
            return occurred, pa.nulls(len(came), timestamps(came).type), None
        ahead = np.where(has_sent, sent - came, 0)
        judged = has_sent if has_time is None else has_sent & has_time
        wrong = judged & (np.abs(ahead) > self._max_skew_us)
        shift = np.where(judged & ~wrong, ahead, 0)
        time = np.clip(occurred - shift, FIRST_US, LAST_US)
        return time, timestamps(sent, ~has_sent), wrong if wrong.any() else None

    def _sent(self, columns: Sequence[pa.Array], header: Sequence[int | None] | Micros | None, rows: int) -> Micros:
        """By the field, or where an event has none by the header."""
        if header is None:
            sent = np.full(rows, _NONE)
        elif isinstance(header, np.ndarray):
            sent = header
        else:
            sent = np.array([_NONE if us is None else us for us in header], np.int64)
        if self._field is None:
            return sent
        time, has_time = self._field.read(columns)
        return time if has_time is None else np.where(has_time, time, sent)
