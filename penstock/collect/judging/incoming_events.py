"""What is on its way into a stream: the events of a request once they are read, and of many requests once joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.collect.judging.rejection import Refused, Rejection

T = TypeVar("T")
Mask = np.ndarray[tuple[int], np.dtype[np.bool]]
Micros = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(slots=True)
class DecodedEvents:
    """Events of the right shape, and those that are not; `places` says where each event stood (None: one by one)."""

    events: Sequence[Any]
    """Of the stream's class; where `columns` has them, only their numbers."""
    raw: Callable[[int], bytes]
    rejections: list[Rejection] = field(default_factory=list)
    unknown: list[str | None] | None = None
    places: Sequence[int] | None = None
    ids: Sequence[str | None] | None = None
    """What their envelopes say makes them unique."""
    times: Sequence[int | None] | None = None
    """When they happened, by their envelopes."""
    columns: pa.RecordBatch | None = None
    """The events' fields, where they came as columns."""
    first: Sequence[int | None] | None = None
    """When they came for the first time, where they came before."""
    sent: Sequence[int | None] | None = None
    """When the sender's clock said that it sent them, where that is known of each and not of the request."""

    @property
    def received(self) -> int:
        return len(self.events) + len(self.rejections)

    def place(self, row: int) -> int:
        return row if self.places is None else int(self.places[row])


@dataclass(frozen=True, slots=True)
class ArrivedEvents:
    """Events of one request or of several, and what is known of each beside its content (None: of none of them)."""

    events: Sequence[Any]
    received: Sequence[int] | Micros
    """When they came, in microseconds."""
    unknown: Sequence[str | None] | None = None
    sent: Sequence[int | None] | Micros | None = None
    """When the sender's clock says that it sent them, by a header."""
    ids: Sequence[str | None] | None = None
    times: Sequence[int | None] | None = None
    columns: pa.RecordBatch | None = None
    first: Sequence[int | None] | None = None
    """When they came for the first time: what a sender's clock is compared with."""

    def pick(self, rows: Sequence[int]) -> ArrivedEvents:
        def picked(values: Sequence[T] | Micros | None) -> list[T] | None:
            return None if values is None else [values[row] for row in rows]

        return ArrivedEvents(
            picked(self.events) or [],
            picked(self.received) or [],
            picked(self.unknown),
            picked(self.sent),
            picked(self.ids),
            picked(self.times),
            None if self.columns is None else self.columns.take(pa.array(rows, pa.int64())),
            picked(self.first),
        )


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """The columns of the events that fit them; `faults` names the others by their row."""

    batch: pa.RecordBatch
    rows: Sequence[int]
    """For each row of the batch the event that it came from."""
    faults: list[tuple[int, Refused]]
    skewed: Mask | None = None
    """Which rows came from a clock that is too wrong to be corrected."""

    def skewed_without(self, duplicates: Sequence[int]) -> int:
        """How many of them were not known already."""
        if self.skewed is None:
            return 0
        return int(np.count_nonzero(self.skewed)) - int(np.count_nonzero(self.skewed[list(duplicates)]))
