"""What a reader of a view gets: one batch of changes, all or none, and the position behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """Of a snapshot that was not asked for: why changes could not lead here."""
    accepted: str | None = None
    """When the newest event in it was taken at the door, as RFC 3339."""
