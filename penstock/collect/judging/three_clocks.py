"""Corrects an event's time by how wrong its sender's clock is: received - (sent - occurred).

`occurred` and `sent` are by the sender's clock, `received` by ours. On their difference the wrong clock has no effect,
so that an event which lay three days in a phone lands three days ago, whatever the phone believes. Where `sent` is
further from `received` than `max_skew`, the clock is not believed at all: nothing is corrected, and the event counts as
skewed. Whole columns at a time; the raw values stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.collect.judging.arrival import Mask, Micros
from penstock.collect.judging.time_columns import FIRST_US, LAST_US, TimeField, timestamps
from penstock.declaration import StreamDef

_NONE = np.int64(np.iinfo(np.int64).min)


class ThreeClocks:
    """The correction that one stream declares."""

    def __init__(self, stream: StreamDef, max_skew_us: int) -> None:
        self._field = None if stream.sent is None else TimeField(stream, stream.sent)
        self._max_skew_us = max_skew_us

    def correct(
        self,
        occurred: Micros,
        known: Mask | None,
        came: Micros,
        columns: Sequence[pa.Array],
        header: Sequence[int | None] | Micros | None,
    ) -> tuple[Micros, pa.Array, Mask | None]:
        """The corrected times, `_sent` as it is stored, and which events are skewed. `known`: which have a time."""
        sent = self._sent(columns, header, len(came))
        told = sent != _NONE
        if not told.any():
            return occurred, pa.nulls(len(came), timestamps(came).type), None
        ahead = np.where(told, sent - came, 0)
        judged = told if known is None else told & known
        wrong = judged & (np.abs(ahead) > self._max_skew_us)
        shift = np.where(judged & ~wrong, ahead, 0)
        time = np.clip(occurred - shift, FIRST_US, LAST_US)
        return time, timestamps(sent, ~told), wrong if wrong.any() else None

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
        time, known = self._field.read(columns)
        return time if known is None else np.where(known, time, sent)
