"""A view with a column of each kind, and filters over it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from penstock.change import Column
from penstock.views.where.filter import Where, compile_where

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LATER = datetime(2024, 5, 1, 12, 1, tzinfo=UTC)
NAN = float("nan")

COLUMNS = (
    Column("window", "struct<start:timestamp,end:timestamp>"),
    Column("topic", "string"),
    Column("rsvps", "bigint"),
    Column("n", "int"),
    Column("score", "double"),
    Column("price", "decimal(10,2)"),
    Column("ok", "boolean"),
    Column("at", "timestamp"),
    Column("day", "date"),
    Column("tags", "array<string>"),
    Column("counts", "map<string,int>"),
    Column("raw", "binary"),
    Column("venues", "array<struct<city:string,seats:int>>"),
    Column("place", "struct<geo:struct<lat:double,lon:double>,name:string>"),
    Column("local", "timestamp_ntz"),
    Column("Mixed Case", "string"),
)

FULL: dict[str, Any] = {
    "window": {"start": NOON, "end": LATER},
    "topic": "Jazz",
    "rsvps": 42,
    "n": 7,
    "score": 1.5,
    "price": Decimal("9.50"),
    "ok": True,
    "at": NOON,
    "day": date(2024, 5, 1),
    "tags": ["Jazz", "Blues"],
    "counts": {"k": 1},
    "raw": b"\x1a",
    "venues": [{"city": "Oslo", "seats": 10}, None],
    "place": {"geo": {"lat": 59.9, "lon": 10.7}, "name": "Oslo"},
    "local": datetime(2024, 5, 1, 12),
    "Mixed Case": "x",
}


def row(**values: Any) -> tuple[Any, ...]:
    return tuple(values.get(column.name, FULL[column.name]) for column in COLUMNS)


NULLS = tuple(None for _ in COLUMNS)


def where(text: str) -> Where:
    return compile_where(text, COLUMNS)


def holds(text: str, **values: Any) -> bool:
    """Whether the row passes, and did so without a row error."""
    compiled = where(text)
    answer = compiled(row(**values))
    assert compiled.errors == 0, text
    assert type(answer) is bool
    return answer
