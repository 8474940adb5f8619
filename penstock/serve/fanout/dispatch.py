"""Takes each batch of a view to the queries that it can matter to, so that ten thousand others cost nothing.

Every build of a view has one `Dispatch`. It looks each change up once in an index of all filters
(`views/where/filter_index.py`) and gives every group that is found the changes that it was found for. The others are
not woken: their cursor is read off the dispatch's offset.

1. A group gets every change that can matter to it: those that its filters pass on the row before or the row after.
2. What is due to all groups is noted in the step of the loop in which `offset` moves, so that no cursor ever runs ahead
   of what its group was given.
3. A row becomes JSON once per batch for all groups that select the same columns.
4. The loop is given back after some hundred changes looked up or messages written.
5. Batches that came while the ones before were being written are handed on together, so that a connection gets them in
   one write: the busier an edge is, the less a message costs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from penstock.change import Change
from penstock.observe.metrics import Observer
from penstock.observe.signals import GroupFailed, MessagesSent
from penstock.serve.fanout.messages import BatchJson, Joined, Message, RowCodec, complete_of, position_moved
from penstock.views.history import Batch
from penstock.views.read_query import Query
from penstock.views.store import Content, View
from penstock.views.where.filter_index import FilterIndex

LOOKED_UP = 200
"""Changes that are looked up between two steps of the loop: about 1 ms."""
ROUND = 8
"""Batches that are handed on together at most."""
WRITTEN = 200
"""Messages that are evaluated and written between two steps of the loop: about 2 ms."""
BACKLOG_BYTES = 4 * 1024**2
"""Encoded messages that a group keeps for those who catch up; beyond its newest one."""
BACKLOG_BYTES_ALL = 64 * 1024**2
"""The same for all groups of a view together."""
FAILED_S = 1.0
"""How long a group, or all of a view, waits after a failure before its subscribers begin again."""


class Due(NamedTuple):
    """What one batch is to one group."""

    batch: Batch
    changes: Sequence[Change]
    """Those that can matter to it, in order."""
    json: BatchJson


class Follows(Hashable, Protocol):
    """A group, as a dispatch uses it on the edge's loop."""

    query: Query

    def take(self, due: Due) -> None:
        """Note what is due. Must not wait, and must not call back."""
        ...

    def advance(self) -> int:
        """Do what is due, as far as it is little; returns how many messages were handed to connections."""
        ...

    def fail(self, error: Exception) -> None:
        """`advance` has raised this."""
        ...

    def end(self) -> None:
        """The build was replaced, or nothing more can be followed."""
        ...


class Dispatch:
    """The batches of one build of a view on their way to the groups. Belongs to the edge's loop."""

    def __init__(self, view: View, content: Content, observer: Observer) -> None:
        self.view, self.content = view, content
        self.offset = content.offset
        """Every batch up to here was given to the groups that it can matter to."""
        self.ended = False
        self.backlog_bytes = BACKLOG_BYTES
        """What each group may keep."""
        self._observer = observer
        self._index: FilterIndex[Follows] = FilterIndex(view.filter_errors)
        self._codecs: WeakValueDictionary[tuple[str, ...] | None, RowCodec] = WeakValueDictionary()
        self._woken = asyncio.Event()
        self._unlisten = view.listen(self._woken.set)
        self._moved: Message | None = None
        self._runs: dict[tuple[Message, ...], Message] = {}
        self._task = asyncio.create_task(self._run(), name=f"dispatch {view.name}")

    def __len__(self) -> int:
        return len(self._index)

    @property
    def unindexed(self) -> int:
        """Groups that every change is tried on."""
        return len(self._index.everywhere)

    def add(self, group: Follows) -> None:
        """Give it every batch behind the content's present offset."""
        self._index.add(group, group.query.filters)
        self._share()

    def remove(self, group: Follows) -> None:
        self._index.remove(group)
        self._share()

    def _share(self) -> None:
        self.backlog_bytes = min(BACKLOG_BYTES, BACKLOG_BYTES_ALL // max(1, len(self)))

    def codec(self, query: Query) -> RowCodec:
        """The one that all queries share which select the same columns."""
        codec = self._codecs.get(query.select)
        if codec is None:
            codec = self._codecs[query.select] = RowCodec(query)
        return codec

    def moved(self, end: int) -> Message:
        """The message that says only how far batches have passed by: the same for all groups that are there."""
        if self._moved is None or self._moved.end != end:
            self._moved = position_moved(self.content.at(end), end, complete_of(self.content.meta_at(end)))
        return self._moved

    def in_one_piece(self, run: Sequence[Message]) -> Message:
        """The messages of several batches together, for a group that is being advanced: made once for all groups that
        are told the same."""
        if len(run) == 1:
            return run[0]
        known = self._runs.get(told := tuple(run))
        if known is None:
            known = self._runs[told] = Joined(told)
        return known

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._end()  # a task that was cancelled before it began did not

    async def _run(self) -> None:
        try:
            while self.view.content is self.content:
                self._woken.clear()
                while await self._round():
                    pass
                if self.offset < self.content.history.start:
                    return  # history has outrun it: everyone begins again
                await self._woken.wait()
        except Exception as error:
            self._observer.emit(GroupFailed(self.view.name, f"{type(error).__name__}: {error}"))
            await asyncio.sleep(FAILED_S)
        finally:
            self._end()

    def _end(self) -> None:
        self._unlisten()
        self.ended = True
        for group in self._index.items():
            group.end()

    async def _round(self) -> bool:
        """Hand on what there is; False when there is nothing."""
        touched: dict[Follows, None] = {}
        taken = 0
        while taken < ROUND and (batch := self.content.history.next(self.offset)) is not None:
            if batch.start != self.offset:
                break
            touched |= await self._hand_on(batch)
            taken += 1
        await self._advance(touched)
        self._runs.clear()
        return taken > 0

    async def _hand_on(self, batch: Batch) -> dict[Follows, None]:
        found = await self._found(batch.changes)
        json = BatchJson(self.view.name, self.content.at(batch.end), batch)
        dues: dict[int, Due] = {}
        for group, changes in found.items():
            due = dues.get(id(changes))
            if due is None:
                due = dues[id(changes)] = Due(batch, changes, json)
            group.take(due)
        everywhere = dict(self._index.everywhere) if batch.changes else {}
        due = Due(batch, batch.changes, json)
        for group in everywhere:
            group.take(due)
        self.offset = batch.end
        return dict.fromkeys(found) | everywhere

    async def _found(self, changes: Sequence[Change]) -> dict[Follows, Sequence[Change]]:
        """The changes by group. Who is added meanwhile starts behind this batch and takes nothing of it."""
        found: dict[Follows, Sequence[Change]] = {}
        if len(self._index) > self.unindexed:
            for start in range(0, len(changes), LOOKED_UP):
                if start:
                    await asyncio.sleep(0)
                self._index.touched(changes[start : start + LOOKED_UP], found)
        return found

    async def _advance(self, groups: Iterable[Follows]) -> None:
        sent = encoded = written = 0
        for group in groups:
            try:
                handed = group.advance()
            except Exception as error:  # one that fails does so alone
                handed = 0
                group.fail(error)
            sent, encoded, written = sent + handed, encoded + (handed > 0), written + handed + 1
            if written >= WRITTEN:
                written = 0
                await asyncio.sleep(0)
        if encoded:
            self._observer.emit(MessagesSent(self.view.name, sent, encoded))
