"""Reads the end of a stream once for all who follow it there, so that a thousand followers cost one reader.

Whoever follows a stream reads the log by itself until it is level; then it joins the stream's `StreamTail`. That reads
each new page once, decodes it once, looks its events up in an index of all filters (`views/where/filter_index.py`), and
turns an event into JSON once for all who select the same columns.

1. A follower joins in one step of the loop, exactly where the tail is, and leaves with the position up to which it was
   handed everything: no gap and no duplicate between its own reading and the tail's.
2. Nobody waits for a slow follower: one whose connection has enough waiting leaves, and reads by itself when it has
   read what waits. Nothing is merged.
3. A follower that nothing is found for is not touched: its position is the tail's.
4. A tail ends when nobody is there, and when it cannot go on (another epoch, another schema, an error): then everybody
   reads by itself, finds out why, and may meet again at a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.change import Change, Row
from penstock.errors import PositionGoneError
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestFailed
from penstock.position import Position
from penstock.protocol import encode, wire
from penstock.schema import ID, KEY, RECEIVED, TIME
from penstock.serve.fanout.messages import Message, position_moved
from penstock.serve.fanout.receiver import Receiver
from penstock.views.read_query import Query
from penstock.views.where.filter_index import FilterIndex

POSITION_S = 15.0
"""A follower learns at least this often how far it has come when events passed it by."""
HANDED = 250
"""Followers that are handed a page between two steps of the loop: about 3 ms with the writing."""
TRIED = 500
"""Events that are looked up, or tried on filters, between two steps of the loop: about 1 ms."""
_SYSTEM = (ID, KEY, TIME, RECEIVED)

Mask = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Events:
    """What was read at once, decoded: rows of all columns, each with the position behind it."""

    rows: Sequence[Row]
    behind: Sequence[Callable[[], str]]
    next: Position
    schema: object
    """What the rows are of; another one ends a tail."""


Read = Callable[[Position], Awaitable[Events]]


@dataclass(eq=False, slots=True)
class Same:
    """All followers of one query, which is evaluated once for them."""

    query: Query
    masked: bool
    members: set[Followed] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Followed:
    """A follower at the end of a stream."""

    receiver: Receiver
    tail: StreamTail
    group: Same
    told: Position | str
    """What it knows of: a position, or where it asked to begin."""
    at: Position | None = None
    """Where it is, where that is not where the tail is: it has left, or is about to be handed a page."""
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def position(self) -> Position:
        """The position up to which it was handed everything."""
        return self.at or self.tail.position


class StreamTail:
    """The end of one stream. Belongs to the edge's loop."""

    def __init__(
        self,
        name: str,
        position: Position,
        schema: object,
        read: Read,
        news: asyncio.Event,
        mask: Mask,
        errors: list[int],
        observer: Observer,
    ) -> None:
        """`read` gives what is behind a position; `news` is set when something was committed."""
        self.name, self.position, self.schema = name, position, schema
        self.moved = asyncio.Event()
        """Set whenever it has moved or ended; whoever waits for that clears it."""
        self._read, self._news, self._mask, self._observer = read, news, mask, observer
        self._busy = False
        """A page is being looked at: who came now would miss it."""
        self._groups: dict[tuple[Query, bool], Same] = {}
        self._index: FilterIndex[Same] = FilterIndex(errors)
        self._task = asyncio.create_task(self._run(), name=f"tail {name}")

    def __len__(self) -> int:
        return sum(len(group.members) for group in self._groups.values())

    @property
    def ended(self) -> bool:
        return self._task.done()

    def may_join(self, position: Position) -> bool:
        return not self._busy and not self.ended and self.position == position

    def join(self, query: Query, masked: bool, receiver: Receiver, told: Position | str) -> Followed:
        """The caller is where the tail is: `may_join` has said so in this step of the loop."""
        group = self._groups.get((query, masked))
        if group is None:
            group = self._groups[query, masked] = Same(query, masked)
            self._index.add(group, query.filters)
        member = Followed(receiver, self, group, told)
        group.members.add(member)
        return member

    def leave(self, member: Followed) -> None:
        """Does nothing for one that has left."""
        group = member.group
        if member not in group.members:
            return
        member.at = member.position
        member.left.set()
        group.members.discard(member)
        if not group.members:
            del self._groups[group.query, group.masked]
            self._index.remove(group)
        if not self._groups:
            self._task.cancel()

    def on_end(self, call: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: call())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    # Reading

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        announce_at = loop.time() + POSITION_S / 2
        try:
            while True:
                self._news.clear()
                while (events := await self._read(self.position)).rows:
                    if events.schema != self.schema:
                        return
                    await self._hand_on(events)
                try:
                    async with asyncio.timeout_at(announce_at):
                        await self._news.wait()
                except TimeoutError:
                    await self._announce()
                    announce_at = loop.time() + POSITION_S / 2
        except PositionGoneError:
            pass  # those who are here find out by themselves
        except Exception as error:
            self._observer.emit(RequestFailed(f"the end of {self.name}", f"{type(error).__name__}: {error}"))
        finally:
            for member in self._all():
                self.leave(member)
            self.moved.set()

    async def _hand_on(self, events: Events) -> None:
        self._busy = True
        due = await self._due(events)
        for member, _ in due:
            if not member.left.is_set():
                member.at = self.position
        self.position, self._busy = events.next, False
        self.moved.set()
        for number, (member, message) in enumerate(due, 1):
            if not member.left.is_set():
                self._hand(member, message)
            if number % HANDED == 0:
                await asyncio.sleep(0)

    async def _due(self, events: Events) -> list[tuple[Followed, Message]]:
        """Who is to be handed what, found with the loop given back in between."""
        page = _Page(self.name, events, self._mask)
        changes = [Change((i,), None, row) for i, row in enumerate(events.rows)]
        found: dict[Same, Sequence[Change]] = {}
        for start in range(0, len(changes), TRIED):
            self._index.touched(changes[start : start + TRIED], found)
            await asyncio.sleep(0)
        for group in self._index.everywhere:
            found[group] = changes
        due: list[tuple[Followed, Message]] = []
        tried = 0
        for group, some in found.items():
            message = self._passing(group, some, page)
            if message is not None:
                due += [(member, message) for member in group.members]
            tried += len(some) + 1
            if tried > TRIED:
                tried = 0
                await asyncio.sleep(0)
        return due

    def _passing(self, group: Same, changes: Sequence[Change], page: _Page) -> Message | None:
        """What a group is told of these events, if any of them passes."""
        passes = group.query.passes
        numbers = [change.key[0] for change in changes if change.after is not None and passes(change.after)]
        return page.message(group.query, group.masked, numbers) if numbers else None

    def _hand(self, member: Followed, message: Message) -> None:
        taken = member.receiver.offer(message)
        if taken is not None:
            member.at, member.told = None, self.position
        if not taken:
            self.leave(member)

    async def _announce(self) -> None:
        moved = position_moved(self.position.token(), 0)
        for number, member in enumerate(self._all(), 1):
            if not member.left.is_set() and member.told != self.position:
                member.told = self.position
                member.receiver.offer(moved)
            if number % HANDED == 0:
                await asyncio.sleep(0)

    def _all(self) -> list[Followed]:
        return [member for group in self._groups.values() for member in group.members]


class _Page:
    """The events of a page as JSON: each once for all who select the same columns."""

    def __init__(self, name: str, events: Events, mask: Mask) -> None:
        self.rows = events.rows
        self._behind, self._mask = events.behind, mask
        whole = encode({"type": "events", "stream": name, "position": events.next.token(), "events": []})
        self._head, self._position = whole[:-2], events.next.token()
        self._made: dict[tuple[Any, ...], dict[int, bytes]] = {}
        self._messages: dict[tuple[Any, ...], Message] = {}

    def message(self, query: Query, masked: bool, numbers: Sequence[int]) -> Message:
        form = (query.select, masked)
        key = (form, *numbers)
        if key not in self._messages:
            made = self._made.setdefault(form, {})
            for number in numbers:
                if number not in made:
                    made[number] = self._event(query, masked, number)
            payload = b"%b%b]}" % (self._head, b",".join([made[number] for number in numbers]))
            self._messages[key] = Message.of_json("events", payload, self._position, 0)
        return self._messages[key]

    def _event(self, query: Query, masked: bool, number: int) -> bytes:
        event = event_json(query, self.rows[number], self._behind[number]())
        return encode(self._mask(event) if masked else event)


def event_json(query: Query, row: Row, position: str) -> dict[str, Any]:
    """An event as a reader sees it: its position, the fields that all events have, and then its own."""
    names = [column.name for column in query.output]
    values = dict(zip(names, query.project(row), strict=True))
    order = [*(n for n in _SYSTEM if n in values), *(n for n in names if n not in _SYSTEM)]
    return {"_position": position} | {name: wire(values[name]) for name in order}
