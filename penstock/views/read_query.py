"""Readers of one view want different rows, columns and orders: a query and its incremental result.

A `Query` is where, select, order_by and limit over a view; equal queries are equal values, so readers can
share a result. A `QueryState` follows one query through the view's batches.

1. The visible rows are the first `limit` of those that pass `where`, ordered by `order_by` and then by key: a
   total order, so that every edge shows the same rows.
2. After each batch: upserts are the rows that became visible or whose selected values changed, deletes the
   keys that were visible and no longer are. Applied to the rows shown before, they give the rows shown after.
3. Without a limit nothing is kept. With one, each change costs O(log n) of the rows that pass `where`, and a
   batch never costs the size of the limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from heapq import nsmallest
from operator import itemgetter
from typing import Any, Final

from sortedcontainers import SortedKeyList

from penstock.change import Change, Column, Key, Row
from penstock.errors import BadQueryError
from penstock.views.unpack import frozen
from penstock.views.where.compiler import field_of, resolve
from penstock.views.where.filter import Where, compile_where
from penstock.views.where.sql_types import SqlType, parse_type

Names = str | Sequence[str] | None


class Default(Enum):
    """The mark of an argument that was left out, where None means something else."""

    DEFAULT = "default"


DEFAULT: Final = Default.DEFAULT

Limit = int | str | Default | None


def key_of(row: Row, key_indexes: Sequence[int]) -> Key:
    """The hashable key of a row: an object becomes a tuple of its values.

    >>> key_of(({"start": 1, "end": 2}, "jazz", 7), [0, 1])
    ((1, 2), 'jazz')
    """
    return tuple(frozen(row[index]) for index in key_indexes)


# The order of values

_NULL: Final = (0,)
_NAN: Final = (2,)
_LAST: Final = (9,)


_RANKS: Final = {int: 1, bool: 1, str: 3}
"""Of the types that most values have, and that need no closer look."""
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)


def ascending(value: Any) -> tuple[Any, ...]:
    """A value as a tuple that compares with that of any other: NULL first, NaN above every number.

    A struct compares field by field in the order of its dict, which is that of its type in every row.
    """
    rank = _RANKS.get(value.__class__)
    if rank is not None:
        return (rank, value)
    if isinstance(value, datetime):
        return (4, value) if value.tzinfo else (5, value)
    if value is None:
        return _NULL
    if isinstance(value, (float, Decimal)):
        return (1, value) if value == value else _NAN
    if isinstance(value, (date, bytes)):
        return (6, value) if isinstance(value, date) else (7, value)
    parts = value.values() if isinstance(value, dict) else value
    return (8, tuple(map(ascending, parts)))


def descending(value: Any) -> tuple[Any, ...]:
    """The reverse of `ascending`: NaN first, NULL last, and the longer of two arrays before its beginning."""
    if isinstance(value, datetime):  # a time span compares without a call into Python
        return (-4, _EPOCH_UTC - value) if value.tzinfo else (-5, _EPOCH - value)
    rank, *rest = ascending(value)
    if not rest:
        return (-rank,)
    if rank == 1:
        number = rest[0]  # unary minus would round a decimal to 28 digits
        return (-1, number.copy_negate() if isinstance(number, Decimal) else -number)
    if rank == 8:
        parts = value.values() if isinstance(value, dict) else value
        return (-8, (*map(descending, parts), _LAST))
    return (-rank, _Reversed(rest[0]))


@dataclass(frozen=True, slots=True)
class _Reversed:
    value: Any

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)


@dataclass(frozen=True, slots=True)
class OrderItem:
    """One item of `order_by`: the place of its values in a row, and the direction."""

    path: tuple[str, ...]
    index: int
    descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.descending else ''}{'.'.join(self.path)}"

    def of(self, row: Row) -> tuple[Any, ...]:
        value = row[self.index]
        for name in self.path[1:]:
            value = value[name] if value is not None else None
        return descending(value) if self.descending else ascending(value)


# The query

_FLOATS: Final = re.compile(r"\b(float|double)\b")


@dataclass(frozen=True)
class Query:
    """What a reader asked of a view: which rows, which columns, in which order, how many."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    where: Where | None = None
    select: tuple[str, ...] | None = None  # None: all; else in this order, the key's columns among them
    order_by: tuple[OrderItem, ...] = ()
    limit: int | None = None
    rule: tuple[Where, ...] = ()  # what the reader's rights demand of a row; tested before `where`
    passes: Callable[[Row], bool] = field(init=False, compare=False, repr=False)
    project: Callable[[Row], Row] = field(init=False, compare=False, repr=False)
    floats: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """Where a row may hold NaN, which Python finds unequal to itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", _all_of([where.test for where in self.filters]))
        object.__setattr__(self, "project", _projection(self.columns, self.select))
        floats = (index for index, column in enumerate(self.columns) if _FLOATS.search(column.type))
        object.__setattr__(self, "floats", tuple(floats))

    @property
    def filters(self) -> tuple[Where, ...]:
        """A row must pass all of these, in this order."""
        return (*self.rule, *((self.where,) if self.where else ()))

    @property
    def output(self) -> tuple[Column, ...]:
        """The columns of a projected row, in its order."""
        by_name = {column.name: column for column in self.columns}
        return self.columns if self.select is None else tuple(by_name[name] for name in self.select)

    @property
    def reads(self) -> frozenset[str]:
        """Every column that the answer depends on or shows: all of them need the reader's rights."""
        filtered = self.where.columns if self.where else frozenset()
        ordered = {item.path[0] for item in self.order_by}
        return filtered | ordered | {column.name for column in self.output} | set(self.key)

    def sort_key(self, key: Key, row: Row) -> tuple[Any, ...]:
        """A value that sorts as `order_by` says, and rows that are equal there by their key."""
        return (*(item.of(row) for item in self.order_by), ascending(key))


def _always(row: Row) -> bool:
    return True


def _all_of(tests: Sequence[Callable[[Row], bool]]) -> Callable[[Row], bool]:
    """A row passes when it passes each test; the tests behind one that it fails do not see it."""
    if not tests:
        return _always
    if len(tests) == 1:
        return tests[0]
    first, rest = tests[0], _all_of(tests[1:])
    return lambda row: first(row) and rest(row)


def _projection(columns: Sequence[Column], select: Sequence[str] | None) -> Callable[[Row], Row]:
    if select is None:
        return lambda row: row
    names = [column.name for column in columns]
    indexes = [names.index(name) for name in select]
    if len(indexes) == 1:
        return lambda row: (row[indexes[0]],)
    return itemgetter(*indexes)


# Reading a query


def parse_query(
    columns: Sequence[Column],
    key: Sequence[str],
    *,
    where: str | None = None,
    params: Mapping[str, Any] | None = None,
    select: Names = None,
    order_by: Names = None,
    limit: Limit = DEFAULT,
    defaults: tuple[Names, Limit] = (None, None),
    errors: list[int] | None = None,
) -> Query:
    """Reads a query as it arrives over the wire; what it cannot read raises `BadQueryError`.

    `select` None is all columns, `order_by` None the view's default, `limit` None (or "null") all rows.
    `errors` counts rows on which `where` cannot be evaluated; they do not pass. `params` are the values of the
    parameters in `where`.

    >>> columns = [Column("topic", "string"), Column("rsvps", "bigint")]
    >>> query = parse_query(columns, ["topic"], where="rsvps > 1", order_by="-rsvps", limit="10")
    >>> evaluate(query, {("jazz",): ("jazz", 3), ("golf",): ("golf", 1), ("go",): ("go", 5)})
    [('go', 5), ('jazz', 3)]
    """
    return Query(
        tuple(columns),
        tuple(key),
        compile_where(where, columns, errors, params) if where is not None else None,
        _parse_select(select, columns, key),
        _parse_order(defaults[0] if order_by is None else order_by, columns),
        _parse_limit(defaults[1] if limit is DEFAULT else limit),
    )


def _items(names: Names) -> list[str]:
    parts = names.split(",") if isinstance(names, str) else list(names or ())
    for part in parts:
        if not isinstance(part, str):
            raise BadQueryError(f"{part!r} is not the name of a column.", hint="Give a list of names.")
    return [part.strip() for part in parts if part.strip()]


def _parse_select(select: Names, columns: Sequence[Column], key: Sequence[str]) -> tuple[str, ...] | None:
    if select is None or select in ("*", ["*"]):
        return None
    names = [column.name for column in columns]
    chosen = [names[resolve(name, names)] for name in _items(select)]
    if not chosen:
        raise BadQueryError("'select' names no column.", hint="Leave it out to get all columns.")
    missing = [name for name in key if name not in chosen]
    return tuple(dict.fromkeys((*missing, *chosen)))


def _parse_order(order_by: Names, columns: Sequence[Column]) -> tuple[OrderItem, ...]:
    return tuple(_parse_item(item, columns) for item in _items(order_by))


def _parse_item(item: str, columns: Sequence[Column]) -> OrderItem:
    names = [column.name for column in columns]
    name = item.removeprefix("-").strip()
    parts = [name] if name in names else name.split(".")
    index = resolve(parts[0], names)
    path, kind = [names[index]], parse_type(columns[index].type)
    for part in parts[1:]:
        field_name = field_of(kind, part)
        if field_name is None:
            raise BadQueryError(
                f"'order_by' has '{item}', but {kind} has no field '{part}'.",
                hint=f"Fields: {', '.join(kind.names) or 'none'}.",
            )
        path.append(field_name)
        kind = kind.args[kind.names.index(field_name)]
    if _holds_map(kind):
        raise BadQueryError(f"Rows cannot be ordered by '{name}': a map has no order.")
    return OrderItem(tuple(path), index, item.startswith("-"))


def _holds_map(kind: SqlType) -> bool:
    return kind.kind == "map" or any(_holds_map(inner) for inner in kind.args)


def _parse_limit(limit: Limit) -> int | None:
    if limit is None or limit is DEFAULT or limit == "null":
        return None
    if isinstance(limit, str) and limit.isascii() and limit.isdecimal() and len(limit) <= 18:
        return int(limit)
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return limit
    raise BadQueryError(
        f"'limit' must be a whole number from 0, not {str(limit)[:50]!r}.",
        hint="limit=10 gives the first ten rows, limit=null all of them.",
    )


# The answer


def evaluate(query: Query, rows: Mapping[Key, Row]) -> list[Row]:
    """The answer to a query over these rows: filtered, ordered, limited, projected."""
    passing = ((query.sort_key(key, row), row) for key, row in rows.items() if query.passes(row))
    first = itemgetter(0)
    ordered = sorted(passing, key=first) if query.limit is None else nsmallest(query.limit, passing, key=first)
    return [query.project(row) for _, row in ordered]


Delta = tuple[list[Row], list[Key]]
"""What a subscriber must be told: rows to upsert and keys to delete."""


def delta_of(query: Query, changes: Sequence[Change]) -> Delta:
    """What a batch, or the part of it that can matter, is to a query without a limit.

    The rows are the view's own, not projected: readers who select the same columns can share what is made of them.
    """
    passes = query.passes
    upserts: list[Row] = []
    deletes: list[Key] = []
    for change in changes:
        before, after = change.before, change.after
        visible = before is not None and passes(before)
        if after is not None and passes(after):
            if not visible or _differs(query, before, after):  # type: ignore[arg-type]
                upserts.append(after)
        elif visible:
            deletes.append(change.key)
    return upserts, deletes


def _differs(query: Query, before: Row, after: Row) -> bool:
    """Whether a reader sees a change between two rows that are not equal to Python."""
    if query.select is None:
        for index in query.floats:
            if before[index].__class__ is not float or before[index] != before[index]:
                return not _same(before, after)
        return True
    return not _same(query.project(before), query.project(after))


class QueryState:
    """The visible rows of one query, moved from batch to batch. It belongs to the edge's loop."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._ranked: SortedKeyList = SortedKeyList(key=itemgetter(0))
        self._built_from: Mapping[Key, Row] | None = None

    @classmethod
    def build(cls, query: Query, rows: Mapping[Key, Row]) -> QueryState:
        """The state at the view's present rows, which must not change before the first call of `rows`."""
        state = cls(query)
        if query.limit is None:
            state._built_from = rows
        else:
            passing = ((key, row) for key, row in rows.items() if query.passes(row))
            state._ranked.update((query.sort_key(key, row), key, row) for key, row in passing)
        return state

    def rows(self, current: Mapping[Key, Row] | None = None) -> list[Row]:
        """The visible rows in order. Without a limit and after a batch, `current` must be the view's rows."""
        if self.query.limit is None:
            source = self._built_from if current is None else current
            if source is None:
                raise ValueError("without a limit no rows are kept: pass the view's rows")
            return evaluate(self.query, source)
        return [self.query.project(row) for _, _, row in self._ranked.islice(0, self.query.limit)]

    def apply(self, changes: Sequence[Change]) -> Delta:
        """Takes one batch; returns what the subscriber must be told."""
        self._built_from = None
        net, passes, ranked = _NetEffect(self.query.project), self.query.passes, self.query.limit is not None
        for change in changes:
            if change.before is not None and passes(change.before):
                if ranked:
                    self._remove(change.key, change.before, net)
                else:
                    net.leave(change.key, change.before)
            if change.after is not None and passes(change.after):
                if ranked:
                    self._insert(change.key, change.after, net)
                else:
                    net.enter(change.key, change.after)
        return net.delta()

    def _remove(self, key: Key, row: Row, net: _NetEffect) -> None:
        ranked, limit = self._ranked, self.query.limit or 0
        index = ranked.bisect_key_left(self.query.sort_key(key, row))
        if index == len(ranked) or ranked[index][1] != key:
            raise LookupError(f"the row before the change of {key!r} is not the row that this query has seen")
        if index < limit:
            net.leave(key, row)
            if len(ranked) > limit:
                net.enter(*ranked[limit][1:])
        del ranked[index]

    def _insert(self, key: Key, row: Row, net: _NetEffect) -> None:
        ranked, limit = self._ranked, self.query.limit or 0
        sort_key = self.query.sort_key(key, row)
        index = ranked.bisect_key_left(sort_key)
        if index < limit:
            net.enter(key, row)
            if len(ranked) >= limit:
                net.leave(*ranked[limit - 1][1:])
        ranked.add((sort_key, key, row))


class _NetEffect:
    """What a batch did to the visible rows, net: per key the row shown before it and the row shown after."""

    def __init__(self, project: Callable[[Row], Row]) -> None:
        self._project = project
        self._before: dict[Key, Row | None] = {}
        self._after: dict[Key, Row | None] = {}

    def leave(self, key: Key, row: Row) -> None:
        self._before.setdefault(key, row)
        self._after[key] = None

    def enter(self, key: Key, row: Row) -> None:
        self._before.setdefault(key, None)
        self._after[key] = row

    def delta(self) -> Delta:
        deletes = [key for key, row in self._after.items() if row is None and self._before[key] is not None]
        return list(self._upserts()), deletes

    def _upserts(self) -> Iterator[Row]:
        for key, after in self._after.items():
            before = self._before[key]
            if after is None or before is after:
                continue
            new = self._project(after)
            if before is None or not _same(self._project(before), new):
                yield new


def _same(before: Row, after: Row) -> bool:
    """Equality for which NaN is a value like any other."""
    if before == after:
        return True
    return any(value != value for value in before) and ascending(before) == ascending(after)
