"""Merges the batches of a view between two positions into one: what has changed in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.change import Change, Key, Row
from penstock.serve.fanout.messages import RowCodec
from penstock.serve.question import Question
from penstock.views.history import Batch
from penstock.views.store import Content, View
from penstock.views.top_rows import TopState

DIGEST_CHANGES = 5_000
"""A digest that has so many changed rows is sent as it is; the rest follows in the next one."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The net effect of some batches on the rows of a query, as JSON objects."""

    end: int
    upserts: list[dict[str, object]]
    deletes: list[dict[str, object]]


async def merged(view: View, content: Content, question: Question, start: int, end: int | None) -> Merged | None:
    """What the batches from `start` on did (to `end`, if it is given); None when the history does not have them."""
    batches = content.history.after(start)
    if batches is None or (end is not None and end not in (start, *(batch.end for batch in batches))):
        return None
    query = question.query(view, content)

    def work() -> Merged:
        reached, changes = _merge(batches, start, end)
        told = TopState(query, {}).apply(changes)
        codec = RowCodec(query)
        upserts, deletes = told if told is not None else ([], [])
        return Merged(reached, codec.rows(upserts), [codec.key(key) for key in deletes])

    return await asyncio.to_thread(work) if batches else work()


def _merge(batches: Sequence[Batch], start: int, end: int | None) -> tuple[int, list[Change]]:
    """Per key the row before the first change and the row behind the last."""
    before: dict[Key, Row | None] = {}
    after: dict[Key, Row | None] = {}
    reached = start
    for batch in batches:
        if reached == end or (end is None and len(after) >= DIGEST_CHANGES):
            break
        for change in batch.changes:
            before.setdefault(change.key, change.before)
            after[change.key] = change.after
        reached = batch.end
    return reached, [Change(key, before[key], row) for key, row in after.items() if before[key] != row]
