"""Builds the columns that every event gets: when it happened, when it came, what makes it unique, its key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.clock import rfc3339
from penstock.collect.content_hash import content_hashes
from penstock.collect.rejection import Refused
from penstock.declaration import StreamDef
from penstock.schema import RECEIVED, TIME, TIMESTAMP

FIRST_US = -62_135_596_800_000_000
"""The year 0001, before which no calendar here reaches."""
LAST_US = 253_402_300_799_999_999
"""The end of the year 9999."""

_encode_lines = msgspec.json.Encoder().encode_lines
Texts = Callable[[Sequence[Any], Sequence[pa.Array]], pa.Array]
Micros = np.ndarray[tuple[int], np.dtype[np.int64]]


class SystemColumns:
    """`_time`, `_received`, `_id` and `_key` of one stream."""

    def __init__(self, stream: StreamDef) -> None:
        names = stream.events.names
        self._time = None if stream.time is None else names.index(stream.time)
        self._time_name = stream.time
        self._milliseconds = self._time is not None and pa.types.is_integer(stream.events.arrow.types[self._time])
        self._future_us = stream.future_us
        self._id = content_hashes(stream) if stream.fingerprinted else _texts(stream, stream.id, _json_texts)
        self._key = _texts(stream, stream.key, _plain_texts)

    def build(self, events: Sequence[Any], columns: Sequence[pa.Array], received: Sequence[int]) -> list[pa.Array]:
        """The four columns, in their order. Raises `Refused` for a time that no calendar holds."""
        came = np.array(received, np.int64)
        time = came if self._time is None else self._event_time(columns[self._time], came)
        return [_timestamps(time), _timestamps(came), self._id(events, columns), self._key(events, columns)]

    def ahead(self, batch: pa.RecordBatch) -> list[tuple[int, Refused]]:
        """The rows whose time is further ahead of their arrival than the stream allows."""
        if self._time is None:
            return []
        time, came = (_micros(batch.column(name)) for name in (TIME, RECEIVED))
        rows = np.flatnonzero(time - came > self._future_us).tolist()
        return [(row, self._too_early(int(time[row]), int(came[row]))) for row in rows]

    def _event_time(self, column: pa.Array, came: Micros) -> Micros:
        """Where an event has no time of its own, it happened when it came."""
        time = _micros(column)
        first, last = (FIRST_US // 1000, LAST_US // 1000) if self._milliseconds else (FIRST_US, LAST_US)
        if len(time) and (time.min() < first or time.max() > last):
            raise Refused("out_of_range", f"'{self._time_name}': expected a time in the years 0001 to 9999")
        time = time * 1000 if self._milliseconds else time
        return np.where(column.is_null().to_numpy(zero_copy_only=False), came, time) if column.null_count else time

    def _too_early(self, time_us: int, came_us: int) -> Refused:
        limit = rfc3339(min(came_us + self._future_us, LAST_US))
        return Refused("from_the_future", f"'{self._time_name}': expected at most {limit}, found {rfc3339(time_us)}")


def _micros(column: pa.Array) -> Micros:
    """A column of integers or timestamps as numbers; a null is 0."""
    plain = column if column.null_count == 0 else column.fill_null(0 if pa.types.is_integer(column.type) else _EPOCH)
    micros: Micros = plain.view(pa.int64()).to_numpy()
    return micros


_EPOCH = pa.scalar(0, TIMESTAMP)


def _timestamps(time: Micros) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, len(time), [None, pa.py_buffer(np.ascontiguousarray(time))])


# Ids and keys


def _texts(stream: StreamDef, names: tuple[str, ...], texts: Callable[[list[Any]], Sequence[str | None]]) -> Texts:
    """How to build a column of texts from the fields `names`; whole columns where their type allows it."""
    if not names:
        return lambda events, _: pa.nulls(len(events), pa.string())
    if len(names) > 1:
        return lambda events, _: pa.array(_arrays([[getattr(e, n) for n in names] for e in events]), pa.string())
    name, index = names[0], stream.events.names.index(names[0])
    kind = stream.events.arrow.types[index]
    if pa.types.is_string(kind):
        return lambda _, columns: columns[index]
    if pa.types.is_integer(kind):
        return lambda _, columns: columns[index].cast(pa.string())
    return lambda events, _: pa.array(texts([getattr(e, name) for e in events]), pa.string())


def _arrays(values: list[list[Any]]) -> list[str]:
    """Each as a JSON array. JSON has no bare line ends, so that all of them can be encoded at once and cut apart."""
    return _encode_lines(values).decode().split("\n")[:-1]


def _json_texts(values: list[Any]) -> list[str | None]:
    texts = _arrays(values)
    return [None if value is None else text for value, text in zip(values, texts, strict=True)]


def _plain_texts(values: list[Any]) -> list[str | None]:
    return [None if value is None else str(getattr(value, "value", value)) for value in values]
