"""Reads the end of a stream once for all who follow it there, so that a thousand followers cost one reader.

Whoever follows a stream reads the log by itself until it is level; then it joins the stream's `Tail`. That reads each
new page once, decodes it once, looks its events up in an index of all filters (`views/where_index`), and turns an event
into JSON once for all who select the same columns.

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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.change import Change, Row
from penstock.errors import PositionGoneError
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestFailed
from penstock.position import Position
from penstock.protocol import encode, wire
from penstock.schema import ID, KEY, RECEIVED, TIME
from penstock.serve.messages import Message, position_moved
from penstock.serve.receiver import Receiver
from penstock.views.query import Query
from penstock.views.where_index import FilterIndex

POSITION_S = 15.0
"""A follower learns at least this often how far it has come when events passed it by."""
HANDED = 250
"""Followers that are handed a page between two steps of the loop: about 3 ms with the writing."""
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
class Followed:
    """A follower at the end of a stream."""

    receiver: Receiver
    tail: Tail
    query: Query
    masked: bool
    told: Position
    """What it knows of."""
    at: Position | None = None
    """Where it is, where that is not where the tail is: it has left, or is about to be handed a page."""
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def position(self) -> Position:
        """The position up to which it was handed everything."""
        return self.at or self.tail.position


class Tail:
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
        self._members: dict[tuple[Query, bool], set[Followed]] = {}
        self._index: FilterIndex[tuple[Query, bool]] = FilterIndex(errors)
        self._task = asyncio.create_task(self._run(), name=f"tail {name}")

    def __len__(self) -> int:
        return sum(map(len, self._members.values()))

    @property
    def ended(self) -> bool:
        return self._task.done()

    def join(self, query: Query, masked: bool, receiver: Receiver, told: Position) -> Followed:
        """The caller is where the tail is."""
        member, group = Followed(receiver, self, query, masked, told), (query, masked)
        if group not in self._members:
            self._members[group] = set()
            self._index.add(group, query.filters)
        self._members[group].add(member)
        return member

    def leave(self, member: Followed) -> None:
        """Does nothing for one that has left."""
        group = (member.query, member.masked)
        members = self._members.get(group, set())
        if member not in members:
            return
        member.at = member.position
        member.left.set()
        members.discard(member)
        if not members:
            del self._members[group]
            self._index.remove(group)
        if not self._members:
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
            for member in [member for members in self._members.values() for member in members]:
                self.leave(member)
            self.moved.set()

    async def _hand_on(self, events: Events) -> None:
        page = _Page(self.name, events, self._mask)
        found = self._index.touched([Change((i,), None, row) for i, row in enumerate(events.rows)])
        everything = list(range(len(events.rows)))
        numbers = {group: [int(change.key[0]) for change in changes] for group, changes in found.items()}
        numbers |= dict.fromkeys(self._index.everywhere, everything)
        due = [(member, message) for group, some in numbers.items() for member, message in self._due(group, some, page)]
        for member, _ in due:
            member.at = self.position
        self.position = events.next
        self.moved.set()
        for number, (member, message) in enumerate(due, 1):
            if not member.left.is_set():
                self._hand(member, message)
            if number % HANDED == 0:
                await asyncio.sleep(0)

    def _due(
        self, group: tuple[Query, bool], numbers: Iterable[int], page: _Page
    ) -> Iterable[tuple[Followed, Message]]:
        query, masked = group
        passing = [number for number in numbers if query.passes(page.rows[number])]
        if not passing:
            return ()
        message = page.message(query, masked, passing)
        return [(member, message) for member in self._members.get(group, ())]

    def _hand(self, member: Followed, message: Message) -> None:
        taken = member.receiver.offer(message)
        if taken is not None:
            member.at, member.told = None, self.position
        if not taken:
            self.leave(member)

    async def _announce(self) -> None:
        moved = position_moved(self.position.token(), 0)
        members = [member for some in self._members.values() for member in some]
        for number, member in enumerate(members, 1):
            if not member.left.is_set() and member.told != self.position:
                member.told = self.position
                member.receiver.offer(moved)
            if number % HANDED == 0:
                await asyncio.sleep(0)


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
