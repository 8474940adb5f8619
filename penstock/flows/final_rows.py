"""`final=True`: a view's rows say whether their window can still change, by one rule that `verify` applies too.

A row is final when its window ends at or before what the view is complete to; with `correct=`, that much earlier.
Spark says nothing when it lets a window go. So the rows of open windows are held here, by their end, and each is
published once more when it has closed, in the commit that says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import DELETE, OP, UPSERT
from penstock.flows.keep import hashable, row_times

IS_FINAL = "is_final"
"""The column that such a view has beside those of its function."""

Key = tuple[Any, ...]


def judged(rows: pa.Table, closed_us: int | None) -> pa.Table:
    """The rows, each with whether its window ends at or before this."""
    if closed_us is None:
        final: Any = pa.array([False] * rows.num_rows, pa.bool_())
    else:
        final = pc.fill_null(pc.less_equal(row_times(rows), closed_us), False)
    place = rows.schema.get_field_index(IS_FINAL)
    return rows.set_column(place, pa.field(IS_FINAL, pa.bool_()), final)


class OpenRows:
    """The rows of a view that are not final."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = list(key)
        self._open: dict[Key, tuple[int, dict[str, Any]]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._count = 0

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Learn what the changelog holds."""
        for batch in batches:
            self._note(pa.Table.from_batches([batch]))

    def apply(self, changes: pa.Table, closed_us: int | None) -> pa.Table:
        """The changes, judged, and the rows besides that have become final: each once."""
        changes = judged(changes, closed_us)
        self._note(changes)
        closed = list(self._closed(closed_us)) if closed_us is not None else []
        if not closed:
            return changes
        return pa.concat_tables([changes, pa.Table.from_pylist(closed, schema=changes.schema)])

    def _note(self, changes: pa.Table) -> None:
        for row, end_us in zip(changes.to_pylist(), row_times(changes).to_pylist(), strict=True):
            key = tuple(hashable(row[name]) for name in self._key)
            if row[OP] == DELETE or row[IS_FINAL] or end_us is None:
                self._open.pop(key, None)
            else:
                if key not in self._open or self._open[key][0] != end_us:
                    self._count += 1
                    heapq.heappush(self._heap, (end_us, self._count, key))
                self._open[key] = (end_us, row)

    def _closed(self, closed_us: int) -> Iterable[dict[str, Any]]:
        while self._heap and self._heap[0][0] <= closed_us:
            end_us, _, key = heapq.heappop(self._heap)
            if self._open.get(key, (None,))[0] == end_us:
                yield self._open.pop(key)[1] | {IS_FINAL: True, OP: UPSERT}
