"""Events with six narrow columns, made fast enough that making them is never what is measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.declaration import StreamDef

SENSORS = 1_000
KINDS = 5
REGIONS = 50
START_MS = 1_700_000_000_000
_DIGITS = 13


class Lines:
    """NDJSON of events of equal width, of which only the ids change from one body to the next."""

    def __init__(self, events: int, now_ms: int, first_id: int) -> None:
        rows = [self._line(i, now_ms) for i in range(events)]
        self._bytes = np.frombuffer(b"".join(rows), np.uint8).reshape(events, -1).copy()
        self._one = rows[0]
        self._at = rows[0].index(b"1")
        self._next = first_id
        self.events = events

    @staticmethod
    def _line(i: int, now_ms: int) -> bytes:
        return (
            f'{{"id":{10 ** (_DIGITS - 1)},"sensor":"s{i % SENSORS:04}","kind":"k{i % KINDS}",'
            f'"region":{10 + i % REGIONS},"value":{10 + i % 80 + 0.125:.3f},"at":{now_ms}}}\n'
        ).encode()

    def body(self) -> bytes:
        """The next body; its ids are new."""
        if self.events == 1:  # numpy would take longer than the server for so little
            self._next += 1
            return b"%s%d%s" % (self._one[: self._at], self._next, self._one[self._at + _DIGITS :])
        ids = np.arange(self._next, self._next + self.events)
        self._next += self.events
        for place in range(_DIGITS):
            self._bytes[:, self._at + place] = ids // 10 ** (_DIGITS - 1 - place) % 10 + ord("0")
        return self._bytes.tobytes()


def batches(declared: StreamDef, events: int, commit: int, rate: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Events as the door would store them: `rate` a second by their own time, up to two seconds out of order."""
    random = np.random.default_rng(1)
    names = [pa.array([f"s{i:04}" for i in range(SENSORS)]), pa.array([f"k{i}" for i in range(KINDS)])]
    for low in range(0, events, commit):
        ids = np.arange(low, min(low + commit, events))
        sensors = random.integers(0, SENSORS, len(ids))
        at_ms = START_MS + ids * 1000 // rate - random.integers(0, 2_000, len(ids))
        sensor = names[0].take(pa.array(sensors))
        time = pa.array(at_ms * 1000, pa.timestamp("us", tz="UTC"))
        columns = {
            "id": pa.array(ids),
            "sensor": sensor,
            "kind": names[1].take(pa.array(sensors % KINDS)),
            "region": pa.array(sensors % REGIONS),
            "value": pa.array(random.random(len(ids))),
            "at": pa.array(at_ms),
            "_time": time,
            "_received": time,
            "_id": pa.nulls(len(ids), pa.string()),
            "_key": sensor,
        }
        schema = declared.stored
        yield pa.RecordBatch.from_arrays([columns[n].cast(schema.field(n).type) for n in schema.names], schema=schema)
