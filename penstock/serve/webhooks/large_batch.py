"""Takes a large batch apart for the shape `change` without holding it, so that a slow endpoint costs no memory.

What is kept is the order in which the changes are delivered, four bytes each. A change is read from the view's history
when its turn comes; an endpoint that is slower than the history is told `reset`, as everybody is.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from penstock.protocol import encode
from penstock.serve.fanout.messages import RowCodec
from penstock.serve.webhooks.parcels import Delivery, change_key, deleted, upserted
from penstock.serve.webhooks.view_feed import Fell
from penstock.serve.webhooks.webhook import Webhook
from penstock.views.history import Batch
from penstock.views.query import Query, delta_of
from penstock.views.store import Content, View

LARGE_BYTES = 32 * 1024
"""A message above this is not taken apart on the loop, where it would take over 1 ms."""
_CHUNK = 5_000
"""Python sorts in one step that no other thread can interrupt."""


@dataclass(frozen=True)
class LargeBatch:
    """The deliveries of the batch that ends at `end`, in the order of `changes_apart`."""

    webhook: Webhook
    view: View
    content: Content
    codec: RowCodec
    query: Query
    end: int
    order: array[int]

    @staticmethod
    async def taken_apart(webhook: Webhook, view: View, content: Content, query: Query, end: int) -> LargeBatch:
        """Raises `Fell` when the history no longer has the batch."""
        order = await asyncio.to_thread(_ordered, query, _batch(view, content, end))
        return LargeBatch(webhook, view, content, RowCodec(query), query, end, order)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Delivery:
        """Raises `Fell` when the history no longer has the batch."""
        batch, position = _batch(self.view, self.content, self.end), self.content.at(self.end)
        upserts, deletes = delta_of(self.query, [batch.changes[self.order[number]]])
        if deletes:
            return deleted(self.webhook, position, encode(self.codec.key(deletes[0])))
        return upserted(self.webhook, position, self.codec.json(upserts[0]), self.query.key)


def _batch(view: View, content: Content, end: int) -> Batch:
    if view.content is not content:
        raise Fell("the view was rebuilt")
    batch = content.history.next(end - 1) if end > content.history.start else None
    if batch is None or batch.end != end:
        raise Fell("the position is older than what is kept")
    return batch


def _ordered(query: Query, batch: Batch) -> array[int]:
    """Which change comes when. In a thread."""
    codec, many = RowCodec(query), len(batch.changes)
    numbers = [range(start, min(start + _CHUNK, many)) for start in range(0, many, _CHUNK)]
    chunks = [sorted(_keys(query, codec, batch, some)) for some in numbers]
    return array("I", (number for _, _, number in merge(*chunks)))


def _keys(query: Query, codec: RowCodec, batch: Batch, numbers: range) -> Iterator[tuple[bool, bytes, int]]:
    for number in numbers:
        upserts, deletes = delta_of(query, [batch.changes[number]])
        if deletes:
            yield False, encode(codec.key(deletes[0])), number
        elif upserts:
            yield True, change_key(codec.json(upserts[0]), query.key), number
