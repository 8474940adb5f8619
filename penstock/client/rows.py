"""The rows of one moment, and the key of a row as something that a dict can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.changes import Row

Hashable = Any


@dataclass(frozen=True, slots=True)
class Rows(Sequence[Row]):
    """What `get` gives: a sequence of rows, all of one moment.

    >>> found = Rows("topics", ({"topic": "jazz", "rsvps": 2},), "p1", {"rsvps": "s1"})
    >>> len(found), found[0]["rsvps"]
    (1, 2)
    """

    view: str
    rows: tuple[Row, ...]
    position: str
    """Of the view: for `at_least`, and to follow it from here."""
    frontier: Mapping[str, str]
    """Up to where each stream is absorbed in these rows."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


@dataclass(frozen=True, slots=True)
class ViewFacts:
    """What a server says of a view."""

    name: str
    key: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """Names and types, as Spark spells them."""
    order_by: tuple[str, ...]
    limit: int | None
    doc: str | None
    rows: int | None
    position: str | None
    state: str | None
    """Of the flow that makes it."""


def facts_in(body: Mapping[str, Any]) -> ViewFacts:
    """One entry of `GET /views`."""
    columns = tuple((column["name"], column["type"]) for column in body.get("columns") or ())
    state = (body.get("flow") or {}).get("state")
    return ViewFacts(
        name=body["view"],
        key=tuple(body.get("key") or ()),
        columns=columns,
        order_by=tuple(body.get("order_by") or ()),
        limit=body.get("limit"),
        doc=body.get("doc"),
        rows=body.get("rows"),
        position=body.get("position"),
        state=state,
    )


def key_of(row: Row, columns: Sequence[str]) -> Hashable:
    """The key of a row or of a delete: the value of one column, else a tuple.

    >>> key_of({"topic": "jazz", "n": 1}, ["topic"])
    'jazz'
    >>> key_of({"window": {"start": "a", "end": "b"}, "topic": "jazz"}, ["window", "topic"])
    (('a', 'b'), 'jazz')
    """
    if len(columns) == 1:
        return frozen(row[columns[0]])
    return tuple(frozen(row[column]) for column in columns)


def frozen(value: Any) -> Hashable:
    """A value of JSON as something hashable: objects are tuples of their values, lists are tuples."""
    if isinstance(value, dict):
        return tuple(frozen(item) for item in value.values())
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return value
