"""What readers must see, computed without any code of the server or the client: the log of batches, and Python.

A filter is a pair of the SQL that is sent and a Python function of a row that decides the same. Rows are made here both
as they go into the changelog and as JSON must show them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from penstock.client import Condition, col, fn, where

TS = pa.timestamp("us", tz="UTC")
WINDOW = pa.struct([("start", TS), ("end", TS)])
TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("rsvps", pa.int64()),
        ("grp", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("at", TS),
        ("ok", pa.bool_()),
    ]
)
WINDOWS = pa.schema([("window", WINDOW), ("topic", pa.string()), ("rsvps", pa.int64())])
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

Json = dict[str, Any]
Key = tuple[Any, ...]
State = Mapping[Key, Json]


@dataclass(frozen=True)
class Filter:
    """The same condition twice."""

    sql: str | Condition | None
    passes: Callable[[Json], bool | None]
    params: Mapping[str, Any] | None = None


def _more(value: Any, than: Any) -> bool:
    return value is not None and value > than


EVERYTHING = Filter(None, lambda row: True)
FILTERS = [
    EVERYTHING,
    Filter("rsvps > 3", lambda row: _more(row["rsvps"], 3)),
    Filter("NOT (rsvps > 5)", lambda row: row["rsvps"] is not None and row["rsvps"] <= 5),
    Filter("rsvps IS NULL OR topic LIKE 't1%'", lambda row: row["rsvps"] is None or row["topic"].startswith("t1")),
    Filter("length(topic) + rsvps BETWEEN 5 AND 9", lambda row: _sum(row) in range(5, 10)),
    Filter("topic IN ('t1', 't3', 't5', 't7')", lambda row: row["topic"] in ("t1", "t3", "t5", "t7")),
    Filter("rsvps > :least", lambda row: _more(row["rsvps"], 4), {"least": 4}),
    Filter(where(col.rsvps.between(2, 6)), lambda row: row["rsvps"] is not None and 2 <= row["rsvps"] <= 6),
    Filter(where((col.topic != "t2") & ~(col.rsvps >= 8)), lambda row: row["topic"] != "t2" and not _odd8(row)),
    Filter(where(col.topic.is_in(["t2", "t4", "o'h"]) | (col.rsvps == 1)), lambda row: _among(row)),
]
TOPIC_FILTERS = [
    Filter("grp IN ('a', 'b') AND rsvps >= 2", lambda row: row["grp"] in ("a", "b") and _more(row["rsvps"], 1)),
    Filter("coalesce(grp, 'none') = 'none'", lambda row: row["grp"] is None),
    Filter("'x' = ANY(tags)", lambda row: "x" in row["tags"]),
    Filter(where(col.tags.any("y")), lambda row: "y" in row["tags"]),
    Filter("price >= 2.50", lambda row: Decimal(row["price"]) >= Decimal("2.50")),
    Filter(where(col.price < Decimal("5.25")), lambda row: Decimal(row["price"]) < Decimal("5.25")),
    Filter("at >= '2024-01-01T00:00:30Z'", lambda row: row["at"] >= "2024-01-01T00:00:30.000Z"),
    Filter(where(col.at < START + dt.timedelta(seconds=20)), lambda row: row["at"] < "2024-01-01T00:00:20.000Z"),
    Filter("ok AND rsvps % 2 = 0", lambda row: row["ok"] and row["rsvps"] is not None and row["rsvps"] % 2 == 0),
    Filter(where(fn.upper(col.grp) == "B"), lambda row: row["grp"] == "b"),
]
WINDOW_FILTERS = [
    Filter("window.start >= '2024-01-01T00:02:00Z'", lambda row: row["window"]["start"] >= "2024-01-01T00:02:00.000Z"),
    Filter(where(col.window.end <= START + dt.timedelta(minutes=2)), lambda row: row["window"]["start"] < _minute(2)),
]


def _odd8(row: Json) -> bool:
    """Unknown is not true either."""
    return row["rsvps"] is None or row["rsvps"] >= 8


def _sum(row: Json) -> int | None:
    return None if row["rsvps"] is None else len(row["topic"]) + row["rsvps"]


def _among(row: Json) -> bool:
    return row["topic"] in ("t2", "t4") or row["rsvps"] == 1


def _minute(n: int) -> str:
    return f"2024-01-01T00:{n:02}:00.000Z"


@dataclass(frozen=True)
class Shape:
    """A view: its columns, its key, and how its declaration orders and cuts it."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    filters: list[Filter]
    order_by: tuple[str, ...] = ()
    limit: int | None = None

    def row(self, random: Random) -> tuple[Json, Json]:
        """A row, as the changelog takes it and as JSON shows it."""
        n = random.choice([None, *range(10)])
        shown: Json = {"topic": f"t{random.randrange(12)}", "rsvps": n}
        if self.name == "windows":
            minute = random.randrange(4)
            start = START + dt.timedelta(minutes=minute)
            kept = {"window": {"start": start, "end": start + dt.timedelta(minutes=1)}, **shown}
            return kept, {"window": {"start": _minute(minute), "end": _minute(minute + 1)}, **shown}
        cents, second = random.randrange(1000), random.randrange(60)
        shown |= {
            "grp": random.choice([None, "a", "b", "c"]),
            "tags": random.sample(["x", "y", "z"], random.randrange(3)),
        }
        shown |= {"ok": random.random() < 0.5}
        kept = shown | {"price": Decimal(cents) / 100, "at": START + dt.timedelta(seconds=second)}
        return kept, shown | {"price": f"{cents // 100}.{cents % 100:02}", "at": f"2024-01-01T00:00:{second:02}.000Z"}

    def key_of(self, row: Json) -> Key:
        return tuple(tuple(v.values()) if isinstance(v, dict) else v for v in (row[name] for name in self.key))


SHAPES = [
    Shape("topics", TOPICS, ("topic",), FILTERS + TOPIC_FILTERS),
    Shape("top", TOPICS, ("topic",), FILTERS + TOPIC_FILTERS, ("-rsvps",), 4),
    Shape("windows", WINDOWS, ("window", "topic"), FILTERS + WINDOW_FILTERS, ("-window",)),
]

DEFAULT = "default"


@dataclass(frozen=True)
class Query:
    """What a reader asks for."""

    shape: Shape
    filter: Filter
    select: tuple[str, ...] | None
    order_by: tuple[str, ...] | None
    limit: int | str | None

    def options(self) -> dict[str, Any]:
        """For the client."""
        made: dict[str, Any] = {"where": self.filter.sql, "params": self.filter.params, "select": self.select}
        made["order_by"] = self.order_by
        return made if self.limit == DEFAULT else made | {"limit": self.limit}

    def visible(self, state: State) -> dict[Key, Json]:
        """The rows that a reader must have when the view is in this state."""
        found = [(key, row) for key, row in state.items() if self.filter.passes(row)]
        limit = self.shape.limit if self.limit == DEFAULT else self.limit
        if limit is not None:
            found.sort()  # by key
            for item in reversed(self.shape.order_by if self.order_by is None else self.order_by):
                name = item.removeprefix("-")
                found.sort(key=lambda pair: _rank(pair[1][name]), reverse=item.startswith("-"))
            found = found[: int(limit)]
        return {key: self._chosen(row) for key, row in found}

    def _chosen(self, row: Json) -> Json:
        names = None if self.select is None else {*self.shape.key, *self.select}
        return {name: value for name, value in row.items() if names is None or name in names}

    def __str__(self) -> str:
        return f"{self.shape.name} where {self.filter.sql!r} select {self.select} by {self.order_by} limit {self.limit}"


def _rank(value: Any) -> tuple[bool, Any]:
    """NULL is below everything."""
    if isinstance(value, dict):
        value = tuple(value.values())
    return (value is not None, value)


def random_query(random: Random) -> Query:
    shape = random.choice(SHAPES)
    others = [name for name in shape.schema.names if name not in shape.key]
    select = tuple(random.sample(others, random.randint(1, len(others)))) if random.random() < 0.3 else None
    order_by = random.choice([None, None, ("rsvps",), ("-rsvps",)])
    return Query(shape, random.choice(shape.filters), select, order_by, random.choice([DEFAULT, DEFAULT, None, 3]))


@dataclass
class Build:
    """Every state that a build of a view was in: `states[n]` behind its n-th commit."""

    states: list[dict[Key, Json]] = field(default_factory=lambda: [{}])

    def next_batch(self, shape: Shape, random: Random, most: int = 6) -> tuple[list[Json], list[Json]]:
        """A random batch (one row for each key), whose outcome becomes the newest state."""
        state, upserts, deletes = dict(self.states[-1]), [], []
        made = {shape.key_of(shown): (kept, shown) for kept, shown in (shape.row(random) for _ in range(most))}
        for key, (kept, shown) in list(made.items())[: random.randint(0, most)]:
            if random.random() < 0.3:
                deletes.append({name: kept[name] for name in shape.key})
                state.pop(key, None)
            else:
                upserts.append(kept)
                state[key] = shown
        self.states.append(state)
        return upserts, deletes

    def settled_at(self, query: Query) -> int:
        """The commit behind which nothing changed for a reader of this query any more."""
        last = query.visible(self.states[-1])
        at = len(self.states) - 1
        while at > 0 and query.visible(self.states[at - 1]) == last:
            at -= 1
        return at
