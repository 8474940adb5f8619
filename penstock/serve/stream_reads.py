"""Reads streams for whoever wants the events themselves: a page at a time, or following as they come.

The log is the buffer: a slow reader just reads later, so nothing is ever merged or left out here. Who is level reads
with all others that are (`fanout/tail.py`). Who is not reads by itself, a page when the one before it was
written; one that does not read for long is told how far behind it is (`stall`), and a connection that stays stuck is
ended by its `Pipe`.

1. Each event carries the position behind it: reading on from there gives exactly the rest.
2. A page looks at a bounded number of events, so that a `where` that nothing passes holds up no one.
3. Whoever resumes from what retention has removed is told `reset` and begins at the start.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.change import Column, Row
from penstock.config import Limits
from penstock.declaration import LEDGERS, Application
from penstock.errors import ForbiddenError, NotReadyError, PositionGoneError, UnknownStreamError
from penstock.log.folder_log import FolderLog, FolderStream
from penstock.log.follower import Follower
from penstock.log.log import Block
from penstock.observe.metrics import Observer
from penstock.observe.signals import SubscriberReset, SubscriberStalled
from penstock.position import Position
from penstock.private import MASK, mask
from penstock.serve.describe.message_schemas import columns_of
from penstock.serve.fanout.messages import Message, reset, stall
from penstock.serve.fanout.receiver import Receiver
from penstock.serve.fanout.tail import Events, StreamTail, event_json
from penstock.serve.question import Question
from penstock.views.read_query import Query
from penstock.views.read_rule import ReadRule, parse_ruled
from penstock.views.unpack import rows_of

START, END = "start", "end"
PAGE_EVENTS = 1_000
PAGE_BYTES = 1024**2
"""Followers get fewer events at a time when their pages grow beyond this."""
SCAN_EVENTS = 50_000
"""Events looked at for one reply when a `where` lets few pass."""
LEVEL_S = 1.0
"""How long one that is level waits for the tail to get there, before it reads on by itself."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some events as JSON objects, and the position behind all that was looked at."""

    events: list[dict[str, Any]]
    next: Position
    looked_at: int


class StreamReads:
    """Reading streams. The calls are made on the edge's loop; the reading happens in threads."""

    def __init__(
        self, application: Application, log: FolderLog, limits: Limits | None = None, observer: Observer | None = None
    ) -> None:
        self._log = log
        self._limits, self._observer = limits or Limits(), observer or Observer()
        self._names = {s.name for s in application.streams} | {f.name for f in application.flows} | set(LEDGERS)
        self._mask = LedgerMask(application)
        self._filtered = application.filtered()
        self._waiting: set[asyncio.Event] = set()
        self._tails: dict[tuple[str, tuple[Column, ...]], StreamTail] = {}
        self._follower: Follower | None = None
        self._filter_errors: dict[str, list[int]] = {name: [0] for name in self._names}
        self._observer.counter(
            "penstock_serve_filter_errors_total",
            "Events of a stream on which a reader's filter could not be evaluated.",
            ("stream",),
            lambda: {(name,): float(count[0]) for name, count in self._filter_errors.items()},
        )

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._follower = await asyncio.to_thread(Follower, self._log.revision, lambda: self._committed(loop))

    async def stop(self) -> None:
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close)
        await asyncio.gather(*(tail.stop() for tail in self._tails.values()))

    def known(self, name: str) -> None:
        """Raises `UnknownStreamError` unless the app has a stream of this name."""
        if name not in self._names:
            names = ", ".join(sorted(self._names))
            raise UnknownStreamError(f"there is no stream '{name}'", hint=f"the app has: {names}")

    def columns(self) -> dict[str, list[Column]]:
        """Of the streams that the log has. Reads the disk: call it in a thread."""
        found = {}
        for name in self._names:
            with suppress(UnknownStreamError):
                found[name] = columns_of(self._log.find(name).schema)
        return found

    async def check(self, name: str, question: Question) -> None:
        """Raises what is wrong with a query, if its stream is there already."""
        with suppress(UnknownStreamError):
            self._query(await asyncio.to_thread(self._log.find, name), question)

    async def page(self, name: str, after: Position | str, question: Question, limit: int) -> Page:
        """At most `limit` events behind `after` (a position, or `start` or `end`)."""
        return await asyncio.to_thread(self._page, name, after, question, limit)

    async def page_within(
        self, name: str, after: Position | str, question: Question, limit: int, wait_s: float
    ) -> Page:
        """The same, waiting until there is one or time is up."""
        with self._news() as news:
            page = await self.page(name, after, question, limit)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not page.events:
                        if not page.looked_at:
                            await news.wait()
                        news.clear()
                        page = await self.page(name, page.next, question, limit)
            return page

    async def follow(
        self,
        name: str,
        since: Position | str,
        question: Question,
        receiver: Receiver,
        reached: Callable[[Position | Callable[[], Position]], None] = lambda position: None,
    ) -> None:
        """Send every event behind `since`, until cancelled; `reached` is told how far it has come, or who knows."""
        receiver.policy = "stream"
        events = PAGE_EVENTS // 10
        with self._news() as news:
            told = since = await self._beginning(name, since, question, news)
            if isinstance(since, Position):
                reached(since)
            while True:
                news.clear()
                async with receiver.turn:  # of all subscriptions on a connection one holds a page that waits
                    await self._room_for(name, since, receiver)
                    try:
                        page = await self.page(name, since, question, events)
                    except PositionGoneError as gone:
                        self._observer.emit(SubscriberReset(name, gone.message, "stream"))
                        await receiver.send(reset(gone.message))
                        since = START
                        continue
                    if page.events:
                        message = _message(name, page)
                        await receiver.send(message)
                        events = _next_size(events, len(message.payload))
                        told = page.next
                since = page.next
                reached(since)
                if not page.looked_at:
                    since, told = await self._at_the_end(name, since, told, question, receiver, reached)
                    reached(since)

    async def _at_the_end(
        self,
        name: str,
        since: Position,
        told: Position | str,
        question: Question,
        receiver: Receiver,
        reached: Callable[[Position | Callable[[], Position]], None],
    ) -> tuple[Position, Position | str]:
        """Follow with the others that are level, for as long as it keeps up; returns where it is and what it knows."""
        found = await asyncio.to_thread(self._log.find, name)
        query = self._query(found, question)
        tail = self._tail(found, query, since)
        if not tail.may_join(since):
            if tail.position == since or not tail.position.covers(since):
                tail.moved.clear()
                await _within(tail.moved, LEVEL_S)
            return since, told
        if not receiver.is_level:
            await receiver.drained()
            return since, told
        member = tail.join(query, question.masked, receiver, told)
        reached(lambda: member.position)
        try:
            await member.left.wait()
        finally:
            tail.leave(member)
        return member.position, member.told

    def _tail(self, found: FolderStream, query: Query, since: Position) -> StreamTail:
        """The one of all who may see the same columns; it begins where the first of them is."""
        key = (found.name, query.columns)
        tail = self._tails.get(key)
        if tail is None or tail.ended:
            news, size = asyncio.Event(), PAGE_EVENTS // 10
            self._waiting.add(news)

            async def read(position: Position) -> Events:
                nonlocal size
                events, taken = await asyncio.to_thread(self._decoded, found.name, position, query.columns, size)
                size = _next_size(size, taken)
                return events

            tail = self._tails[key] = StreamTail(
                found.name,
                since,
                found.schema,
                read,
                news,
                lambda event: self._mask.shown(found.name, event),
                self._filter_errors[found.name],
                self._observer,
            )
            tail.on_end(lambda: self._waiting.discard(news))
        return tail

    async def _room_for(self, name: str, since: Position | str, receiver: Receiver) -> None:
        """Wait until what was sent before is written; one that takes long is told how far behind it is."""
        waiting = asyncio.ensure_future(receiver.drained())
        try:
            done, _ = await asyncio.wait([waiting], timeout=self._limits.subscriber_stall_s)
            if not done:
                self._observer.emit(SubscriberStalled(name, receiver.transport, "stream", receiver.unsent_bytes))
                receiver.stall(await self._stall(name, since, receiver))
            await waiting
        finally:
            waiting.cancel()

    async def _stall(self, name: str, since: Position | str, receiver: Receiver) -> Callable[[], Message]:
        """How far a slow reader is behind: the events as of now, the rest as of when it reads it."""
        now = asyncio.get_running_loop().time
        began = now() - self._limits.subscriber_stall_s
        end = await asyncio.to_thread(self._log.position_end, name)
        read = since.offsets if isinstance(since, Position) else (0,) * len(end.offsets)
        events = sum(max(0, new - old) for new, old in zip(end.offsets, read, strict=False))
        return lambda: stall({"events": events, "bytes": receiver.unsent_bytes, "seconds": round(now() - began, 1)})

    async def _beginning(
        self, name: str, since: Position | str, question: Question, news: asyncio.Event
    ) -> Position | str:
        """Where to start, once the stream is there; what is wrong with the query is told here."""
        while True:
            news.clear()
            try:
                if since == END:
                    since = await asyncio.to_thread(self._log.position_end, name)
                found = await asyncio.to_thread(self._log.find, name)
                self._query(found, question)
                return since
            except UnknownStreamError:
                await news.wait()

    # In threads

    def _page(self, name: str, after: Position | str, question: Question, limit: int) -> Page:
        try:
            found = self._log.find(name)
        except UnknownStreamError:
            raise NotReadyError(
                f"the stream '{name}' is not there yet",
                detail="the process that writes it has not started",
                hint="ask again, or look at `penstock status`",
            ) from None
        query = self._query(found, question)
        at = found.position(found.bounds().starts) if after == START else after
        at = self._log.position_end(name) if not isinstance(at, Position) else at
        page = Page([], at, 0)
        while True:
            room = limit - len(page.events)
            blocks, behind = self._log.read_after(name, page.next, PAGE_EVENTS if query.where or query.rule else room)
            more = _events(blocks, page.next, behind, query, room)
            shown = [self._mask.shown(name, event) for event in more.events] if question.masked else more.events
            page = Page(page.events + shown, more.next, page.looked_at + more.looked_at)
            if not more.looked_at or len(page.events) >= limit or page.looked_at >= SCAN_EVENTS:
                return page

    def _decoded(self, name: str, after: Position, columns: Sequence[Column], limit: int) -> tuple[Events, int]:
        """What is behind a position with all columns, and the bytes of it."""
        found = self._log.find(name)
        blocks, behind = self._log.read_after(name, after, limit)
        offsets, rows, positions = list(after.offsets), list[Row](), list[Callable[[], str]]()
        for block in blocks:
            rows += rows_of(block.batch, [column.name for column in columns])
            for offset in block.offsets.to_pylist():
                offsets[block.partition] = offset + 1
                positions.append(Position("stream", behind.name, behind.epoch, tuple(offsets)).token)
        return Events(rows, positions, behind, found.schema), sum(block.batch.nbytes for block in blocks)

    def _query(self, found: FolderStream, question: Question) -> Query:
        if question.masked:
            self._mask.check(found.name, question.where)
        filtered = found.name in self._filtered or (found.name in LEDGERS and bool(self._filtered))
        return _query(found.schema, question, question.ruled(filtered), self._filter_errors[found.name])

    # Waiting

    def _committed(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the follower's thread. Whoever begins to wait looks at the log afterwards, so that nobody misses this."""
        if not self._waiting:
            return
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    def _news(self) -> _News:
        return _News(self._waiting)


class _News:
    """An event that is set whenever something was committed."""

    def __init__(self, waiting: set[asyncio.Event]) -> None:
        self._waiting = waiting
        self._event = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._waiting.add(self._event)
        return self._event

    def __exit__(self, *_: object) -> None:
        self._waiting.discard(self._event)


def _next_size(events: int, size: int) -> int:
    """How many events to read next, so that a page of large ones is not held in memory for a slow reader."""
    if size > PAGE_BYTES:
        return max(1, events // 4)
    return min(PAGE_EVENTS, events * 2) if size < PAGE_BYTES // 4 else events


async def _within(news: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(news.wait(), timeout_s)
        return True
    except TimeoutError:
        return False


def after_in(fields: Mapping[str, Any], name: str, field: str = "after") -> Position | str:
    """A position, `start` or `end`."""
    value = fields.get(field)
    if value is None:
        return START
    return value if value in (START, END) else Position.parse(str(value), "stream", name)


def _query(schema: Any, question: Question, rule: ReadRule, errors: list[int]) -> Query:
    return parse_ruled(
        rule,
        columns_of(schema),
        (),
        where=question.where,
        params=question.params,
        select=question.select,
        errors=errors,
    )


def _message(name: str, page: Page) -> Message:
    body = {"type": "events", "stream": name, "position": page.next.token(), "events": page.events}
    return Message(body, 0)


def _events(blocks: list[Block], before: Position, behind: Position, query: Query, room: int) -> Page:
    """The first `room` events that pass, each with the position behind it in this order of reading."""
    offsets = list(before.offsets)
    events: list[dict[str, Any]] = []
    looked_at = 0
    for block in blocks:
        rows = rows_of(block.batch, [column.name for column in query.columns])
        for offset, row in zip(block.offsets.to_pylist(), rows, strict=True):
            offsets[block.partition] = offset + 1
            looked_at += 1
            if query.passes(row):
                position = Position("stream", behind.name, behind.epoch, tuple(offsets))
                events.append(event_json(query, row, position.token()))
                if len(events) == room:
                    return Page(events, position, looked_at)
    return Page(events, behind, looked_at)


# The ledgers


_QUOTES = {"dead": "raw", "late": "event"}
"""By ledger, the column that quotes an event: bytes, or JSON text."""


class LedgerMask:
    """Masks private fields in what the ledgers `dead` and `late` quote, for every reader who is not an administrator.

    Whoever may read a stream sees its private fields; who may read only the ledger has no right to them. To mend and
    send again what is in `dead` takes the raw bytes, and so `admin`.
    """

    def __init__(self, application: Application) -> None:
        self._kinds = {stream.name: stream.events.kind for stream in application.streams if stream.events.private}

    def check(self, name: str, where: str | None) -> None:
        """Raises `ForbiddenError` for a filter that could find out what is masked."""
        column = _QUOTES.get(name)
        if self._kinds and column and where and re.search(rf"\b{column}\b", where, re.IGNORECASE):
            raise ForbiddenError(
                f"'{column}' of '{name}' holds private fields, so only an administrator may filter by it",
                hint="filter by stream, reason or detail, or use a key with the right admin",
            )

    def shown(self, name: str, event: dict[str, Any]) -> dict[str, Any]:
        """An event of a stream as JSON; one that quotes nothing private stays as it is."""
        column = _QUOTES.get(name)
        if not self._kinds or column is None or event.get(column) is None:
            return event
        if "stream" not in event:
            return event | {column: MASK}
        kind = self._kinds.get(event["stream"])
        return event if kind is None else event | {column: _masked(name, event[column], kind)}


def _masked(name: str, quoted: str, kind: type[msgspec.Struct]) -> str:
    if name == "dead":
        return base64.b64encode(mask(base64.b64decode(quoted), kind)).decode()
    return mask(quoted.encode(), kind).decode()
