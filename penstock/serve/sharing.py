"""Evaluates a query once for all subscribers that share it, and brings each from where it is to the present.

1. No gap and no duplicate: a subscriber joins exactly at the offset up to which it was told everything, in one step of
   the loop; after that the group tells it every batch once, in order.
2. One evaluation and one encoded message per batch, however many have joined.
3. A batch that changes nothing for the query sends nothing; positions strictly increase.
4. A group works from the view's history at its own pace: a large batch or a new query delays no other group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.change import Key, Row
from penstock.config import Limits
from penstock.observe.metrics import Observer
from penstock.observe.signals import GroupFailed, MessagesSent, SubscriberJoined
from penstock.serve.answers import SMALL_ROWS, answer, json_parts
from penstock.serve.messages import Message, MessageMaker
from penstock.views.history import Batch
from penstock.views.query import Query
from penstock.views.store import Captured, Content, View
from penstock.views.top import RESERVE_ROWS, Told, TopState, told_between

T = TypeVar("T")

LINGER_S = 10.0
"""How long a group without members keeps going, so that a client that reconnects finds it."""
BACKLOG_BYTES = 4 * 1024**2
"""Encoded messages that a group keeps for those who catch up."""
REPLAY_BYTES = 4 * 1024**2
"""How much history is evaluated at once for one who catches up."""
LARGE_CHANGES = 1_000
"""Above this a batch is evaluated and encoded in a thread: on the loop it would take over 2 ms."""
FAN_OUT = 500
"""Connections written to between two steps of the loop: about 2 ms."""
FAILED_S = 1.0
"""How long a group that failed waits before its subscribers begin again."""


class Receiver(Protocol):
    """The way to one subscriber. `offer` must not wait, `send` may; both keep the order."""

    transport: str

    def offer(self, message: Message) -> None: ...

    async def send(self, message: Message) -> None: ...


@dataclass(eq=False, slots=True)
class Member:
    """A subscriber in a group."""

    receiver: Receiver
    at: int
    """The offset up to which it has everything."""
    told: int
    """The offset that it knows of; behind `at` where batches changed nothing for it."""


class Gone(Exception):
    """A subscriber cannot be brought up to date by changes."""


class Group:
    """All subscribers of one query on one build of a view. Belongs to the edge's loop."""

    def __init__(self, view: View, content: Content, query: Query, limits: Limits, observer: Observer) -> None:
        self.view, self.content, self.query = view, content, query
        self.members: set[Member] = set()
        self.cursor = content.offset
        """The offset up to which members were told everything."""
        self.ended = asyncio.Event()
        self._limits, self._observer = limits, observer
        self._make = MessageMaker(view.name, query, content.at)
        self._state: TopState | None = None
        self._backlog: deque[Message] = deque()
        self._backlog_bytes = 0
        self._backlog_start = content.offset
        """The backlog holds every message behind this offset."""
        self._users = 0
        self._ready, self._woken = asyncio.Event(), asyncio.Event()
        self._unlisten = view.listen(self._woken.set)
        self._still, self._replaying = asyncio.Lock(), asyncio.Lock()
        self._task = asyncio.create_task(self._run(), name=f"group {view.name}")

    # For subscribers

    async def follow(self, receiver: Receiver, since: int | None) -> None:
        """Tell a subscriber everything behind `since` (None: a snapshot first) until the build is replaced.

        Raises `Gone` when what it missed is no longer known.
        """
        self._users += 1
        try:
            await self._ready.wait()
            start = "snapshot" if since is None else "resume"
            if self.ended.is_set():
                return
            self._observer.emit(SubscriberJoined(self.view.name, receiver.transport, start))
            at = told = await self._snapshot(receiver) if since is None else since
            while at < self.cursor:
                messages, at = await self._missed(at)
                for message in messages:
                    await receiver.send(message)
                    told = message.end
            await self._stay(Member(receiver, at, told))
        finally:
            self._users -= 1

    async def _stay(self, member: Member) -> None:
        self.members.add(member)
        try:
            await self.ended.wait()
        finally:
            self.members.discard(member)

    def announce(self, receiver: Receiver | None = None) -> None:
        """Tell members (this one, or all) how far they have come, where batches have passed them by."""
        asked = (member for member in self.members if receiver in (None, member.receiver))
        behind = [member for member in asked if member.told < self.cursor]
        if behind:
            moved = self._make.moved(self.cursor)
            for member in behind:
                member.told = self.cursor
                member.receiver.offer(moved)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self.ended.set()  # a task that was cancelled before it began did not

    # Snapshots

    async def _snapshot(self, receiver: Receiver) -> int:
        """Send all visible rows; returns the offset that they are of."""
        if self.query.limit is None:
            offset = self.content.offset
            rows = await answer(self.query, self.content)
        else:
            async with self._still:
                offset = self.cursor
                rows = self._present().rows()
        size = self._limits.snapshot_part_rows
        parts = max(1, -(-len(rows) // size))
        number = 0
        async for part in json_parts(self._make.codec, rows, size):
            number += 1
            await receiver.send(self._make.snapshot(part, offset, number, parts))
        return offset

    # What was missed

    async def _missed(self, offset: int) -> tuple[list[Message], int]:
        """Messages behind `offset`, and the offset that they lead to."""
        if offset < self._backlog_start:
            async with self._replaying:
                if offset < self._backlog_start:
                    return await self._replay(offset)
        return [message for message in self._backlog if message.end > offset], self.cursor

    async def _replay(self, offset: int) -> tuple[list[Message], int]:
        """Evaluate history again, up to where the backlog begins; whoever comes next finds it in the backlog."""
        target = self._backlog_start
        known = self.content.history.after(offset)
        if known is None:
            raise Gone("the position is older than what is kept")
        batches: Sequence[Batch] = [batch for batch in known if batch.end <= target]
        if self.query.limit is None:
            batches = _page(batches)
            messages = await self._evaluated(TopState(self.query, {}), batches)
        else:
            messages = await self._evaluated(await self._state_before(known), batches)
        reached = batches[-1].end
        if reached == target == self._backlog_start:
            self._backlog.extendleft(reversed(messages))
            self._backlog_bytes += sum(len(message.payload) for message in messages)
            self._backlog_start = offset
        return messages, reached

    async def _state_before(self, batches: Sequence[Batch]) -> TopState:
        """The state before these batches, which lead up to the present: the present rows, taken back.

        Its reserve covers every change that can be applied to it on the way back to the present.
        """
        rows = Undone(self.content.captured(), batches)
        reserve = RESERVE_ROWS + sum(len(batch.changes) for batch in batches)
        return await _maybe_in_thread(len(rows), lambda: TopState(self.query, rows, reserve))

    async def _evaluated(self, state: TopState, batches: Sequence[Batch]) -> list[Message]:
        def evaluate() -> list[Message]:
            told = ((batch, state.apply(batch.changes)) for batch in batches)
            return [m for batch, t in told if (m := self._message(batch, t)) is not None]

        return await _maybe_in_thread(sum(len(batch.changes) for batch in batches), evaluate)

    # The present

    async def _run(self) -> None:
        try:
            await self._build()
            self._ready.set()
            while self.view.content is self.content:
                self._woken.clear()
                while (batch := self.content.history.next(self.cursor)) is not None:
                    await self._step(batch)
                if not await self._wanted():
                    return
        except Gone:
            return
        except Exception as error:
            self._observer.emit(GroupFailed(self.view.name, f"{type(error).__name__}: {error}"))
            await asyncio.sleep(FAILED_S)
        finally:
            self._unlisten()
            self._ready.set()
            self.ended.set()

    async def _wanted(self) -> bool:
        """Wait for news; False when nobody has been here for a while."""
        try:
            await asyncio.wait_for(self._woken.wait(), LINGER_S)
            return True
        except TimeoutError:
            return self._users > 0

    async def _build(self) -> None:
        """The state of the view's rows at this moment, from which steps go on."""
        if self.query.limit is None:
            self._state = TopState(self.query, {})
            return
        captured = self.content.captured()
        self._state = await _maybe_in_thread(len(captured), lambda: TopState(self.query, captured))
        self.cursor = self._backlog_start = captured.offset

    async def _step(self, batch: Batch) -> None:
        if batch.start != self.cursor:
            raise Gone("history has outrun this group")
        async with self._still:
            state = self._present()
            told = await _maybe_in_thread(
                len(batch.changes), lambda: state.apply(batch.changes), threshold=LARGE_CHANGES
            )
            if told is None:
                told = await self._rebuilt(batch)
            message = await _maybe_in_thread(len(told[0]), lambda: self._message(batch, told), threshold=LARGE_CHANGES)
            self.cursor = batch.end
        if message is not None:
            await self._publish(message)

    async def _rebuilt(self, batch: Batch) -> Told:
        """Too few rows were left above the bound: rank the view again as it was behind this batch."""
        before = self._present().shown()
        later = self.content.history.after(batch.end)
        if later is None:
            raise Gone("history has outrun this group")
        self._state = await self._state_before(later)
        return told_between(before, self._state.shown())

    async def _publish(self, message: Message) -> None:
        self._backlog.append(message)
        self._backlog_bytes += len(message.payload)
        while self._backlog_bytes > BACKLOG_BYTES and len(self._backlog) > 1:
            gone = self._backlog.popleft()
            self._backlog_bytes -= len(gone.payload)
            self._backlog_start = gone.end
        members = list(self.members)
        for number, member in enumerate(members):
            if member.at < message.end:
                member.at = member.told = message.end
                member.receiver.offer(message)
            if number % FAN_OUT == FAN_OUT - 1:
                await asyncio.sleep(0)
        self._observer.emit(MessagesSent(self.view.name, len(members)))

    def _present(self) -> TopState:
        assert self._state is not None
        return self._state

    def _message(self, batch: Batch, told: Told | None) -> Message | None:
        if told is None:
            raise Gone("too few rows were kept")
        upserts, deletes = told
        return self._make.changes(upserts, deletes, batch.end, batch.meta) if upserts or deletes else None


class Undone:
    """The rows as they were before some batches, without copying a large view."""

    def __init__(self, rows: Captured, batches: Sequence[Batch]) -> None:
        self._rows = rows
        self._before: dict[Key, Row | None] = {}
        for batch in reversed(batches):
            for change in batch.changes:
                self._before[change.key] = change.before

    def __len__(self) -> int:
        return len(self._rows) + len(self._before)

    def items(self) -> Iterator[tuple[Key, Row]]:
        yield from ((key, row) for key, row in self._rows.items() if key not in self._before)
        yield from ((key, row) for key, row in self._before.items() if row is not None)


def _page(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The first batches, as many as `REPLAY_BYTES` allow, but at least one."""
    size = 0
    for number, batch in enumerate(batches):
        size += batch.bytes
        if size > REPLAY_BYTES:
            return batches[: max(1, number)]
    return batches


async def _maybe_in_thread(size: int, call: Callable[[], T], threshold: int = SMALL_ROWS) -> T:
    """On the loop when there is little to do, else in a thread."""
    return call() if size <= threshold else await asyncio.to_thread(call)
