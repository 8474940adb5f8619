"""Merges batches for a subscriber that is slow, or asked for a pace, into one message to a state that the view had.

1. A merged message leads from the rows at one commit to the rows at a later one, never to anything in between: what was
   one batch is never seen in part.
2. A row that came and went in between is not mentioned: there is no delete of what the subscriber never saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.change import Change, Key, Row
from penstock.serve.messages import Message
from penstock.views.history import Batch
from penstock.views.query import Query, key_of

Shown = Mapping[Key, Row]
"""The rows that a subscriber sees by key, projected."""


@dataclass(frozen=True, slots=True)
class Net:
    """What several batches came to."""

    message: Message | None
    """None when nothing of it is to be seen."""
    end: int
    shown: Shown | None
    """The rows behind it, where there is a limit."""


def net_changes(batches: Iterable[Batch]) -> list[Change]:
    """One change per key, from before the first batch to behind the last.

    >>> batch = Batch(0, 1, [Change(("a",), None, ("a", 1)), Change(("b",), ("b", 1), None)], None, 0, 0)
    >>> later = Batch(1, 2, [Change(("a",), ("a", 1), None), Change(("b",), None, ("b", 2))], None, 0, 0)
    >>> net_changes([batch, later])
    [Change(key=('b',), before=('b', 1), after=('b', 2))]
    """
    before: dict[Key, Row | None] = {}
    after: dict[Key, Row | None] = {}
    for batch in batches:
        for change in batch.changes:
            before.setdefault(change.key, change.before)
            after[change.key] = change.after
    return [Change(key, before[key], row) for key, row in after.items() if before[key] != row]


def shown_rows(query: Query, rows: Sequence[Row]) -> Shown:
    """Projected rows by key; a projection keeps the key's columns."""
    names = [column.name for column in query.output]
    indexes = [names.index(name) for name in query.key]
    return {key_of(row, indexes): row for row in rows}
