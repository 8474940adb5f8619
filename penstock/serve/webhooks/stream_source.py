"""Reads a stream for a webhook: event by event, or in batches and digests whose ends are pinned before they are sent.

The log is the buffer, and keeps events as long as the stream's `retain=` says. A webhook that retention has overtaken
gets `reset` with the position at which the stream begins now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from penstock.errors import PenstockError, PositionGoneError
from penstock.log.folder_log import FolderLog
from penstock.position import Position
from penstock.protocol import encode
from penstock.serve.question import Question
from penstock.serve.stream_reads import END, START, Page, StreamReads
from penstock.serve.webhooks.delivery import Delivery, DeliveryStep, Level, delivery_id, encoded, reset
from penstock.serve.webhooks.schedule import Pace
from penstock.serve.webhooks.webhook import Webhook, WebhookPlace
from penstock.views.read_rule import EVERYTHING

PAGE_EVENTS = 100
"""Events in one batch, and in one digest: what is left over follows at once."""
READERS = 2
"""Pages that are read at one time for all webhooks: reading takes threads that others need too."""


LOOK_S = 60.0
ABSENT_S = 1.0
"""How long to wait before a stream that is not there yet is looked for again."""
_EVERYTHING = Question(rule=EVERYTHING)
"""Nothing of what is read here is given to anybody: only how far the stream has come."""


class _Watched:
    """How far one stream has come, and who wants to know."""

    def __init__(self) -> None:
        self.end: Position | None = None
        self.grown = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class StreamNews:
    """Tells webhooks that their stream has grown: one look at each stream, however many webhooks wait for it. Belongs
    to the edge's loop."""

    def __init__(self, reads: StreamReads) -> None:
        self._reads = reads
        self._streams: dict[str, _Watched] = {}

    async def beyond(self, name: str, position: Position) -> None:
        """Return when there may be something behind a position."""
        watched = self._streams.get(name)
        if watched is None:
            watched = self._streams[name] = _Watched()
            watched.task = asyncio.create_task(self._watch(name, watched), name=f"webhooks on {name}")
        end = watched.end
        if end is None or end.epoch != position.epoch or position.covers(end):
            await watched.grown.wait()

    async def close(self) -> None:
        tasks = [watched.task for watched in self._streams.values() if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, name: str, watched: _Watched) -> None:
        while True:
            try:
                watched.end = (await self._reads.page(name, END, _EVERYTHING, 1)).next
                watched.grown.set()
                watched.grown = asyncio.Event()
                while not (await self._reads.page_within(name, watched.end, _EVERYTHING, 1, LOOK_S)).looked_at:
                    pass
            except PenstockError:
                await asyncio.sleep(ABSENT_S)


class StreamSource:
    """Reads streams for all webhooks of an edge."""

    def __init__(self, reads: StreamReads, log: FolderLog, news: StreamNews, pace: Pace) -> None:
        self._reads, self._log, self._news, self._pace = reads, log, news, pace
        self._readers = asyncio.Semaphore(READERS)

    def passed(self, webhook: Webhook) -> str | None:
        return None

    async def steps(
        self, webhook: Webhook, question: Question, place: WebhookPlace, level: Level
    ) -> AsyncGenerator[DeliveryStep, None]:
        """What to deliver from `place` on; never ends by itself, except behind a `reset`."""
        while True:
            if webhook.shape == "digest" and place.end is None:
                level()
                due_us = await self._pace.next_digest(place.digest_us, webhook.digest_s or 0.0)
                place = msgspec.structs.replace(place, digest_us=due_us)
            try:
                if place.fell is not None:
                    raise PositionGoneError(place.fell)
                page = await self._page(webhook, question, place)
            except PositionGoneError as gone:
                for step in await self._reset(webhook, place, gone.message):
                    yield step
                return
            for step in _steps(webhook, page, place):
                yield step
                place = step.then
            if not page.events and not page.looked_at:
                level()
                if webhook.shape != "digest":
                    await self._news.beyond(webhook.name, page.next)
            elif webhook.shape == "digest" and page.looked_at:
                place = msgspec.structs.replace(place, digest_us=0)  # there may be more: at once

    async def _page(self, webhook: Webhook, question: Question, place: WebhookPlace) -> Page:
        after = Position.parse(place.position) if place.position else START
        async with self._readers:
            return await self._reads.page(webhook.name, after, question, PAGE_EVENTS)

    async def _reset(self, webhook: Webhook, place: WebhookPlace, why: str) -> list[DeliveryStep]:
        """A `reset` to the stream's present beginning, or to that of an earlier try if it still is one."""
        if place.fell is not None and place.end is not None and await self._is_held(webhook, place.end):
            return [DeliveryStep(WebhookPlace(place.end), reset(webhook, place.end, why))]
        async with self._readers:
            end = await asyncio.to_thread(self._beginning, webhook.name)
        pinned = WebhookPlace(place.position, 0, end, why, place.digest_us)
        return [
            DeliveryStep(pinned, durable=True),
            DeliveryStep(WebhookPlace(end, digest_us=place.digest_us), reset(webhook, end, why)),
        ]

    def _beginning(self, name: str) -> str:
        stream = self._log.find(name)
        return stream.position(stream.bounds().starts).token()

    async def _is_held(self, webhook: Webhook, token: str) -> bool:
        try:
            async with self._readers:
                await self._reads.page(webhook.name, Position.parse(token), Question(rule=EVERYTHING), 1)
        except PositionGoneError:
            return False
        return True

    async def begun(self, name: str, question: Question, since: str | None) -> str | None:
        """The position that a new webhook begins at. Raises `BadQueryError` for what the stream cannot answer."""
        now = await self._reads.page(name, END, question, 1)
        if since is None or since == "now":
            return now.next.token()
        return None if since == "start" else Position.parse(since, "stream", name).token()


def _steps(webhook: Webhook, page: Page, place: WebhookPlace) -> list[DeliveryStep]:
    """The deliveries of one page, and the places behind them."""
    events = _until(page.events, place.end)
    if not events:
        moved = WebhookPlace(page.next.token(), digest_us=place.digest_us)
        return [DeliveryStep(moved)] if moved != place else []
    if webhook.shape == "change":
        return [DeliveryStep(WebhookPlace(event["_position"]), _event(webhook, event)) for event in events]
    last = events[-1]["_position"]
    body = {"type": "events", "stream": webhook.name, "position": last, "events": events}
    step = DeliveryStep(WebhookPlace(last, digest_us=place.digest_us), encoded(webhook, body, str(place.position)))
    return [step] if place.end else [DeliveryStep(msgspec.structs.replace(place, end=last), durable=True), step]


def _until(events: list[dict[str, Any]], end: str | None) -> list[dict[str, Any]]:
    """Up to where an earlier try of the same delivery ended."""
    ends = [number for number, event in enumerate(events, 1) if event["_position"] == end]
    return events[: ends[0]] if ends else events


def _event(webhook: Webhook, event: dict[str, Any]) -> Delivery:
    position = event["_position"]
    body = {"type": "event", "stream": webhook.name, "position": position, "event": event}
    return Delivery(delivery_id(webhook, "event", position), "event", position, encode(body))
