"""Follows the first n rows of a large view without ranking all of it, because ranking a million rows takes 20 seconds.

Only the best rows are ranked: those at or above a *bound*, chosen so that `limit` rows and a reserve lie above it. A
row that crosses the bound is an insert or a removal to the ranked part, so the `QueryState` inside is exact as long as
`limit` rows are left above the bound. When a batch may leave fewer, `apply` says so by `None` and the state must be
built again; with the reserve that is rare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

from penstock.change import Change, Key, Row
from penstock.views.read_query import Delta, Query, QueryState, ascending

RESERVE_ROWS = 2_000
"""Rows ranked beyond the limit: so many may leave before the view is scanned again."""
_GROWTH = 8
"""How far the ranked part may grow before the bound is drawn tighter."""

_SORT_AT = 1_000
"""Candidates gathered before the worst of them are let go."""


class RowItems(Protocol):
    """Rows by key, as far as ranking them needs."""

    def items(self) -> Iterable[tuple[Key, Row]]: ...


def best_rows(query: Query, rows: RowItems, count: int) -> list[tuple[Any, Key, Row]]:
    """The first `count` rows that pass, in order, each with its sort key and key.

    The key is made comparable only for rows that can still be among them: for a large view that is most of the work.
    """
    best: list[tuple[Any, Key, Row]] = []
    worst: tuple[Any, ...] | None = None
    for key, row in rows.items():
        if not query.passes(row):
            continue
        order = tuple([item.of(row) for item in query.order_by])
        if worst is not None and order > worst:
            continue
        best.append(((*order, ascending(key)), key, row))
        if len(best) >= 2 * count + _SORT_AT:
            best.sort(key=itemgetter(0))
            del best[count:]
            worst = best[-1][0][:-1] if best else ()
    best.sort(key=itemgetter(0))
    return best[:count]


class TopState:
    """The visible rows of one query, moved from batch to batch; for a query without limit nothing is kept."""

    def __init__(self, query: Query, rows: RowItems, reserve: int = RESERVE_ROWS) -> None:
        """`rows` are the view's rows at one offset and must not change while this runs; slow for large views."""
        self.query = query
        self._reserve = max(1, reserve)  # a bound needs a row to be drawn at
        self._bound: tuple[Any, ...] | None = None
        """None: every row that passes is ranked."""
        self._ranked: dict[Key, Row] = {}
        self._state = QueryState(query)
        if query.limit is not None:
            self._rank(best_rows(query, rows, query.limit + self._reserve + 1))

    def rows(self) -> list[Row]:
        """The visible rows in order, projected; only with a limit."""
        return self._state.rows()

    def shown(self) -> dict[Key, Row]:
        """The visible rows by key, projected; only with a limit."""
        limit = self.query.limit or 0
        return {key: self.query.project(row) for _, key, row in best_rows(self.query, self._ranked, limit)}

    def apply(self, changes: Sequence[Change]) -> Delta | None:
        """What a subscriber must be told, or None: too few rows may be left, build again."""
        if self.query.limit is None:
            return self._state.apply(changes)
        inside = [change for change in map(self._inside, changes) if change is not None]
        leaving = sum(1 for change in inside if change.after is None)
        if self._bound is not None and len(self._ranked) - leaving < self.query.limit:
            return None
        delta = self._state.apply(inside)
        self._note(inside)
        return delta

    def _inside(self, change: Change) -> Change | None:
        """The change as it looks above the bound."""
        before, after = self._above(change.key, change.before), self._above(change.key, change.after)
        return None if before is None and after is None else Change(change.key, before, after)

    def _above(self, key: Key, row: Row | None) -> Row | None:
        if row is None or not self.query.passes(row):
            return None
        return row if self._bound is None or self.query.sort_key(key, row) <= self._bound else None

    def _note(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.after is None:
                self._ranked.pop(change.key, None)
            else:
                self._ranked[change.key] = change.after
        most = (self.query.limit or 0) + self._reserve
        if len(self._ranked) > most * _GROWTH:
            self._rank(best_rows(self.query, self._ranked, most + 1))

    def _rank(self, best: list[tuple[Any, Key, Row]]) -> None:
        """Keep the best; where there is one more than will be ranked, the last ranked one is the bound."""
        count = (self.query.limit or 0) + self._reserve
        if len(best) > count:
            best = best[:count]
            self._bound = best[-1][0]
        self._ranked = {key: row for _, key, row in best}
        self._state = QueryState.build(self.query, self._ranked)


def delta_between(before: Mapping[Key, Row], after: Mapping[Key, Row]) -> Delta:
    """What a subscriber that shows `before` must be told to show `after`."""
    upserts = [row for key, row in after.items() if key not in before or before[key] != row]
    return upserts, [key for key in before if key not in after]
