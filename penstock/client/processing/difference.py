"""Decides what a handler is told of a batch: that which differs from what it was told before.

1. What is remembered for a key is what the handler was told last, or will be once its open tasks are done.
2. A batch that was taken before, and a snapshot after a `reset`, a rebuild or a lost position, give only what really
   differs. So nothing is handed over twice, and nothing that changed meanwhile is missed.
3. With `on="upserts"` a handler is not told of deletes, so nothing is forgotten: a row that goes and comes back as it
   was is no news. With `on="changes"` it is.
4. A key that was deleted keeps its version, so that the same content later has another idempotency key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from penstock.client.changes import Changes, Row
from penstock.client.processing.work import KeyChange, On, canonical

LONGEST_LANE = 400
"""In characters: an index of PostgreSQL takes keys of up to 2,700 bytes."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is remembered of one key."""

    row: str | None
    """The row as canonical JSON; None: that it was deleted."""
    version: int


@dataclass(frozen=True, slots=True)
class News:
    """One change and the key under which it is remembered."""

    lane: str
    change: KeyChange
    told: Told


def lane_of(row: Row, key: Sequence[str]) -> str:
    """The key of a row as text, of a long one its hash: tasks of one lane keep their order.

    >>> lane_of({"song": "s1", "day": 3, "plays": 7}, ["day", "song"])
    '[3,"s1"]'
    """
    text = canonical([row[name] for name in key])
    return text if len(text) <= LONGEST_LANE else f"#{sha256(text.encode()).hexdigest()}"


def lanes(changes: Changes, key: Sequence[str]) -> list[str]:
    """The keys that a batch names."""
    return [lane_of(row, key) for row in (*changes.deletes, *changes.upserts)]


def difference(changes: Changes, known: Mapping[str, Told], key: Sequence[str], on: On) -> list[News]:
    """What is new in a batch. `known` holds what is remembered of its keys; of every key if it is a snapshot."""
    news = list(_gone(changes, known, key)) if on == "changes" else []
    for row in changes.upserts:
        lane, text = lane_of(row, key), canonical(row)
        before = known.get(lane)
        if before is None or before.row != text:
            news.append(_upsert(lane, row, text, before, key))
    return news


def _gone(changes: Changes, known: Mapping[str, Told], key: Sequence[str]) -> Iterator[News]:
    if changes.snapshot:
        there = {lane_of(row, key) for row in changes.upserts}
        missing = [lane for lane in known if lane not in there]
    else:
        missing = [lane_of(row, key) for row in changes.deletes]
    for lane in missing:
        before = known.get(lane)
        if before is not None and before.row is not None:
            row = _row(before)
            made = KeyChange(_key(row, key), None, row, before.version + 1)
            yield News(lane, made, Told(None, made.version))


def _upsert(lane: str, row: Row, text: str, before: Told | None, key: Sequence[str]) -> News:
    version = 1 if before is None else before.version + 1
    made = KeyChange(_key(row, key), row, None if before is None or before.row is None else _row(before), version)
    return News(lane, made, Told(text, version))


def _key(row: Row, key: Sequence[str]) -> Row:
    return {name: row[name] for name in key}


def _row(told: Told) -> dict[str, Any]:
    assert told.row is not None
    return msgspec.json.decode(told.row, type=dict[str, Any])
