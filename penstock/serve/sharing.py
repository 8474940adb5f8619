"""Evaluates a query once for all subscribers that share it, and brings each from where it is to the present.

1. No gap and no duplicate: a subscriber joins exactly at the offset up to which it was told everything, in one step of
   the loop; after that the group tells it every batch once, in order.
2. One evaluation and one encoded message per batch, however many have joined.
3. A batch that changes nothing for the query sends nothing; positions strictly increase.
4. A group gets what is due to it from the view's `Dispatch` and works at its own pace: what is little is done at once,
   a large batch or a new query in a task of its own, which delays no other group. A group that nothing is due to does
   nothing at all: its cursor is the dispatch's.
5. Nobody waits for a slow member: it falls behind, and gets one message that merges what it missed once it has read
   (`serve/conflation.py`). A member with the policy `every_change` is cut instead, and resumes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.change import Key, Row
from penstock.config import Limits
from penstock.declaration import Policy
from penstock.observe.metrics import Observer
from penstock.observe.signals import (
    BatchesConflated,
    GroupFailed,
    MessagesSent,
    SubscriberJoined,
    SubscriberStalled,
)
from penstock.serve.answers import SMALL_ROWS, answer, json_parts
from penstock.serve.conflation import Net, Shown, net_changes, shown_rows
from penstock.serve.dispatch import FAILED_S, Dispatch, Due
from penstock.serve.messages import Message, MessageMaker, stall
from penstock.serve.receiver import Receiver
from penstock.views.history import Batch
from penstock.views.query import Query, told_of
from penstock.views.store import Captured
from penstock.views.top import RESERVE_ROWS, Told, TopState, told_between

T = TypeVar("T")

LINGER_S = 10.0
"""How long a group without members keeps going, so that a client that reconnects finds it."""
REPLAY_BYTES = 4 * 1024**2
"""How much history is evaluated at once for one who catches up."""
LARGE_CHANGES = 1_000
"""Above this a batch is evaluated and encoded in a thread: on the loop it would take over 2 ms."""
LARGE_BYTES = 64 * 1024
"""A message above this is compressed in a thread: on the loop it would take over 1 ms."""
FAN_OUT = 500
"""Connections written to between two steps of the loop: about 2 ms."""


@dataclass(eq=False, slots=True)
class Member:
    """A subscriber in a group."""

    receiver: Receiver
    at: int
    """The offset up to which it has everything."""
    told: int
    """The offset that it knows of; behind `at` where batches changed nothing for it."""
    policy: Policy = "conflate"
    behind: bool = False
    """It is not offered batches: it fetches them merged, when it has read or when its pace allows."""
    shown: Shown | None = None
    """What it shows, while it is behind; None where that is not known, or not needed because there is no limit."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """There is something for it to do."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """It need not wait for its pace any longer."""


class Gone(Exception):
    """A subscriber cannot be brought up to date by changes."""


class Group:
    """All subscribers of one query on one build of a view. Belongs to the edge's loop."""

    def __init__(self, dispatch: Dispatch, query: Query, limits: Limits, observer: Observer) -> None:
        self.view, self.content, self.query = dispatch.view, dispatch.content, query
        content = self.content
        self.members: set[Member] = set()
        self.ended = asyncio.Event()
        self._dispatch, self._limits, self._observer = dispatch, limits, observer
        self._make = MessageMaker(self.view.name, dispatch.codec(query), content.at)
        self._start = content.offset
        """Where it began; what came before is not due to it."""
        self._due: deque[Due] = deque()
        """Taken out when members that are not behind have it all."""
        self._state: TopState | None = None
        self._backlog: deque[Message] = deque()
        self._backlog_bytes = 0
        self._backlog_start = content.offset
        """The backlog holds every message behind this offset."""
        self._merged: dict[tuple[int, int], Net] = {}
        """What members that were behind got last, by the offsets it leads from and to: equally slow ones share it."""
        self._stood: int | None = None
        """Where it was when it ended."""
        self._telling: Message | None = None
        """On its way to members: the cursor is behind it already, but some have not got it."""
        self._users = 0
        self._leaving: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        self._still, self._replaying = asyncio.Lock(), asyncio.Lock()
        self._working: asyncio.Task[None] | None = None
        dispatch.add(self)
        self._unused()
        if query.limit is None:
            self._ready.set()
        else:
            self._work()

    @property
    def cursor(self) -> int:
        """The offset up to which members were told everything."""
        if self._stood is not None:
            return self._stood
        return self._due[0].batch.start if self._due else max(self._start, self._dispatch.offset)

    # For subscribers

    async def follow(self, receiver: Receiver, since: int | None, policy: Policy = "conflate") -> None:
        """Tell a subscriber everything behind `since` (None: a snapshot first) until the build is replaced.

        Raises `Gone` when what it missed is no longer known.
        """
        self._used()
        receiver.policy = policy
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
            await self._stay(Member(receiver, at, told, policy))
        finally:
            self._users -= 1
            if not self._users:
                self._unused()

    async def _stay(self, member: Member) -> None:
        """Batches are offered to it from now on; what it must wait for, it waits for here."""
        self.members.add(member)
        member.receiver.on_pace = lambda: self._paced(member)
        self._paced(member)
        try:
            while not self.ended.is_set():
                await member.woken.wait()
                member.woken.clear()
                if member.behind and not self.ended.is_set():
                    await self._catch_up(member)
        finally:
            self.members.discard(member)

    def announce(self, receiver: Receiver | None = None) -> None:
        """Tell members (this one, or all) how far they have come, where batches have passed them by."""
        if self._telling is not None or self.ended.is_set():
            return
        asked = (member for member in self.members if receiver in (None, member.receiver))
        passed = [member for member in asked if member.told < self.cursor]
        moved = self._make.moved(self.cursor) if passed else None
        for member in passed:
            if member.behind and member.at < self.cursor:
                member.woken.set()  # it will find out itself whether anything changed for it
            elif moved is not None:
                member.at = member.told = self.cursor
                member.receiver.offer(moved)

    def end(self) -> None:
        """The build is replaced, or nobody is interested any more."""
        if self.ended.is_set():
            return
        self._stood = self.cursor  # what is due was told to nobody
        self.ended.set()
        self._dispatch.remove(self)
        self._due.clear()
        self._ready.set()
        if self._leaving is not None:
            self._leaving.cancel()
        for member in self.members:
            member.woken.set()
            member.hurry.set()

    async def stop(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
        self.end()

    def _used(self) -> None:
        self._users += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _unused(self) -> None:
        """Nobody is here; whoever comes back soon finds it."""
        if not self.ended.is_set():
            self._leaving = asyncio.get_running_loop().call_later(LINGER_S, self.end)

    # Members that are behind

    def _fall(self, member: Member) -> None:
        """It has everything up to the cursor, and nothing is offered to it from here on."""
        member.behind = True
        member.shown = self._shown()
        member.woken.set()

    def _paced(self, member: Member) -> None:
        """Its pace has changed."""
        if member.receiver.pace_s is not None and not member.behind:
            member.behind = True  # since when it shows what it shows is not known in the midst of a step
        member.woken.set()
        member.hurry.set()

    def _overflown(self, member: Member) -> None:
        """As much waits for it as may."""
        if member.policy == "every_change":
            self._stalled(member)
            member.receiver.cut(member.policy, stall(self._behind(member, 0.0)))
        else:
            self._fall(member)

    async def _catch_up(self, member: Member) -> None:
        """Bring it to the present by messages that merge batches, as fast as it reads and its pace allows.

        Raises `Gone` when history no longer reaches, and `ConnectionError` when it was cut.
        """
        receiver = member.receiver
        while not self.ended.is_set():
            if receiver.pace_s is not None and member.at < self.cursor and await _hurried(member, receiver.pace_s):
                continue
            await self._room_for(member)
            if member.at >= self.cursor:
                break
            async with receiver.turn:
                await receiver.drained()
                await self._tell_merged(member)
        if receiver.pace_s is None and member.at >= self.cursor:
            member.behind, member.shown = False, None

    async def _tell_merged(self, member: Member) -> None:
        net = await self._net(member)
        if net.message is not None:
            policy = "conflate" if member.receiver.pace_s is None else "pace"
            self._observer.emit(BatchesConflated(self.view.name, policy, net.end - member.at))
            member.told = net.end
            member.receiver.offer(net.message)
        member.at, member.shown = net.end, net.shown

    async def _room_for(self, member: Member) -> None:
        """Wait until it has read what waits for it: told to be behind after a while, and cut in the end."""
        began = asyncio.get_running_loop().time()
        if await _in_time(member.receiver.drained, self._limits.subscriber_stall_s):
            return
        self._stalled(member)
        member.receiver.stall(lambda: stall(self._behind(member, asyncio.get_running_loop().time() - began)))
        rest_s = self._limits.subscriber_cut_s - self._limits.subscriber_stall_s
        if not await _in_time(member.receiver.drained, rest_s):
            member.receiver.cut(member.policy, stall(self._behind(member, self._limits.subscriber_cut_s)))
            raise ConnectionResetError("the subscriber was cut")

    def _stalled(self, member: Member) -> None:
        receiver = member.receiver
        self._observer.emit(SubscriberStalled(self.view.name, receiver.transport, member.policy, receiver.unsent_bytes))

    def _behind(self, member: Member, seconds: float) -> dict[str, float]:
        return {
            "batches": self.cursor - member.at,
            "bytes": member.receiver.unsent_bytes,
            "seconds": round(seconds, 1),
        }

    async def _net(self, member: Member) -> Net:
        """What a member that is behind must be told, up to the present."""
        target = self.cursor
        if (known := self._merged.get((member.at, target))) is None:
            at = member.at
            known = await (self._net_rows(at) if self.query.limit is None else self._net_top(at, member.shown))
            self._merged = {k: net for k, net in self._merged.items() if k[1] == known.end} | {(at, known.end): known}
        return known

    async def _net_rows(self, at: int) -> Net:
        """Without a limit: each key's row before the first batch and behind the last, as one batch."""
        batches = self._known(at)
        end = self.cursor

        def evaluate() -> Message | None:
            told = TopState(self.query, {}).apply(net_changes([batch for batch in batches if batch.end <= end]))
            return self._net_message(told, end, batches)

        message = await _maybe_in_thread(sum(len(batch.changes) for batch in batches), evaluate, LARGE_CHANGES)
        return Net(message, end, None)

    async def _net_top(self, at: int, before: Shown | None) -> Net:
        """With a limit: the difference between the rows it shows and those to be shown."""
        if before is None:
            before = (await self._state_before(self._known(at))).shown()
        async with self._still:
            end, present = self.cursor, self._shown()
        assert present is not None
        return Net(self._net_message(told_between(before, present), end, self._known(at, end)), end, present)

    def _net_message(self, told: Told | None, end: int, batches: Sequence[Batch]) -> Message | None:
        if told is None:
            raise Gone("too few rows were kept")
        upserts, deletes = told
        meta = next((batch.meta for batch in reversed(batches) if batch.end <= end), None)
        return self._make.changes(upserts, deletes, end, meta) if upserts or deletes else None

    def _known(self, at: int, end: int | None = None) -> Sequence[Batch]:
        batches = self.content.history.after(at)
        if batches is None and end is None:
            raise Gone("the position is older than what is kept")
        return batches or ()

    def _shown(self) -> Shown | None:
        """The visible rows by key at the cursor; None without a limit, where history has them."""
        return None if self.query.limit is None else shown_rows(self.query, self._present().rows())

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
        captured, changes = self.content.captured(), sum(len(batch.changes) for batch in batches)
        return await _maybe_in_thread(
            len(captured) + changes,
            lambda: TopState(self.query, Undone(captured, batches), RESERVE_ROWS + changes),
        )

    async def _evaluated(self, state: TopState, batches: Sequence[Batch]) -> list[Message]:
        def evaluate() -> list[Message]:
            told = ((batch, state.apply(batch.changes)) for batch in batches)
            return [m for batch, t in told if (m := self._message(batch, t)) is not None]

        return await _maybe_in_thread(sum(len(batch.changes) for batch in batches), evaluate)

    # The present

    def take(self, due: Due) -> None:
        """Called by the dispatch, in the order of batches, with what can matter to this query."""
        if due.batch.end > self._start and not self.ended.is_set():
            self._due.append(due)

    def advance(self) -> int:
        """Called by the dispatch when something is due: done now if it is little, else in a task.

        Returns how many members were handed a message now.
        """
        told = 0
        while self._due and self._working is None:
            due = self._due[0]
            if due.batch.start < self.content.history.start:
                self.end()  # history has outrun this group
                break
            done, message = self._at_once(due)
            if not done:
                self._work()
            elif message is not None and self._needs_thread(message):
                self._work(message)
            elif message is not None:
                told += len(self.members)
                self._tell_now(tuple(self.members), message)
        return told

    def _at_once(self, due: Due) -> tuple[bool, Message | None]:
        """Its message, with the cursor behind it; False when a task must do it: then nothing has changed."""
        if len(due.changes) > LARGE_CHANGES or len(self.members) > FAN_OUT or self._still.locked():
            return False, None
        evaluated = self._evaluate(due)
        if evaluated is None:
            return False, None
        message = self._made(due, evaluated)
        self._pass(due, message)
        return True, message

    def fail(self, error: Exception) -> None:
        """Called by the dispatch when `advance` has raised: this group ends, no other."""
        if self._working is None:
            self._working = asyncio.create_task(self._fails(error), name=f"group {self.view.name}")

    async def _fails(self, error: Exception) -> None:
        self._observer.emit(GroupFailed(self.view.name, f"{type(error).__name__}: {error}"))
        await asyncio.sleep(FAILED_S)
        self.end()

    def _work(self, message: Message | None = None) -> None:
        self._telling = message
        self._working = asyncio.create_task(self._works(message), name=f"group {self.view.name}")

    async def _works(self, message: Message | None) -> None:
        """What takes long: the first ranking, a message to tell that must be compressed first, and large batches."""
        try:
            if message is not None:
                await self._tell(message)
            if self.query.limit is not None and self._state is None:
                await self._build()
            self._ready.set()
            while self._due:
                await self._step(self._due[0])
        except Gone:
            self.end()
        except Exception as error:
            await self._fails(error)
        finally:
            self._working = None

    async def _build(self) -> None:
        """Rank the view's rows as they are at this moment, from which steps go on."""
        captured = self.content.captured()
        self._start = self._backlog_start = captured.offset
        self._due = deque(due for due in self._due if due.batch.end > self._start)
        self._state = await _maybe_in_thread(len(captured), lambda: TopState(self.query, captured))

    async def _step(self, due: Due) -> None:
        if due.batch.start < self.content.history.start:
            raise Gone("history has outrun this group")
        async with self._still:
            told = await _maybe_in_thread(len(due.changes), lambda: self._evaluate(due), threshold=LARGE_CHANGES)
            if told is None:
                told = await self._rebuilt(due.batch)
            made = told
            message = await _maybe_in_thread(len(told[0]), lambda: self._made(due, made), threshold=LARGE_CHANGES)
            self._pass(due, message)
        if message is not None:
            await self._tell(message)

    def _evaluate(self, due: Due) -> Told | None:
        """Rows and keys to tell; None when too few rows are left above the bound of a limit.

        Without a limit the rows are the view's own, else they are projected.
        """
        return told_of(self.query, due.changes) if self.query.limit is None else self._present().apply(due.changes)

    def _made(self, due: Due, told: Told) -> Message | None:
        upserts, deletes = told
        if not upserts and not deletes:
            return None
        if self.query.limit is None or self.query.select is None:
            return due.json.changes(self._make.codec, upserts, deletes)
        return self._make.changes(upserts, deletes, due.batch.end, due.batch.meta)

    def _pass(self, due: Due, message: Message | None) -> None:
        """The cursor moves behind a batch, and its message into the backlog, in one step."""
        if self._due and self._due[0] is due:
            self._due.popleft()
        if message is not None:
            self._keep(message)

    async def _rebuilt(self, batch: Batch) -> Told:
        """Too few rows were left above the bound: rank the view again as it was behind this batch."""
        before = self._present().shown()
        later = self.content.history.after(batch.end)
        if later is None:
            raise Gone("history has outrun this group")
        self._state = await self._state_before(later)
        return told_between(before, self._state.shown())

    def _keep(self, message: Message) -> None:
        self._backlog.append(message)
        self._backlog_bytes += len(message.payload)
        while self._backlog_bytes > self._dispatch.backlog_bytes and len(self._backlog) > 1:
            gone = self._backlog.popleft()
            self._backlog_bytes -= len(gone.payload)
            self._backlog_start = gone.end

    async def _tell(self, message: Message) -> None:
        """Hand it to all members, with the loop given back in between."""
        self._telling = message
        if self._needs_thread(message):
            await asyncio.to_thread(message.deflated)
        members = list(self.members)
        for start in range(0, len(members), FAN_OUT):
            if start:
                await asyncio.sleep(0)
            there = [member for member in members[start : start + FAN_OUT] if member in self.members]
            self._tell_now(there, message)  # whoever has left meanwhile may hold another build's rows
        self._telling = None
        self._observer.emit(MessagesSent(self.view.name, len(members)))

    def _tell_now(self, members: Iterable[Member], message: Message) -> None:
        end = message.end
        for member in members:
            if member.behind:
                member.woken.set()
            elif member.at < end:
                member.at = member.told = end
                if not member.receiver.offer(message):
                    self._overflown(member)

    def _needs_thread(self, message: Message) -> bool:
        return len(message.payload) > LARGE_BYTES and any(member.receiver.deflates for member in self.members)

    def _present(self) -> TopState:
        assert self._state is not None
        return self._state

    def _message(self, batch: Batch, told: Told | None) -> Message | None:
        if told is None:
            raise Gone("too few rows were kept")
        upserts, deletes = told
        return self._make.changes(upserts, deletes, batch.end, batch.meta) if upserts or deletes else None


async def _hurried(member: Member, pace_s: float) -> bool:
    """Wait for the next multiple of the pace, so that members of equal pace share what is made for them.

    True when something came in between: another pace, or the end.
    """
    member.hurry.clear()
    now = asyncio.get_running_loop().time()
    return await _in_time(member.hurry.wait, pace_s - now % pace_s)


async def _in_time(call: Callable[[], Awaitable[object]], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await call()
        return True
    except TimeoutError:
        return False


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
