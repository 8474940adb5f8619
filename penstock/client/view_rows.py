"""What a reader gets of a view: the rows of one moment, one batch of changes, and the keys of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from penstock.errors import BadQueryError
from penstock.protocol import encode, wire

Hashable = Any


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """One batch. A snapshot replaces whatever the reader had before; its `upserts` are all rows.

    >>> Changes("topics", "p1", upserts=({"topic": "jazz", "rsvps": 2},), deletes=()).snapshot
    False
    """

    view: str
    position: str
    """Where to go on from, on any transport, once this batch is dealt with."""
    upserts: tuple[Row, ...]
    deletes: tuple[Row, ...]
    """Each an object of the key's columns."""
    snapshot: bool = False
    reset: str | None = None
    """Of a snapshot that nobody asked for: why changes could not lead here."""
    accepted: str | None = None
    """When the newest event in it was taken at the door, as RFC 3339."""
    corrected: tuple[Row, ...] = ()
    """The keys of rows of closed windows that late events have changed, as objects."""
    complete: str | None = None
    """Nothing that happened before it comes to the view any more; None: there is no such time."""


@dataclass(frozen=True, slots=True)
class Rows(Sequence[Row]):
    """What `get` gives: a sequence of rows, all of one moment.

    >>> rows = Rows("topics", ({"topic": "jazz", "rsvps": 2},), "p1", {"rsvps": "s1"})
    >>> len(rows), rows[0]["rsvps"]
    (1, 2)
    """

    view: str
    rows: tuple[Row, ...]
    position: str
    """Of the view: for `at_least`, and to follow it from here."""
    frontier: Mapping[str, str]
    """Up to where each stream is absorbed in these rows."""
    complete: str | None = None
    """Nothing that happened before it comes to the view any more; None: there is no such time."""

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


_STRUCT = re.compile(r"struct<(.*)>")


def key_parameter(key: Any, facts: ViewFacts | None) -> str:
    """A value as text; a tuple in the order of the key's columns, or a dict of them (`facts` names them), as JSON.

    >>> key_parameter("jazz", None)
    'jazz'
    """
    if not isinstance(key, dict | tuple):
        return str(key).lower() if isinstance(key, bool) else str(wire(key))
    assert facts is not None
    types = dict(facts.columns)
    named = _named(key, facts)
    if len(named) == 1 and not types.get(facts.key[0], "").startswith("struct"):
        return key_parameter(named[facts.key[0]], None)
    return encode(wire({name: _thawed(value, types.get(name, "")) for name, value in named.items()})).decode()


def key_path(key: Any, facts: ViewFacts) -> str:
    """The same as the segments of an address below `/tables/{table}`.

    >>> key_path(("a/b", 7), ViewFacts("t", ("x", "y"), (), (), None, None, None, None, None))
    'a%2Fb/7'
    """
    named = _named(key, facts) if isinstance(key, dict | tuple) else {facts.key[0]: key}
    return "/".join(quote(key_parameter(named[name], None), safe="") for name in facts.key)


def _named(key: dict[str, Any] | tuple[Any, ...], facts: ViewFacts) -> dict[str, Any]:
    """By the names of the key's columns. A struct alone may be meant by its fields."""
    alone = len(facts.key) == 1
    if isinstance(key, dict):
        named = {facts.key[0]: key} if alone and facts.key[0] not in key else key
    else:
        whole = alone and dict(facts.columns).get(facts.key[0], "").startswith("struct")
        named = dict(zip(facts.key, (key,) if whole else key, strict=False))
    if set(named) != set(facts.key) or (isinstance(key, tuple) and not alone and len(key) != len(facts.key)):
        raise BadQueryError(
            f"the key of '{facts.name}' is {', '.join(facts.key)}", hint="give a value for each of them"
        )
    return named


def _thawed(value: Any, kind: str) -> Any:
    """A struct as an object again: a live copy has it as a tuple, since that can be hashed."""
    match = _STRUCT.fullmatch(kind)
    if match is None or not isinstance(value, tuple):
        return value
    names = [name for name, _ in _fields(match[1])]
    kinds = [inner for _, inner in _fields(match[1])]
    return {name: _thawed(item, inner) for name, item, inner in zip(names, value, kinds, strict=True)}


def _fields(text: str) -> list[tuple[str, str]]:
    """`a:int,b:struct<c:int,d:int>` in parts."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [(name, kind) for name, _, kind in (part.partition(":") for part in parts)]
