"""Makes bodies of events in each form that the door takes; only the ids change from one body to the next."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa

from bench.narrow import KINDS, REGIONS, SENSORS, Lines

FORMS = {
    "lines": "application/x-ndjson",
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
}


class Csv(Lines):
    """The same events with a header."""

    _HEADER = b"id,sensor,kind,region,value,at\n"

    @staticmethod
    def _line(i: int, now_ms: int) -> bytes:
        row = f"{10**12},s{i % SENSORS:04},k{i % KINDS},{10 + i % REGIONS},{10 + i % 80 + 0.125:.3f},{now_ms}\n"
        return row.encode()

    def body(self) -> bytes:
        return self._HEADER + super().body()


class Arrow:
    """The same events as one record batch."""

    def __init__(self, events: int, now_ms: int, first_id: int) -> None:
        rows = np.arange(events)
        self._columns = {
            "sensor": pa.array([f"s{i % SENSORS:04}" for i in range(events)]),
            "kind": pa.array([f"k{i % KINDS}" for i in range(events)]),
            "region": pa.array(10 + rows % REGIONS),
            "value": pa.array(10 + rows % 80 + 0.125),
            "at": pa.array(np.full(events, now_ms)),
        }
        self._next = first_id
        self.events = events

    def body(self) -> bytes:
        ids = pa.array(np.arange(self._next, self._next + self.events))
        self._next += self.events
        batch = pa.record_batch({"id": ids, **self._columns})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()


def bodies(form: str, events: int, now_ms: int, first_id: int) -> Lines | Arrow:
    if form == "arrow":
        return Arrow(events, now_ms, first_id)
    return Csv(events, now_ms, first_id) if form == "csv" else Lines(events, now_ms, first_id)
