"""Builds the columns that every event gets: when it happened, when it came, what makes it unique, its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.clock import rfc3339
from penstock.collect.judging.arrival import Arrived, Mask, Micros
from penstock.collect.judging.content_hash import content_hashes
from penstock.collect.judging.id_texts import Texts, id_texts, key_texts
from penstock.collect.judging.rejection import Refused
from penstock.collect.judging.three_clocks import ThreeClocks
from penstock.collect.judging.time_columns import LAST_US, TimeField, timestamps
from penstock.declaration import StreamDef


@dataclass(frozen=True, slots=True)
class System:
    """The columns in their order, and which rows came from a clock that is too wrong to be corrected."""

    columns: list[pa.Array]
    time: Micros
    came: Micros
    skewed: Mask | None = None


NO_ROWS = System([], np.empty(0, np.int64), np.empty(0, np.int64))


class SystemColumns:
    """`_sent` where clocks are corrected, `_time`, `_received`, `_id` and `_key` of one stream."""

    def __init__(self, stream: StreamDef) -> None:
        self._time = None if stream.time is None else TimeField(stream, stream.time)
        self._clocks = None if stream.max_skew_us is None else ThreeClocks(stream, stream.max_skew_us)
        self._future_us = stream.future_us
        self._own_id = bool(stream.id) and not stream.identified_by_envelope
        self._id = (
            _fingerprints(stream) if stream.fingerprinted else id_texts(stream, stream.id if self._own_id else ())
        )
        self._key = key_texts(stream, stream.key)

    def build(self, columns: Sequence[pa.Array], arrived: Arrived) -> System:
        """From the columns of the fields, and of the undeclared ones where they are kept. Raises `Refused` for a time
        that no calendar holds."""
        came = np.asarray(arrived.received, np.int64)
        occurred, known = self._occurred(columns, came, arrived.times)
        by_envelope = arrived.ids is not None and not self._own_id
        ids = pa.array(arrived.ids, pa.string()) if by_envelope else self._id(columns, len(came))
        rest = [timestamps(came), ids, self._key(columns, len(came))]
        if self._clocks is None:
            return System([timestamps(occurred), *rest], occurred, came)
        first = came if arrived.first is None else _filled(arrived.first, came)
        time, sent, skewed = self._clocks.correct(occurred, known, first, columns, arrived.sent)
        return System([sent, timestamps(time), *rest], time, came, skewed)

    def _occurred(
        self, columns: Sequence[pa.Array], came: Micros, times: Sequence[int | None] | None
    ) -> tuple[Micros, Mask | None]:
        """Where an event has no time of its own, it happened when it came."""
        if self._time is not None:
            time, known = self._time.read(columns)
            return (time, None) if known is None else (np.where(known, time, came), known)
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
