"""Keeps a view's first keys in an order that readers ask for, because sorting a million rows for one takes seconds.

A read with a limit, a subscription to the first n rows and its ranking again all take their rows from here. An index is
made when the first reader needs it, since most views are never read by a limit, and then follows every batch.

1. Keys lie in buckets, and every row of a bucket comes before every row of the next. Within a bucket there is no order:
   whoever reads sorts the few rows that it takes.
2. A key is where its row of the view's present offset belongs, once `settle` has returned.
3. Only the first rows are held, an eighth of a large view: a row behind them costs a comparison. When so many have left
   that too few are held, an index is made anew; that is once in as many changes as were held.
4. Keys are the view's own objects and rows are not kept. Nothing is done for a change that leaves the order's values as
   they were.

All of it belongs to the edge's loop, but for `OrderIndex.build`, which gets rows that do not change.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any, Protocol

from penstock.change import Change, Key, Row
from penstock.views.history import Batch, History, net_changes
from penstock.views.read_query import OrderItem, Query, ascending

BUCKET_ROWS = 64
"""Rows of a bucket at most: sorting them takes 0.3 ms."""
_COARSE_ROWS = 256
"""Rows of a bucket that was just built; it is cut up when somebody reads or adds to it."""
_OVERSAMPLED = 4
SLICE_CHANGES = 100
"""Changes that are taken in between two steps of the loop: 1 to 2 ms."""
_LEAST_ROWS = 40_000
"""Rows that an index holds at least."""
_SHARE = 8
"""Of a large view one row in so many is held."""
INDEXES = 4
"""Orders of one view that are kept at once; the one that was not read for longest goes."""
IDLE_US = 600_000_000
"""An index that nobody has read for so long is let go, by the time of the view's batches: 10 minutes."""
PART_ROWS = 10_000
"""Who wants more rows than this reads all of them in a thread: gathering them on the loop would take over 5 ms."""
_PASSED_OVER = 2_000
"""Rows that a filter may leave out before the reader is sent to scan all of them in a thread: about 2 ms."""
_SAMPLE_ROWS = 200
_PASSING = 10
"""An index is made for a filter that one row in so many passes, or more."""

Order = tuple[OrderItem, ...]


class OrderIndex:
    """The keys of a view's first rows in one order."""

    def __init__(self, order: Order, most: int) -> None:
        """About `most` rows are held, and up to twice as many."""
        self.order = order
        self.rows = 0
        """How many are held."""
        self.used_us = 0
        """The time of the view's newest batch when this was last read."""
        self._most = most
        self._end: tuple[Any, ...] | None = None
        """What belongs here or behind is not held. None: all rows are."""
        self._end_values: tuple[Any, ...] = ()
        self._bounds: list[tuple[Any, ...]] = [()]
        """A bucket holds the keys from its bound on, up to the next one's. The empty tuple is below everything."""
        self._buckets: list[list[Key]] = [[]]

    @classmethod
    def build(cls, order: Order, rows: Mapping[Key, Row]) -> OrderIndex:
        """An index of these rows, which must not change meanwhile; 2 to 6 seconds for a million of them."""
        index = cls(order, max(_LEAST_ROWS, len(rows) // _SHARE))
        step = max(1, _COARSE_ROWS // _OVERSAMPLED)
        sample = sorted(index._place(key, row) for key, row in islice(rows.items(), 0, None, step))
        bounds = sample[_OVERSAMPLED::_OVERSAMPLED]
        index._bounds += bounds[: index._most // _COARSE_ROWS]
        if len(index._bounds) <= len(bounds):
            index._end_at(bounds[len(index._bounds) - 1])
        index._buckets += [[] for _ in index._bounds[1:]]
        for key, row in rows.items():
            if (at := index._find(key, row)) is not None:
                index._buckets[at].append(key)
        index.rows = sum(map(len, index._buckets))
        return index

    def holds(self, count: int) -> bool:
        """Whether the first `count` rows are here, or all."""
        return self._end is None or self.rows >= count

    def moves(self, changes: Iterable[Change], rows: Mapping[Key, Row]) -> Iterator[None]:
        """Takes changes in, with a pause after every slice of them. `rows` are as the changes have left them.

        All keys leave their old places before one gets a new place, so that a bucket is cut up only while every key
        in it is where its row of `rows` belongs.
        """
        arrivals: list[tuple[Key, Row]] = []
        for number, change in enumerate(changes, 1):
            if (arrival := self._leave(change)) is not None:
                arrivals.append(arrival)
            if number % SLICE_CHANGES == 0:
                yield
        full: dict[tuple[Any, ...], None] = {}
        for number, (key, row) in enumerate(arrivals, 1):
            if (at := self._find(key, row)) is not None:
                self._buckets[at].append(key)
                self.rows += 1
                if len(self._buckets[at]) > BUCKET_ROWS:
                    full[self._bounds[at]] = None
            if number % SLICE_CHANGES == 0:
                yield
        for bound in full:
            self._cut_up(bisect_left(self._bounds, bound), rows)
            yield
        self._trim()

    def part(self, passes: Callable[[Row], bool], count: int, rows: Mapping[Key, Row]) -> dict[Key, Row] | None:
        """Rows among which are the first `count` that pass, in no order; None when a filter leaves too many out."""
        found: dict[Key, Row] = {}
        left, at = count + _PASSED_OVER, 0
        while at < len(self._buckets) and len(found) < count:
            if len(self._buckets[at]) > BUCKET_ROWS:
                self._cut_up(at, rows)
            for key in self._buckets[at]:
                row = rows[key]
                if passes(row):
                    found[key] = row
            left -= len(self._buckets[at])
            if left < 0 and len(found) < count:
                return None
            at += 1
        return found if len(found) >= count or self._end is None else None

    def _values(self, row: Row) -> tuple[Any, ...]:
        return tuple([item.of(row) for item in self.order])

    def _place(self, key: Key, row: Row) -> tuple[Any, ...]:
        return (*self._values(row), ascending(key))

    def _find(self, key: Key, row: Row) -> int | None:
        """The bucket that a row belongs to; None where it belongs behind all that is held. Its key is looked at only
        where a bound has the same values: to make it comparable is most of the work."""
        values = self._values(row)
        if self._end is not None and (
            values > self._end_values or (values == self._end_values and (*values, ascending(key)) >= self._end)
        ):
            return None
        at = bisect_left(self._bounds, values, 1)
        if at < len(self._bounds) and self._bounds[at][:-1] == values:
            at = bisect_right(self._bounds, (*values, ascending(key)), at)
        return at - 1

    def _leave(self, change: Change) -> tuple[Key, Row] | None:
        """Takes a key out of its place; returns it with its new row when that belongs elsewhere."""
        before, after, key = change.before, change.after, change.key
        if before is None:
            return None if after is None else (key, after)
        if after is not None and self._values(before) == self._values(after):
            return None
        if (at := self._find(key, before)) is not None:
            bucket = self._buckets[at]
            key = bucket.pop(bucket.index(key))  # the object that the view holds too
            self.rows -= 1
            if not bucket and len(self._buckets) > 1:
                del self._buckets[at], self._bounds[max(at, 1)]
        return None if after is None else (key, after)

    def _trim(self) -> None:
        """Let the last rows go when twice as many are held as should be."""
        if self.rows > 2 * self._most:
            while self.rows > self._most and len(self._buckets) > 1:
                self.rows -= len(self._buckets.pop())
                self._end_at(self._bounds.pop())

    def _end_at(self, place: tuple[Any, ...]) -> None:
        self._end, self._end_values = place, place[:-1]

    def _cut_up(self, at: int, rows: Mapping[Key, Row]) -> None:
        """Divide a bucket into some that are half full or a little more."""
        places = sorted(((self._place(key, rows[key]), key) for key in self._buckets[at]), key=itemgetter(0))
        parts = max(1, len(places) * 3 // (2 * BUCKET_ROWS))
        starts = [len(places) * part // parts for part in range(parts + 1)]
        keys = [key for _, key in places]
        self._buckets[at : at + 1] = [keys[a:b] for a, b in pairwise(starts)]
        self._bounds[at + 1 : at + 1] = [places[start][0] for start in starts[1:-1]]


class IndexedRows(Protocol):
    """The rows of one build of a view, as far as indexes need them."""

    rows: dict[Key, Row]
    history: History

    def captured(self) -> Mapping[Key, Row]: ...


class Orders:
    """The indexes of one build of a view."""

    def __init__(self, content: IndexedRows) -> None:
        self._content = content
        self._indexes: dict[Order, OrderIndex] = {}
        """The one that was read last is last."""
        self._builds: dict[Order, asyncio.Future[None]] = {}
        self._pending: list[Iterator[None]] = []
        """What indexes have to take in."""
        self._now_us = 0

    def __len__(self) -> int:
        return len(self._indexes)

    def finish(self) -> None:
        """Take in whatever is pending. Called before rows change."""
        while self._pending:
            for _ in self._pending.pop(0):
                pass

    def follow(self, batch: Batch) -> None:
        """A batch was just applied. A small one is taken in at once."""
        self._now_us = batch.written_us
        for order, index in list(self._indexes.items()):
            if self._now_us - index.used_us > IDLE_US:
                del self._indexes[order]
            else:
                self._pending.append(index.moves(batch.changes, self._content.rows))
        if len(batch.changes) <= SLICE_CHANGES:
            self.finish()

    async def settle(self) -> None:
        """Take in what is pending, with the loop given back in between."""
        while self._pending:
            pending = self._pending[0]
            if next(pending, pending) is not pending:
                await asyncio.sleep(0)
            elif self._pending and self._pending[0] is pending:
                self._pending.pop(0)

    async def ready(self, query: Query, count: int) -> None:
        """Make the index that the first `count` rows of a query need unless it is there, and bring it up to date."""
        order = query.order_by
        index = self._indexes.get(order)
        if not index.holds(count) if index else self._would_serve(query):
            if order not in self._builds:
                self._builds[order] = asyncio.ensure_future(self._build(order))
                self._builds[order].add_done_callback(lambda _: self._builds.pop(order))
            await asyncio.shield(self._builds[order])
        await self.settle()

    def _would_serve(self, query: Query) -> bool:
        """Whether a walk along an index meets rows that pass often enough, by a sample of the view's rows."""
        if not query.filters:
            return True
        sample = list(islice(self._content.rows.values(), _SAMPLE_ROWS))
        return sum(map(query.passes, sample)) * _PASSING >= len(sample)

    async def _build(self, order: Order) -> None:
        start, captured = self._content.history.end, self._content.captured()
        index = await asyncio.to_thread(OrderIndex.build, order, captured)
        batches = self._content.history.after(start)
        if batches is None:
            return  # more has happened than is kept: the next reader tries again
        index.used_us = self._now_us
        self._indexes.pop(order, None)
        self._indexes[order] = index
        while len(self._indexes) > INDEXES:
            del self._indexes[next(iter(self._indexes))]
        self._pending.append(index.moves(net_changes(batches), self._content.rows))

    def part(self, query: Query, count: int) -> dict[Key, Row] | None:
        """Rows among which are the first `count` of a query, in no order; None where only a scan finds them."""
        index = self._indexes.pop(query.order_by, None)
        if index is None:
            return None
        self._indexes[query.order_by] = index
        self.finish()
        part = index.part(query.passes, count, self._content.rows) if count <= PART_ROWS else None
        if part is not None:
            index.used_us = self._now_us
        return part
