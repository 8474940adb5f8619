"""Holds the current rows of a view by key in the edge's memory, and lets a batch become visible all at once.

1. A batch is applied between two steps of the loop: nobody ever sees half of it.
2. Batches are applied in the order of the changelog, each once; the position counts them.
3. A new build replaces the rows, position and history together.
4. What readers are given (`captured`) is never changed afterwards.
5. Nothing here grows without bound: above `Limits.view_bytes` the rows are let go and readers get an error.

A `View` belongs to the edge's loop. Only `Content.prepare` and `changed_copy` are also called in the thread that
follows the changelog, while no batch is being applied.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.change import Change, Column, Key, Row
from penstock.config import Limits
from penstock.declaration import Shown
from penstock.errors import NotReadyError, OverBudgetError, PenstockError
from penstock.log.builds import BatchMeta
from penstock.position import Frontier, Position
from penstock.views.history import Batch, History
from penstock.views.order_index import Orders
from penstock.views.read_query import Query

SWAP_CHANGES = 20_000
"""Above this a batch is applied to a copy in the thread and swapped in: on the loop it would take over 2 ms."""
_COPY_ROWS = 10_000
"""Rows copied at once, so that the thread lets the loop run in between: about 1 ms."""


class Captured(Mapping[Key, Row]):
    """The rows of a view at one offset, which never change: for whoever reads them across several steps of the loop."""

    def __init__(self, offset: int, keys: list[Key], rows: list[Row]) -> None:
        self.offset = offset
        self._keys = keys
        self._rows = rows

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __getitem__(self, key: Key) -> Row:
        return self._rows[self._keys.index(key)]

    def items(self) -> Any:
        return zip(self._keys, self._rows, strict=True)

    def values(self) -> Any:
        return self._rows


class Content:
    """The rows of one build of a view, with what is needed to follow and to resume it."""

    def __init__(
        self,
        name: str,
        epoch: str,
        columns: tuple[Column, ...],
        key: tuple[str, ...],
        proof: str | None,
        offset: int,
        limits: Limits,
        shown: str | None = None,
        how: str | None = None,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.shown = shown or epoch
        """The epoch in the positions that readers get."""
        self.columns = columns
        self.key = key
        """Of this build: the app file may name another one already."""
        self.names = tuple(column.name for column in columns)
        self.proof = proof
        self.how = how
        """How this build is kept current; None: it is not known."""
        self.offset = offset
        self.rows: dict[Key, Row] = {}
        self.meta: BatchMeta | None = None
        self.history = History(offset, limits)
        self.queries: dict[str, Query] = {}
        """Queries by the text of what readers asked, for those who ask the same; whoever adds to it bounds it."""
        self.orders = Orders(self)
        self._limits = limits
        self._row_bytes = 0.0
        self._sampled_rows = -1
        self._captured: Captured | None = None

    @property
    def position(self) -> Position:
        return Position("view", self.name, self.shown, (self.offset,))

    def at(self, offset: int) -> str:
        """The token of an offset of this build."""
        return Position("view", self.name, self.shown, (offset,)).token()

    def meta_at(self, offset: int) -> BatchMeta | None:
        """What was absorbed when the build was at an offset; None: that is not kept any more."""
        return self.meta if offset == self.offset else self.history.meta_at(offset)

    @property
    def bytes(self) -> int:
        """An estimate of what the rows take; sampled again when their number has changed by a tenth."""
        if abs(len(self.rows) - self._sampled_rows) * 10 > max(self._sampled_rows, 0):
            self._row_bytes = row_bytes(self.rows.values())
            self._sampled_rows = len(self.rows)
        return rows_bytes(self.rows, self._row_bytes)

    def captured(self) -> Captured:
        """All rows as they are at `offset`; the same object for everyone until the next batch."""
        if self._captured is None:
            self._captured = Captured(self.offset, list(self.rows), list(self.rows.values()))
        return self._captured

    def top(self, query: Query, count: int) -> Mapping[Key, Row]:
        """Rows among which are the first `count` of a query, as they are at `offset`: few where an index has them."""
        part = self.orders.part(query, count)
        return self.captured() if part is None else part

    def begin(self, end: int, ops: Mapping[Key, Row | None], meta: BatchMeta | None) -> None:
        """Start from these rows, as the first thing that happens to this content; nobody can resume from below."""
        self.rows = {key: row for key, row in ops.items() if row is not None}
        self.offset, self.meta = end, meta
        self.history = History(end, self._limits)

    def prepare(self, end: int, ops: Mapping[Key, Row | None], meta: BatchMeta | None, written_us: int) -> Batch:
        """A commit's effect on the rows as they are now, without changing them."""
        changes = [Change(key, before, after) for key, after in ops.items() if (before := self.rows.get(key)) != after]
        images = len(changes) + sum(1 for change in changes if change.before is not None)
        size = int(images * (self._row_bytes or row_bytes(c.after for c in changes if c.after)) + 200)
        return Batch(self.offset, end, changes, meta, written_us, size)

    def changed_copy(self, changes: Sequence[Change]) -> dict[Key, Row]:
        """The rows as they will be, built in slices so that the thread that calls it lets the loop run."""
        copy: dict[Key, Row] = {}
        items = iter(self.rows.items())
        while part := dict(islice(items, _COPY_ROWS)):
            copy.update(part)
        _change(copy, changes)
        return copy

    def apply(self, batch: Batch, rows: dict[Key, Row] | None = None) -> None:
        """Make a batch visible. It must have been prepared against the rows as they are."""
        self.orders.finish()
        if rows is None:
            _change(self.rows, batch.changes)
        else:
            self.rows = rows
        self._captured = None
        self.offset = batch.end
        self.meta = batch.meta or self.meta
        self.history.add(batch)
        self.orders.follow(batch)


def _change(rows: dict[Key, Row], changes: Sequence[Change]) -> None:
    for change in changes:
        if change.after is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.after


class View:
    """A view as the edge serves it: loading, then one build's content after another."""

    def __init__(self, definition: Shown, limits: Limits) -> None:
        self.definition = definition
        self.name = definition.name
        self.limits = limits
        self.content: Content | None = None
        self.problem: PenstockError | None = None
        self.frontier: Frontier = {}
        self.filter_errors = [0]
        """How often a reader's `where` could not be evaluated on a row, which then was not given."""
        self._listeners: set[Callable[[], None]] = set()

    def listen(self, woken: Callable[[], None]) -> Callable[[], None]:
        """Call `woken` whenever content, position or frontier changed; returns what ends it."""
        self._listeners.add(woken)
        return lambda: self._listeners.discard(woken)

    def replace(self, content: Content, frontier: Frontier) -> None:
        """Serve another build."""
        self.content, self.frontier, self.problem = content, frontier, None
        self.wake()

    def apply(self, batch: Batch, rows: dict[Key, Row] | None, frontier: Frontier) -> None:
        """Make a batch and its frontier visible together. Who calls it wakes those who wait, in the same turn."""
        if self.content is not None:
            self.content.apply(batch, rows)
            self.frontier = frontier

    def absorb(self, frontier: Frontier) -> None:
        """The frontier moved without a change: an earlier flow took in events that it left out."""
        if frontier != self.frontier:
            self.frontier = frontier
            self.wake()

    def give_up(self) -> None:
        """Let the rows go because they take more than the budget."""
        self.content, self.frontier = None, {}
        self.problem = over_budget(self.name, self.limits.view_bytes)
        self.wake()

    def wake(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    async def until(self, reached: Callable[[], bool], timeout_s: float | None) -> bool:
        """Whether `reached` became true in time; it is asked again after every change of the view."""
        if reached():
            return True
        woken = asyncio.Event()
        stop = self.listen(woken.set)
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    woken.clear()
                    await woken.wait()
            return True
        except TimeoutError:
            return False
        finally:
            stop()

    async def loaded(self, timeout_s: float | None = None) -> Content:
        """The content, once there is any. Raises what keeps the view from being served."""
        await self.until(lambda: self.content is not None or self.problem is not None, timeout_s)
        if self.problem is not None:
            raise self.problem
        if self.content is None:
            raise NotReadyError(
                f"the view '{self.name}' is still loading",
                detail="its flow has not started a build, or the build is being read from the log",
                hint="ask again, or look at `penstock status` for the state of its flow",
            )
        return self.content


_SAMPLE = 200
_ENTRY_BYTES = 130
"""A dict entry, its share of free slots, and the key's tuple."""


def over_budget(view: str, budget_bytes: int) -> OverBudgetError:
    return OverBudgetError(
        f"the view '{view}' outgrew its memory budget",
        detail=f"its rows need more than {budget_bytes} bytes",
        hint="narrow it with where= or keep=, or aggregate further, and start again",
    )


def row_bytes(rows: Iterable[Row]) -> float:
    """The average size of a row, by a sample from the front."""
    sizes = [_deep(row) for row in islice(rows, _SAMPLE)]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _deep(value: Any) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(_deep(item) for item in value.values())
    if isinstance(value, tuple | list):
        return size + sum(_deep(item) for item in value)
    return size


def rows_bytes(rows: Mapping[Key, Row], average: float) -> int:
    """What all rows take, given the average size of one."""
    return int(len(rows) * (average + _ENTRY_BYTES))
