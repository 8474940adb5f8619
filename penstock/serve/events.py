"""Reads streams for whoever wants the events themselves: a page at a time, or following as they come.

The log is the buffer: a slow reader just reads later, so nothing is ever merged or left out here. A page is read when
the one before it was written; a reader that does not read for long is told how far behind it is (`stall`), and a
connection that stays stuck is ended by its `Pipe`.

1. Each event carries the position behind it: reading on from there gives exactly the rest.
2. A page looks at a bounded number of events, so that a `where` that nothing passes holds up no one.
3. Whoever resumes from what retention has removed is told `reset` and begins at the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.change import Column
from penstock.config import Limits
from penstock.declaration import LEDGERS, Application
from penstock.errors import NotReadyError, PositionGoneError, UnknownStreamError
from penstock.log.folder import FolderLog, Found
from penstock.log.follow import Follower
from penstock.log.log import Block
from penstock.observe.metrics import Observer
from penstock.observe.signals import SubscriberReset, SubscriberStalled
from penstock.position import Position
from penstock.protocol import wire
from penstock.schema import ID, KEY, RECEIVED, TIME, simple_type
from penstock.serve.asked import Asked
from penstock.serve.ledgers import LedgerMask
from penstock.serve.messages import Message, reset, stall
from penstock.serve.receiver import Receiver
from penstock.views.query import Query
from penstock.views.rule import ReadRule, parse_ruled
from penstock.views.unpack import rows_of

START, END = "start", "end"
PAGE_EVENTS = 1_000
SCAN_EVENTS = 50_000
"""Events looked at for one reply when a `where` lets few pass."""
POSITION_S = 15.0
_SYSTEM = (ID, KEY, TIME, RECEIVED)


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
        self._follower = await asyncio.to_thread(Follower, self._log.tick, lambda: self._committed(loop))

    async def stop(self) -> None:
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close)

    def known(self, name: str) -> None:
        """Raises `UnknownStreamError` unless the app has a stream of this name."""
        if name not in self._names:
            names = ", ".join(sorted(self._names))
            raise UnknownStreamError(f"there is no stream '{name}'", hint=f"the app has: {names}")

    async def check(self, name: str, asked: Asked) -> None:
        """Raises what is wrong with a query, if its stream is there already."""
        with suppress(UnknownStreamError):
            self._query(await asyncio.to_thread(self._log.find, name), asked)

    async def page(self, name: str, after: Position | str, asked: Asked, limit: int) -> Page:
        """At most `limit` events behind `after` (a position, or `start` or `end`)."""
        return await asyncio.to_thread(self._page, name, after, asked, limit)

    async def page_within(self, name: str, after: Position | str, asked: Asked, limit: int, wait_s: float) -> Page:
        """The same, waiting until there is one or time is up."""
        with self._news() as news:
            page = await self.page(name, after, asked, limit)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not page.events:
                        if not page.looked_at:
                            await news.wait()
                        news.clear()
                        page = await self.page(name, page.next, asked, limit)
            return page

    async def follow(
        self,
        name: str,
        since: Position | str,
        asked: Asked,
        receiver: Receiver,
        reached: Callable[[Position], None] = lambda position: None,
    ) -> None:
        """Send every event behind `since`, until cancelled; `reached` is told how far it has come."""
        with self._news() as news:
            told = since = await self._beginning(name, since, asked, news)
            if isinstance(since, Position):
                reached(since)
            while True:
                news.clear()
                try:
                    page = await self.page(name, since, asked, PAGE_EVENTS)
                except PositionGoneError as gone:
                    self._observer.emit(SubscriberReset(name, gone.message, "stream"))
                    await receiver.send(reset(gone.message))
                    since = START
                    continue
                if page.events:
                    await self._send(name, page, receiver)
                    told = page.next
                since = page.next
                reached(since)
                if not page.events and not page.looked_at and not await _within(news, POSITION_S) and told != since:
                    await receiver.send(Message({"type": "position", "position": since.token()}, 0))
                    told = since

    async def _send(self, name: str, page: Page, receiver: Receiver) -> None:
        """Send a page when the one before it was written; nothing more is read until then."""
        waiting = asyncio.ensure_future(receiver.drained())
        try:
            done, _ = await asyncio.wait([waiting], timeout=self._limits.subscriber_stall_s)
            if not done:
                self._observer.emit(SubscriberStalled(name, receiver.transport, "stream", receiver.unsent_bytes))
                receiver.stall(await self._stall(name, page, receiver))
            await waiting
        finally:
            waiting.cancel()
        await receiver.send(_message(name, page))

    async def _stall(self, name: str, page: Page, receiver: Receiver) -> Callable[[], Message]:
        """How far a slow reader is behind: the events as of now, the rest as of when it reads it."""
        now = asyncio.get_running_loop().time
        began = now() - self._limits.subscriber_stall_s
        end = await asyncio.to_thread(self._log.position_end, name)
        missed = sum(max(0, new - old) for new, old in zip(end.offsets, page.next.offsets, strict=True))
        events = missed + len(page.events)
        return lambda: stall({"events": events, "bytes": receiver.unsent_bytes, "seconds": round(now() - began, 1)})

    async def _beginning(self, name: str, since: Position | str, asked: Asked, news: asyncio.Event) -> Position | str:
        """Where to start, once the stream is there; what is wrong with the query is told here."""
        while True:
            news.clear()
            try:
                if since == END:
                    since = await asyncio.to_thread(self._log.position_end, name)
                found = await asyncio.to_thread(self._log.find, name)
                self._query(found, asked)
                return since
            except UnknownStreamError:
                await news.wait()

    # In threads

    def _page(self, name: str, after: Position | str, asked: Asked, limit: int) -> Page:
        try:
            found = self._log.find(name)
        except UnknownStreamError:
            raise NotReadyError(
                f"the stream '{name}' is not there yet",
                detail="the process that writes it has not started",
                hint="ask again, or look at `penstock status`",
            ) from None
        query = self._query(found, asked)
        at = found.position(found.bounds().starts) if after == START else after
        at = self._log.position_end(name) if not isinstance(at, Position) else at
        page = Page([], at, 0)
        while True:
            room = limit - len(page.events)
            blocks, behind = self._log.read_after(name, page.next, PAGE_EVENTS if query.where or query.rule else room)
            more = _events(blocks, page.next, behind, query, room)
            shown = [self._mask.shown(name, event) for event in more.events] if asked.masked else more.events
            page = Page(page.events + shown, more.next, page.looked_at + more.looked_at)
            if not more.looked_at or len(page.events) >= limit or page.looked_at >= SCAN_EVENTS:
                return page

    def _query(self, found: Found, asked: Asked) -> Query:
        if asked.masked:
            self._mask.check(found.name, asked.where)
        filtered = found.name in self._filtered or (found.name in LEDGERS and bool(self._filtered))
        return _query(found.schema, asked, asked.ruled(filtered), self._filter_errors[found.name])

    # Waiting

    def _committed(self, loop: asyncio.AbstractEventLoop) -> None:
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


async def _within(news: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(news.wait(), timeout_s)
        return True
    except TimeoutError:
        return False


def after_in(fields: Mapping[str, Any], name: str, field: str = "after") -> Position | str:
    """A position, `start` or `end`."""
    value = fields.get(field) or START
    return value if value in (START, END) else Position.parse(str(value), "stream", name)


def _query(schema: Any, asked: Asked, rule: ReadRule, errors: list[int]) -> Query:
    columns = [Column(field.name, simple_type(field.type)) for field in schema]
    return parse_ruled(rule, columns, (), where=asked.where, params=asked.params, select=asked.select, errors=errors)


def _message(name: str, page: Page) -> Message:
    body = {"type": "events", "stream": name, "position": page.next.token(), "events": page.events}
    return Message(body, 0)


def _events(blocks: list[Block], before: Position, behind: Position, query: Query, room: int) -> Page:
    """The first `room` events that pass, each with the position behind it in this order of reading."""
    offsets = list(before.offsets)
    names = [column.name for column in query.output]
    order = [*(n for n in _SYSTEM if n in names), *(n for n in names if n not in _SYSTEM)]
    events: list[dict[str, Any]] = []
    looked_at = 0
    for block in blocks:
        rows = rows_of(block.batch, [column.name for column in query.columns])
        for offset, row in zip(block.offsets.to_pylist(), rows, strict=True):
            offsets[block.partition] = offset + 1
            looked_at += 1
            if query.passes(row):
                values = dict(zip(names, query.project(row), strict=True))
                position = Position("stream", behind.name, behind.epoch, tuple(offsets))
                events.append({"_position": position.token()} | {name: wire(values[name]) for name in order})
                if len(events) == room:
                    return Page(events, position, looked_at)
    return Page(events, behind, looked_at)
