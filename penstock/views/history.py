"""Keeps the newest batches of a view with their before-images, so that a subscriber can resume where it stopped.

1. It is contiguous: every batch from `start` to the view's offset is there, in order.
2. It keeps at least the newest `history_us` and at least `history_bytes`, and never more than `history_bytes_most`.
3. What a subscriber at an older offset missed is not guessed: `after` says None, and the subscriber is reset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.change import Change, Key, Row
from penstock.config import Limits
from penstock.log.builds import BatchMeta


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit of a changelog did to a view: visible all or none."""

    start: int
    """The view's offset before it."""
    end: int
    """The view's offset behind it."""
    changes: Sequence[Change]
    meta: BatchMeta | None
    written_us: int
    bytes: int
    """An estimate of what keeping it costs."""


class History:
    """The newest batches of one build; called on the edge's loop, or by the loader before the build is served."""

    def __init__(self, start: int, limits: Limits) -> None:
        self.start = start
        self.bytes = 0
        self._limits = limits
        self._batches: list[Batch] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def end(self) -> int:
        return self._ends[-1] if len(self) else self.start

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._ends.append(batch.end)
        self.bytes += batch.bytes
        self._trim(batch.written_us)

    def after(self, offset: int) -> list[Batch] | None:
        """The batches behind `offset`, or None when some of them are gone or no batch begins there."""
        if not self.start <= offset <= self.end:
            return None
        batches = self._batches[bisect_right(self._ends, offset) :]
        return batches if not batches or batches[0].start == offset else None

    def next(self, offset: int) -> Batch | None:
        """The batch that follows `offset`, if there is one. `offset` must not be below `start`."""
        at = bisect_right(self._ends, offset)
        return self._batches[at] if at < len(self._batches) else None

    def meta_at(self, end: int) -> BatchMeta | None:
        """Of the batch that ended there."""
        at = bisect_left(self._ends, end)
        return self._batches[at].meta if at < len(self._ends) and self._ends[at] == end else None

    def _trim(self, now_us: int) -> None:
        gone = 0
        while gone < len(self) and self._may_go(self._batches[gone], now_us):
            self.start = self._batches[gone].end
            self.bytes -= self._batches[gone].bytes
            gone += 1
        del self._batches[:gone], self._ends[:gone]

    def _may_go(self, oldest: Batch, now_us: int) -> bool:
        if self.bytes > self._limits.history_bytes_most:
            return True
        old = now_us - oldest.written_us > self._limits.history_us
        return old and self.bytes - oldest.bytes >= self._limits.history_bytes


def net_changes(batches: Iterable[Batch]) -> list[Change]:
    """One change per key, from before the first batch to behind the last.

    >>> batch = Batch(0, 1, [Change(("a",), None, ("a", 1)), Change(("b",), ("b", 1), None)], None, 0, 0)
    >>> later = Batch(1, 2, [Change(("a",), ("a", 1), None), Change(("b",), None, ("b", 2))], None, 0, 0)
    >>> net_changes([batch, later])
    [Change(key=('b',), before=('b', 1), after=('b', 2))]
    """
    before: dict[Key, Row | None] = {}
    after: dict[Key, Row | None] = {}
    for batch in batches:
        for change in batch.changes:
            before.setdefault(change.key, change.before)
            after[change.key] = change.after
    return [Change(key, before[key], row) for key, row in after.items() if before[key] != row]
