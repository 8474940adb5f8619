"""Reads a view for a webhook: the snapshot if it wants one, then change by change, batch by batch, or as digests.

1. One delivery per batch (or change), unmerged, so that its content depends on its position alone and its id with it.
2. What cannot go on by changes (too far behind, or the view was rebuilt) is told once, by a `reset` with the position
   from which changes follow; the receiver reads the view itself. That position is pinned until it was delivered, or is
   too old too.
3. A large snapshot is on disk while it is delivered, and a large batch stays in the history: what is held for an
   endpoint, however slow, is one delivery.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from heapq import merge
from typing import Any, cast

import msgspec

from penstock.change import Change, Key, Row
from penstock.config import Limits
from penstock.position import Position
from penstock.protocol import encode, snapshot
from penstock.serve.fanout.answers import answer, json_parts
from penstock.serve.fanout.hub import AHEAD_S, Hub
from penstock.serve.fanout.messages import Message, RowCodec
from penstock.serve.question import Question
from penstock.serve.webhooks.delivery import (
    Delivery,
    DeliveryStep,
    Level,
    change_key,
    changes_apart,
    deleted,
    reset,
    rows_apart,
    upserted,
    whole,
)
from penstock.serve.webhooks.schedule import Pace
from penstock.serve.webhooks.snapshot_spool import LetGo, SnapshotSpool
from penstock.serve.webhooks.view_feed import Fell, HeldBytes, ViewFeed
from penstock.serve.webhooks.webhook import Webhook, WebhookPlace
from penstock.views.history import Batch
from penstock.views.read_query import Query, delta_of
from penstock.views.store import Content, View
from penstock.views.top_rows import TopState
from penstock.views.views import Views

LARGE_CHANGES = 500
"""More are encoded in a thread: on the loop they would take over 1 ms."""
SORTERS = 2
"""Large batches that are sorted at one time for all webhooks: sorting takes threads that others need too."""


class ViewSource:
    """Reads views for all webhooks of an edge."""

    def __init__(self, views: Views, hub: Hub, limits: Limits, pace: Pace, spool: SnapshotSpool) -> None:
        self._views, self._hub, self._limits, self._pace = views, hub, limits, pace
        self._held = HeldBytes()
        self._spool = spool
        self._sorting = asyncio.Semaphore(SORTERS)
        self._feeds: dict[str, ViewFeed] = {}

    def passed(self, webhook: Webhook) -> str | None:
        """How far batches have passed a webhook that has everything, without concerning it."""
        feed = self._feeds.get(webhook.id)
        return feed.passed if feed else None

    async def steps(
        self, webhook: Webhook, question: Question, place: WebhookPlace, level: Level
    ) -> AsyncGenerator[DeliveryStep, None]:
        """What to deliver from `place` on; ends when it is best to begin anew from the last place."""
        view = self._views.view(webhook.name)
        content = await view.loaded()
        if place.position is None:
            async with aclosing(self._snapshot(webhook, view, question, place)) as steps:
                async for step in steps:
                    yield step
            return
        if (why := place.fell or _lost(content, place.position)) is not None:
            for step in _reset(webhook, content, place, why):
                yield step
            return
        follow = self._digests if webhook.shape == "digest" else self._changes
        try:
            async with aclosing(follow(webhook, view, question, place, level)) as steps:
                async for step in steps:
                    yield step
                    place = step.then
        except Fell as fell:
            yield DeliveryStep(msgspec.structs.replace(place, fell=str(fell), end=None))

    # The beginning

    async def _snapshot(
        self, webhook: Webhook, view: View, question: Question, place: WebhookPlace
    ) -> AsyncGenerator[DeliveryStep, None]:
        if len((await view.loaded()).rows) > self._limits.snapshot_part_rows:
            async with aclosing(self._spooled(webhook, view, question, place)) as steps:
                async for step in steps:
                    yield step
            return
        content = await view.loaded()
        query = question.query(view, content)
        position = content.position.token()
        rows = await answer(query, content)
        async for part in json_parts(RowCodec(query), rows, max(1, len(rows))):
            for delivery in _parcels(webhook, encode(part), content.key, position, 1, 1):
                yield DeliveryStep(place, delivery)
        yield DeliveryStep(WebhookPlace(position, digest_us=self._pace.now_us()), durable=True)

    async def _spooled(
        self, webhook: Webhook, view: View, question: Question, place: WebhookPlace
    ) -> AsyncGenerator[DeliveryStep, None]:
        """A large one; ends early when it had to make room for others."""
        async with self._spool.making:
            content = await view.loaded()
            query, key, position = question.query(view, content), content.key, content.position.token()
            rows = await answer(query, content)
            held = await self._spool.put(RowCodec(query), rows, self._limits.snapshot_part_rows)
        del content, rows
        try:
            for number in range(held.parts):
                for delivery in _parcels(webhook, await held.part(number), key, position, number + 1, held.parts):
                    yield DeliveryStep(place, delivery)
                    held.taken += len(delivery.payload)
        except LetGo:
            return
        finally:
            self._spool.close(held)
        yield DeliveryStep(WebhookPlace(position, digest_us=self._pace.now_us()), durable=True)

    # Each change, each batch

    async def _changes(
        self, webhook: Webhook, view: View, question: Question, place: WebhookPlace, level: Level
    ) -> AsyncGenerator[DeliveryStep, None]:
        feed = self._feeds[webhook.id] = ViewFeed(self._hub, view, question, self._held)
        feed.open(Position.parse(place.position or ""))
        content = await view.loaded()
        try:
            while (message := await feed.next(level)) is not None:
                then = WebhookPlace(message.position)
                if webhook.shape == "batch":
                    yield DeliveryStep(then, whole(webhook, "changes", str(message.position), message.payload))
                    continue
                deliveries = await self._apart(webhook, view, content, question, message)
                del message  # of a large one nothing is held while it is delivered
                for number in range(place.done, len(deliveries)):
                    last = number + 1 == len(deliveries)
                    yield DeliveryStep(then if last else WebhookPlace(place.position, number + 1), deliveries[number])
                place = then
        finally:
            self._feeds.pop(webhook.id, None)
            await feed.close()

    async def _apart(
        self, webhook: Webhook, view: View, content: Content, question: Question, message: Message
    ) -> list[Delivery] | LargeBatch:
        if len(message.payload) <= LARGE_BYTES:
            return changes_apart(webhook, message.payload, content.key)
        async with self._sorting:
            return await LargeBatch.taken_apart(webhook, view, content, question.query(view, content), message.end)

    # Digests

    async def _digests(
        self, webhook: Webhook, view: View, question: Question, place: WebhookPlace, level: Level
    ) -> AsyncGenerator[DeliveryStep, None]:
        while True:
            if place.end is None:
                level()
                place = msgspec.structs.replace(
                    place, digest_us=await self._pace.next_digest(place.digest_us, webhook.digest_s or 0.0)
                )
            content = await view.loaded()
            since = Position.parse(place.position or "")
            end = Position.parse(place.end).offsets[0] if place.end else None
            if since.epoch != content.shown:
                raise Fell("the view was rebuilt")
            await view.until(partial(_reached, view, content, since.offsets[0]), AHEAD_S)
            changes = await merged(view, content, question, since.offsets[0], end)
            if changes is None:
                raise Fell("the position is older than what is kept")
            then = WebhookPlace(content.at(changes.end), digest_us=place.digest_us)
            if changes.upserts or changes.deletes:
                if place.end is None:
                    place = msgspec.structs.replace(place, end=then.position)
                    yield DeliveryStep(place, durable=True)
                yield DeliveryStep(then, await _digest(webhook, place.position or "", then.position or "", changes))
            else:
                yield DeliveryStep(then)
            more = end is None and changes.end < content.offset
            place = msgspec.structs.replace(then, digest_us=0) if more else then


def _parcels(
    webhook: Webhook, rows: bytes, key: Sequence[str], position: str, part: int, parts: int
) -> Iterable[Delivery]:
    """The deliveries of a part of a snapshot, whose rows are a JSON array."""
    if webhook.shape == "change":
        return rows_apart(webhook, rows, key, position)
    body = encode(snapshot(webhook.name, position, cast(Sequence[Any], msgspec.Raw(rows)), part, parts))
    return [whole(webhook, "snapshot", position, body, blake2b(body).hexdigest(), held=parts > 1)]


async def _digest(webhook: Webhook, since: str, position: str, changes: Merged) -> Delivery:
    """A batch is not divided, so one may be large."""

    def encoded() -> bytes:
        head = encode({"type": "digest", "view": webhook.name, "since": since, "position": position})
        upserts, deletes = (b",".join([encode(item) for item in some]) for some in (changes.upserts, changes.deletes))
        return b'%b,"upserts":[%b],"deletes":[%b]}' % (head[:-1], upserts, deletes)

    large = len(changes.upserts) + len(changes.deletes) > LARGE_CHANGES
    payload = await asyncio.to_thread(encoded) if large else encoded()
    return whole(webhook, "digest", position, payload, since)


def _reached(view: View, content: Content, offset: int) -> bool:
    """An edge that has just been started may still be on its way to where it was."""
    return content.offset >= offset or view.content is not content


# Where changes do not lead on


def _lost(content: Content, token: str) -> str | None:
    """Why changes cannot lead on from a position; None: they can."""
    position = Position.parse(token)
    if position.epoch != content.shown or len(position.offsets) != 1:
        return "the position is of another build of the view"
    if position.offsets[0] < content.history.start:
        return "the position is older than what is kept"
    return None


def _reset(webhook: Webhook, content: Content, place: WebhookPlace, why: str) -> list[DeliveryStep]:
    """A `reset` to the present, or to the position that an earlier try of it has named."""
    pinned = place.fell is not None and place.end is not None and _lost(content, place.end) is None
    end = str(place.end) if pinned else content.position.token()
    then = WebhookPlace(end, digest_us=place.digest_us)
    step = DeliveryStep(then, reset(webhook, end, why))
    return (
        [step]
        if pinned
        else [DeliveryStep(WebhookPlace(place.position, 0, end, why, place.digest_us), durable=True), step]
    )


def begun(content: Content, since: str | None, name: str) -> str | None:
    """The position that a new webhook begins at: `since`, or the present; None: a snapshot comes first."""
    if since is None or since == "now":
        return content.position.token()
    return None if since == "start" else Position.parse(since, "view", name).token()


# A large batch, taken apart

LARGE_BYTES = 32 * 1024
"""A message above this is not taken apart on the loop, where it would take over 1 ms."""
_CHUNK = 5_000
"""Python sorts in one step that no other thread can interrupt."""


@dataclass(frozen=True)
class LargeBatch:
    """The deliveries of the batch that ends at `end`, in the order of `changes_apart`, without holding them.

    What is kept is their order, four bytes each. A change is read from the view's history when its turn comes; an
    endpoint that is slower than the history is told `reset`, as everybody is.
    """

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


# What has changed in the end

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
        upserts, deletes = TopState(query, {}).apply(changes) or ([], [])
        codec = RowCodec(query)
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
