"""`keep=`: rows that are too old against the newest event leave the view, by one rule that `verify` applies too.

A row's time is the end of its window, else its `_time`. It goes when that lies more than `keep` behind the input's
largest event time at the commit's frontier. Idle input lets nothing go, and a row stays until it has a time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import DELETE, OP
from penstock.flows.rules import row_time
from penstock.schema import simple_type

Key = tuple[Any, ...]


def row_times(table: pa.Table) -> pa.Array:
    """Each row's time in microseconds."""
    column = row_time({f.name: simple_type(f.type) for f in table.schema})
    times = table.column(column).combine_chunks()
    return (times if column == "_time" else times.field("end")).cast(pa.int64())


def too_old(times: pa.Array, limit_us: int) -> pa.Array:
    """Which rows of these times go."""
    return pc.fill_null(pc.less(times, limit_us), False)


def hashable(value: Any) -> Any:
    """A key value that a dict takes: structs and lists become tuples, and NaN is one value."""
    if isinstance(value, dict):
        return tuple((name, hashable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(hashable(item) for item in value)
    return math.nan if isinstance(value, float) and value != value else value


def _counted(kind: pa.DataType) -> pa.DataType:
    """A type whose moments and days are numbers, as Arrow holds them: Python's end with the year 9999."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _counted(field.type)) for field in kind])
    return pa.list_(_counted(kind.value_type)) if pa.types.is_list(kind) else kind


class Expiry:
    """The rows that are in a view now, by time: what has become too old at each commit."""

    def __init__(self, key: Sequence[str], keep_us: int) -> None:
        self.key = list(key)
        self.keep_us = keep_us
        self._live: dict[Key, tuple[int, dict[str, Any]]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._count = 0

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Learn what the changelog holds."""
        for batch in batches:
            self._note(pa.Table.from_batches([batch]))

    def _note(self, changes: pa.Table) -> None:
        keys = self._keys(changes)
        for values, op, time in zip(keys, changes[OP].to_pylist(), row_times(changes).to_pylist(), strict=True):
            key = tuple(hashable(v) for v in values.values())
            if op == DELETE or time is None:
                self._live.pop(key, None)
            elif self._live.get(key, (None,))[0] != time:
                self._live[key] = (time, values)
                self._count += 1
                heapq.heappush(self._heap, (time, self._count, key))

    def _keys(self, changes: pa.Table) -> list[dict[str, Any]]:
        keys = changes.select(self.key)
        rows: list[dict[str, Any]] = keys.cast(pa.schema([(f.name, _counted(f.type)) for f in keys.schema])).to_pylist()
        return rows

    def apply(self, changes: pa.Table, max_us: int | None) -> pa.Table:
        """The changes, with those turned into deletes, or added as deletes, that are too old at `max_us`."""
        self._note(changes)
        if max_us is None:
            return changes
        limit = max_us - self.keep_us
        gone: dict[Key, dict[str, Any]] = {}
        while self._heap and self._heap[0][0] < limit:
            time, _, key = heapq.heappop(self._heap)
            if key in self._live and self._live[key][0] == time:
                gone[key] = self._live.pop(key)[1]
        return self._with_deletes(changes, gone) if gone else changes

    def _with_deletes(self, changes: pa.Table, gone: dict[Key, dict[str, Any]]) -> pa.Table:
        rows = self._keys(changes)
        stays = [tuple(hashable(v) for v in row.values()) not in gone for row in rows]
        kept = changes.filter(pa.array(stays, pa.bool_()))
        deletes = pa.Table.from_pylist([{**row, OP: DELETE} for row in gone.values()], schema=changes.schema)
        return pa.concat_tables([kept, deletes])
