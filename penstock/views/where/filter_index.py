"""Stored filters, passing rows: finds the few among thousands of filters that a change can matter to.

Each filter is filed under one of its needs (`needs`): equal values and elements of arrays in hash maps, ranges in
`intervals`. A row is looked up by each expression that some filter is filed under, and that expression is computed
once for all of them.

1. A filter that the index does not find for a row does not let it pass: `touched` leaves out only what cannot matter.
   One that it finds is still tested in full, on the row before and the row after.
2. Of several needs the one with the fewest others under it is chosen: a thousand filters for one country, each for
   another user, are filed by user.
3. A filter without a need is in `everywhere`: it has to be tested on every change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from penstock.change import Change, Row
from penstock.views.where.filter import Where
from penstock.views.where.intervals import Cell, Intervals
from penstock.views.where.needs import Entry, Holds, Is, Need, Within, rank

T = TypeVar("T", bound=Hashable)


class FilterIndex(Generic[T]):
    """Whose filters, over the columns of one view, a change can matter to.

    >>> from penstock.change import Column
    >>> from penstock.views.where.filter import compile_where
    >>> index = FilterIndex[str]()
    >>> columns = [Column("city", "string"), Column("rsvps", "int")]
    >>> for city in ("Oslo", "Bergen"):
    ...     index.add(city, [compile_where("city = :city AND rsvps > 2", columns, params={"city": city})])
    >>> index.touched([Change(("a",), ("Oslo", 1), ("Rome", 4))])
    {'Oslo': (Change(key=('a',), before=('Oslo', 1), after=('Rome', 4)),)}
    """

    def __init__(self, errors: list[int] | None = None) -> None:
        """`errors` counts rows by which nothing could be looked up, because a value is not of its column's type."""
        self.everywhere: dict[T, None] = {}
        self._errors = [0] if errors is None else errors
        self._lookups: dict[tuple[str, str], _Lookup[T]] = {}
        self._reading: tuple[_Lookup[T], ...] = ()
        self._filed: dict[T, list[tuple[_Lookup[T], Any]]] = {}

    def __len__(self) -> int:
        return len(self._filed)

    def items(self) -> list[T]:
        return list(self._filed)

    def add(self, item: T, filters: Sequence[Where]) -> None:
        """File an item whose rows pass all of these filters; without any it is told of every change."""
        needs = sorted(((need, where) for where in filters for need in where.needs), key=lambda pair: rank(pair[0]))
        self._filed[item] = []
        if not needs:
            self.everywhere[item] = None
            return
        best = [pair for pair in needs if rank(pair[0])[0] == rank(needs[0][0])[0]]
        need, where = min(best, key=lambda pair: self._crowd(pair[0]))
        for entry in need:
            lookup = self._lookup(entry, where)
            self._filed[item].append((lookup, lookup.add(entry, item)))
        self._reading = tuple(self._lookups.values())

    def remove(self, item: T) -> None:
        """Does nothing for an item that is not there."""
        for lookup, place in self._filed.pop(item, ()):
            lookup.remove(place, item)
            if not lookup.size:
                del self._lookups[lookup.name]
        self.everywhere.pop(item, None)
        self._reading = tuple(self._lookups.values())

    def touched(
        self, changes: Iterable[Change], by_item: dict[T, Sequence[Change]] | None = None
    ) -> dict[T, Sequence[Change]]:
        """The changes that can matter to each item, in order, added to `by_item`. Those of `everywhere` are left out.

        Items to which one change alone matters share its sequence.
        """
        by_item = {} if by_item is None else by_item
        for change in changes:
            alone = (change,)
            for item in self._hits(change):
                earlier = by_item.setdefault(item, alone)
                if earlier[-1] is change:
                    continue
                if isinstance(earlier, list):
                    earlier.append(change)
                else:
                    by_item[item] = [*earlier, change]
        return by_item

    def _hits(self, change: Change) -> Iterable[T]:
        hits: list[T] = []
        for lookup in self._reading:
            try:
                lookup.find(change.before, change.after, hits)
            except Exception:
                # A filter that meets such a value raises too, and so does not pass.
                self._errors[0] += 1
        return hits

    def _crowd(self, need: Need) -> int:
        lookups = ((self._lookups.get(entry.on.name), entry) for entry in need)
        return sum(lookup.crowd(entry) for lookup, entry in lookups if lookup is not None)

    def _lookup(self, entry: Entry, where: Where) -> _Lookup[T]:
        name = entry.on.name
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = _Lookup(name, where.reader(entry.on))
        return lookup


class _Lookup(Generic[T]):
    """Everything that is filed under one expression."""

    def __init__(self, name: tuple[str, str], read: Callable[[Row], Any]) -> None:
        self.name = name
        self.size = 0
        self._read = read
        self._equal: dict[Any, dict[T, None]] = {}
        self._elements: dict[Any, dict[T, None]] = {}
        self._nulls: dict[Any, dict[T, None]] = {}
        self._ranges: Intervals[T] = Intervals()
        self._ranged = 0

    def add(self, entry: Entry, item: T) -> Any:
        """Returns what `remove` needs."""
        self.size += 1
        if isinstance(entry, Within):
            self._ranged += 1
            return self._ranges.add(entry.low, entry.high, item)
        self._buckets(entry).setdefault(entry.value, {})[item] = None
        return entry

    def remove(self, place: Any, item: T) -> None:
        self.size -= 1
        if isinstance(place, Cell):
            self._ranged -= 1
            self._ranges.remove(place)
            return
        buckets = self._buckets(place)
        bucket = buckets.get(place.value, {})
        bucket.pop(item, None)
        if not bucket:
            buckets.pop(place.value, None)

    def crowd(self, entry: Entry) -> int:
        if isinstance(entry, Within):
            return self._ranged
        return len(self._buckets(entry).get(entry.value, ()))

    def find(self, before: Row | None, after: Row | None, hits: list[T]) -> None:
        """Add the items that the row before or the row after leads to; some may come twice."""
        new = None if after is None else self._read(after)
        if after is not None:
            self._find(new, hits)
        if before is not None:
            old = self._read(before)
            if after is None or old is not new:
                self._find(old, hits)

    def _find(self, value: Any, hits: list[T]) -> None:
        if value is None:
            hits += self._nulls.get(None, ())
            return
        if self._equal and (equal := self._equal.get(value)):
            hits += equal
        if self._elements:
            for element in value:
                hits += self._elements.get(element, ())
        if self._ranged:
            hits += self._ranges.at(value)

    def _buckets(self, entry: Is | Holds) -> dict[Any, dict[T, None]]:
        if isinstance(entry, Holds):
            return self._elements
        return self._nulls if entry.value is None else self._equal
