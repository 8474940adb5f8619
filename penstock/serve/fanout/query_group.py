"""Evaluates a query once for all subscribers that share it, and brings each from where it is to the present.

1. No gap and no duplicate: a subscriber joins exactly at the offset up to which it was told everything, in one step of
   the loop; after that the group tells it every batch once, in order.
2. One evaluation and one encoded message per batch, however many have joined.
3. A batch that changes nothing for the query sends nothing; positions strictly increase.
4. A group gets what is due to it from the view's `Dispatch` and works at its own pace: what is little is done at once,
   a large batch or a new query in a task of its own, which delays no other group. A group that nothing is due to does
   nothing at all: its cursor is the dispatch's.
5. Nobody waits for a slow member: it falls behind, and gets one message that merges what it missed once it has read
   (`laggards.py`). A member with the policy `every_change` is cut instead, and resumes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from penstock.config import Limits
from penstock.declaration import Policy
from penstock.observe.metrics import Observer
from penstock.observe.signals import GroupFailed, MessagesSent, SubscriberJoined
from penstock.serve.fanout.answers import answer, json_parts
from penstock.serve.fanout.dispatch import FAILED_S, Dispatch, Due
from penstock.serve.fanout.laggards import LARGE_CHANGES, Laggards
from penstock.serve.fanout.member import Gone, Member, Shown, shown_rows
from penstock.serve.fanout.messages import LARGE_BYTES, Joined, Message, MessageMaker, complete_of
from penstock.serve.fanout.query_history import Backlog, QueryHistory, maybe_in_thread
from penstock.serve.fanout.receiver import Receiver
from penstock.views.history import Batch
from penstock.views.read_query import Delta, Query, delta_of
from penstock.views.top_rows import RESERVE_ROWS, TopState, delta_between

LINGER_S = 10.0
"""How long a group without members keeps going, so that a client that reconnects finds it."""
FAN_OUT = 250
"""Members that are told something between two steps of the loop: about 3 ms with the writing."""
RUN_BYTES = 64 * 1024
"""Messages that one member is handed together when several batches are due: what a connection writes in one go."""


class QueryGroup:
    """All subscribers of one query on one build of a view. Belongs to the edge's loop."""

    def __init__(self, dispatch: Dispatch, query: Query, limits: Limits, observer: Observer) -> None:
        self.view, self.content, self.query = dispatch.view, dispatch.content, query
        self.name = self.view.name
        content = self.content
        self.members: set[Member] = set()
        self.ended = asyncio.Event()
        self.still = asyncio.Lock()
        self._dispatch, self._limits, self._observer = dispatch, limits, observer
        self._make = MessageMaker(self.name, dispatch.codec(query), content.at)
        self._history = QueryHistory(content, query, self._make)
        self._laggards = Laggards(self, self._history, limits, observer)
        self._start = content.offset
        """Where it began; what came before is not due to it."""
        self._due: deque[Due] = deque()
        """Taken out when it was evaluated."""
        self._state: TopState | None = None
        self._backlog = Backlog(content.offset)
        self._stood: int | None = None
        """Where it was when it ended."""
        self._telling = False
        """Messages are on their way to members: the cursor is behind them already, but some have not got them."""
        self._users = 0
        self._leaving: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        self._replaying = asyncio.Lock()
        self._working: asyncio.Task[None] | None = None
        dispatch.add(self)
        self._unused()
        if query.limit is None:
            self._ready.set()
        else:
            self._work()

    @property
    def cursor(self) -> int:
        """The offset up to which everything was evaluated, and told to members unless that is going on."""
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
            self._observer.emit(SubscriberJoined(self.name, receiver.transport, start))
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
                    await self._laggards.catch_up(member)
        finally:
            self.members.discard(member)

    async def announce(self) -> None:
        """Tell all members how far they have come, where batches have passed them by."""
        members = list(self.members)
        for start in range(0, len(members), FAN_OUT):
            if start:
                await asyncio.sleep(0)
            self._announce(member for member in members[start : start + FAN_OUT] if member in self.members)

    def announce_to(self, receiver: Receiver) -> None:
        self._announce(member for member in self.members if member.receiver is receiver)

    def _announce(self, members: Iterable[Member]) -> None:
        if self._telling or self.ended.is_set():
            return
        cursor = self.cursor
        for member in members:
            if member.told >= cursor:
                continue
            if member.behind and member.at < cursor:
                member.woken.set()  # it will find out itself whether anything changed for it
            elif member.receiver.offer(self._dispatch.moved(cursor)) is not None:
                member.at = member.told = cursor

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

    # Members that fall behind

    def _paced(self, member: Member) -> None:
        """Its pace has changed."""
        if member.receiver.pace_s is not None and not member.behind:
            member.behind = True  # since when it shows what it shows is not known in the midst of a step
        member.woken.set()
        member.hurry.set()

    def _overflown(self, member: Member, has_all: bool) -> None:
        """As much waits for it as may: nothing is offered to it from here on. `has_all`: up to the cursor."""
        if member.policy == "every_change":
            self._laggards.cut(member)
        else:
            member.behind = True
            member.shown = self.shown() if has_all else None
            member.woken.set()

    def shown(self) -> Shown | None:
        """The visible rows by key at the cursor; None without a limit, where history has them."""
        return None if self.query.limit is None else shown_rows(self.query, self._present().rows())

    # The past

    async def _snapshot(self, receiver: Receiver) -> int:
        """Send all visible rows; returns the offset that they are of."""
        if self.query.limit is None:
            offset = self.content.offset
            rows = await answer(self.query, self.content)
        else:
            async with self.still:
                offset = self.cursor
                rows = self._present().rows()
        size = self._limits.snapshot_part_rows
        parts = max(1, -(-len(rows) // size))
        number, complete = 0, complete_of(self.content.meta_at(offset))
        async with receiver.turn:  # of all subscriptions on a connection one holds a part that waits
            async for part in json_parts(self._make.codec, rows, size):
                number += 1
                await receiver.send(self._make.snapshot(part, offset, number, parts, complete))
        return offset

    async def _missed(self, offset: int) -> tuple[list[Message], int]:
        """Messages behind `offset`, and the offset that they lead to."""
        if offset < self._backlog.start:
            async with self._replaying:
                if offset < self._backlog.start:
                    return await self._replay(offset)
        return self._backlog.after(offset), self.cursor

    async def _replay(self, offset: int) -> tuple[list[Message], int]:
        """Evaluate history again, up to where the backlog begins; whoever comes next finds it in the backlog."""
        target = self._backlog.start
        messages, reached = await self._history.replayed(offset, target)
        if reached == target == self._backlog.start:
            self._backlog.extend_back(messages, offset)
        return messages, reached

    # The present

    def take(self, due: Due) -> None:
        """Called by the dispatch, in the order of batches, with what can matter to this query."""
        if due.batch.end > self._start and self._stood is None:
            self._due.append(due)

    def advance(self) -> int:
        """Called by the dispatch when something is due: done now if it is little, else in a task.

        Returns how many messages were handed to members now.
        """
        run: list[Message] = []
        members, pending = self.members, self._due
        slow = len(members) > FAN_OUT or self.still.locked()
        while pending and self._working is None:
            due = pending[0]
            if due.batch.start < self.content.history.start:
                self.end()  # history has outrun this group
                break
            told = None if slow or len(due.changes) > LARGE_CHANGES else self._evaluate(due)
            if told is None:
                self._work(run)
                return 0
            message = self._passed(due, self._made(due, told))
            if message is not None:
                run.append(message)
                slow = slow or len(message.payload) > LARGE_BYTES
        if not run:
            return 0
        if slow and any(map(self._needs_thread, run)):
            self._work(run)
            return 0
        self._tell_now(tuple(members), run, self._dispatch.in_one_piece(run))
        return len(run) * len(members)

    def fail(self, error: Exception) -> None:
        """Called by the dispatch when `advance` has raised: this group ends, no other."""
        if self._working is None:
            self._working = asyncio.create_task(self._fails(error), name=f"group {self.name}")

    async def _fails(self, error: Exception) -> None:
        self._observer.emit(GroupFailed(self.name, f"{type(error).__name__}: {error}"))
        await asyncio.sleep(FAILED_S)
        self.end()

    def _work(self, run: Sequence[Message] = ()) -> None:
        self._telling = bool(run)
        self._working = asyncio.create_task(self._works(run), name=f"group {self.name}")

    async def _works(self, run: Sequence[Message]) -> None:
        """What takes long: the first ranking, messages to compress, large batches, and many members."""
        try:
            if run:
                await self._tell(run)
            if self.query.limit is not None and self._state is None:
                await self._build()
            self._ready.set()
            while self._due:
                await self._tell(await self._run())
        except Gone:
            self.end()
        except Exception as error:
            await self._fails(error)
        finally:
            self._working = None

    async def _build(self) -> None:
        """Rank the view's rows as they are at this moment, from which steps go on."""
        await self._history.ready()
        rows = self.content.top(self.query, (self.query.limit or 0) + RESERVE_ROWS + 1)
        self._start = self._backlog.start = self.content.offset
        self._due = deque(due for due in self._due if due.batch.end > self._start)
        self._state = await maybe_in_thread(len(rows), lambda: TopState(self.query, rows))

    async def _run(self) -> list[Message]:
        """The messages of what is due, as many as are handed over together."""
        run: list[Message] = []
        size = 0
        while self._due and size < RUN_BYTES:
            message = await self._step(self._due[0])
            if message is not None:
                run.append(message)
                size += len(message.payload)
        return run

    async def _step(self, due: Due) -> Message | None:
        if due.batch.start < self.content.history.start:
            raise Gone("history has outrun this group")
        async with self.still:
            told = await maybe_in_thread(len(due.changes), lambda: self._evaluate(due), threshold=LARGE_CHANGES)
            if told is None:
                told = await self._rebuilt(due.batch)
            made = told
            message = await maybe_in_thread(len(told[0]), lambda: self._made(due, made), threshold=LARGE_CHANGES)
            self._telling = self._telling or message is not None
            return self._passed(due, message)

    def _evaluate(self, due: Due) -> Delta | None:
        """Rows and keys to tell; None when too few rows are left above the bound of a limit.

        Without a limit the rows are the view's own, else they are projected.
        """
        return delta_of(self.query, due.changes) if self.query.limit is None else self._present().apply(due.changes)

    def _made(self, due: Due, told: Delta) -> Message | None:
        upserts, deletes = told
        if not upserts and not deletes:
            return None
        if self.query.limit is None or self.query.select is None:
            return due.json.changes(self._make.codec, upserts, deletes)
        return self._make.changes(upserts, deletes, due.batch.end, due.batch.meta)

    def _passed(self, due: Due, message: Message | None) -> Message | None:
        """The cursor moves behind a batch, and its message into the backlog, in one step."""
        if self._due and self._due[0] is due:
            self._due.popleft()
        if message is not None:
            self._backlog.add(message, self._dispatch.backlog_bytes)
        return message

    async def _rebuilt(self, batch: Batch) -> Delta:
        """Too few rows were left above the bound: rank the view again as it was behind this batch."""
        before = self._present().shown()
        await self._history.ready()
        self._state = await self._history.state_before(self._history.since(batch.end))
        return delta_between(before, self._state.shown())

    async def _tell(self, run: Sequence[Message]) -> None:
        """Hand these to all members, with the loop given back in between."""
        if not run:
            return
        for message in run:
            if self._needs_thread(message):
                await asyncio.to_thread(message.deflated)
        members, whole = list(self.members), run[0] if len(run) == 1 else Joined(run)
        for start in range(0, len(members), FAN_OUT):
            if start:
                await asyncio.sleep(0)
            there = [member for member in members[start : start + FAN_OUT] if member in self.members]
            self._tell_now(there, run, whole)  # whoever has left meanwhile may hold another build's rows
        self._telling = False
        self._observer.emit(MessagesSent(self.name, len(members) * len(run), len(run)))

    def _tell_now(self, members: Iterable[Member], run: Sequence[Message], whole: Message) -> None:
        """Those who have got nothing of it get all in one piece, where their connection takes that."""
        first, last = run[0], run[-1]
        for member in members:
            if member.behind:
                member.woken.set()
            elif member.at < first.end and (first is last or member.receiver.joins):
                taken = member.receiver.offer(whole)
                if taken is not None:
                    member.at = member.told = last.end
                if not taken:
                    self._overflown(member, taken is False)
            else:
                self._tell_singly(member, run)

    def _tell_singly(self, member: Member, run: Sequence[Message]) -> None:
        for message in run:
            if member.at < message.end and not member.behind:
                taken = member.receiver.offer(message)
                if taken is not None:
                    member.at = member.told = message.end
                if not taken:
                    self._overflown(member, taken is False and message is run[-1])

    def _needs_thread(self, message: Message) -> bool:
        return len(message.payload) > LARGE_BYTES and any(member.receiver.deflates for member in self.members)

    def _present(self) -> TopState:
        assert self._state is not None
        return self._state
