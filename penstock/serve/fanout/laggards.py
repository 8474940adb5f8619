"""Brings members that are behind to the present by messages that merge batches, and cuts those that never get there.

A member is behind because it reads slowly, or because it asked for a pace. It fetches what it missed when it has read
what was written.

1. A merged message leads from the rows at one commit to the rows at a later one, never to anything in between: what was
   one batch is never seen in part.
2. A row that came and went in between is not mentioned: there is no delete of what the subscriber never saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from penstock.config import Limits
from penstock.observe.metrics import Observer
from penstock.observe.signals import BatchesConflated, SubscriberStalled
from penstock.serve.fanout.member import Member, Shown, in_time
from penstock.serve.fanout.messages import Message, stall
from penstock.serve.fanout.query_history import QueryHistory, maybe_in_thread
from penstock.views.history import Batch, net_changes
from penstock.views.read_query import Query
from penstock.views.top_rows import TopState, delta_between

LARGE_CHANGES = 1_000
"""Above this a batch is evaluated and encoded in a thread: on the loop it would take over 2 ms."""


@dataclass(frozen=True, slots=True)
class Net:
    """What several batches came to."""

    message: Message | None
    """None when nothing of it is to be seen."""
    end: int
    shown: Shown | None
    """The rows behind it, where there is a limit."""


class Present(Protocol):
    """A group, as those who are behind it see it."""

    name: str
    """Of the view."""
    query: Query
    ended: asyncio.Event
    still: asyncio.Lock
    """Held while the cursor and the visible rows do not fit together."""

    @property
    def cursor(self) -> int: ...

    def shown(self) -> Shown | None:
        """The visible rows by key at the cursor; None without a limit, where history has them."""
        ...


class Laggards:
    """The members of one group that are behind. Belongs to the edge's loop."""

    def __init__(self, present: Present, history: QueryHistory, limits: Limits, observer: Observer) -> None:
        self._present, self._history, self._limits, self._observer = present, history, limits, observer
        self._merged: dict[tuple[int, int], Net] = {}
        """What members got last, by the offsets it leads from and to: equally slow ones share it."""

    def cut(self, member: Member) -> None:
        """One that must get every change cannot: it is told, and comes back."""
        self._stalled(member)
        member.receiver.cut(member.policy, stall(self._behind(member, 0.0)))

    async def catch_up(self, member: Member) -> None:
        """Bring it to the present, as fast as it reads and its pace allows.

        Raises `Gone` when history no longer reaches, and `ConnectionError` when it was cut.
        """
        receiver, present = member.receiver, self._present
        while not present.ended.is_set():
            paced = receiver.pace_s is not None and member.at < present.cursor
            if paced and not await member.paused(receiver.pace_s or 0.0):
                continue
            await self._room_for(member)
            if member.at >= present.cursor:
                break
            async with receiver.turn:
                await receiver.drained()
                await self._tell_merged(member)
        if receiver.pace_s is None and member.at >= present.cursor:
            member.behind, member.shown = False, None

    async def _tell_merged(self, member: Member) -> None:
        net = await self._net(member)
        if net.message is not None:
            if member.receiver.offer(net.message) is None:
                return  # another subscription on its connection was faster: once more, when that was read
            policy = "conflate" if member.receiver.pace_s is None else "pace"
            self._observer.emit(BatchesConflated(self._present.name, policy, net.end - member.at))
            member.told = net.end
        member.at, member.shown = net.end, net.shown

    async def _room_for(self, member: Member) -> None:
        """Wait until it has read what waits for it: told to be behind after a while, and cut in the end."""
        began = asyncio.get_running_loop().time()
        if await in_time(member.receiver.drained, self._limits.subscriber_stall_s):
            return
        self._stalled(member)
        member.receiver.stall(lambda: stall(self._behind(member, asyncio.get_running_loop().time() - began)))
        rest_s = self._limits.subscriber_cut_s - self._limits.subscriber_stall_s
        if not await in_time(member.receiver.drained, rest_s):
            member.receiver.cut(member.policy, stall(self._behind(member, self._limits.subscriber_cut_s)))
            raise ConnectionResetError("the subscriber was cut")

    def _stalled(self, member: Member) -> None:
        receiver = member.receiver
        self._observer.emit(
            SubscriberStalled(self._present.name, receiver.transport, member.policy, receiver.unsent_bytes)
        )

    def _behind(self, member: Member, seconds: float) -> dict[str, float]:
        return {
            "batches": self._present.cursor - member.at,
            "bytes": member.receiver.unsent_bytes,
            "seconds": round(seconds, 1),
        }

    # What they missed

    async def _net(self, member: Member) -> Net:
        """What a member must be told, up to the present."""
        at, target = member.at, self._present.cursor
        if (known := self._merged.get((at, target))) is None:
            limited = self._present.query.limit is not None
            known = await (self._net_top(at, member.shown) if limited else self._net_rows(at))
            self._merged = {k: net for k, net in self._merged.items() if k[1] == known.end} | {(at, known.end): known}
        return known

    async def _net_rows(self, at: int) -> Net:
        """Without a limit: each key's row before the first batch and behind the last, as one batch."""
        batches, end = self._history.since(at), self._present.cursor

        def evaluate() -> Message | None:
            told = TopState(self._present.query, {}).apply(net_changes([b for b in batches if b.end <= end]))
            return self._history.message(told, end, _newest(batches, end))

        message = await maybe_in_thread(sum(len(batch.changes) for batch in batches), evaluate, LARGE_CHANGES)
        return Net(message, end, None)

    async def _net_top(self, at: int, before: Shown | None) -> Net:
        """With a limit: the difference between the rows it shows and those to be shown."""
        if before is None:
            await self._history.ready()
        batches = self._history.since(at)
        if before is None:
            before = (await self._history.state_before(batches)).shown()
        async with self._present.still:
            end, shown = self._present.cursor, self._present.shown()
        assert shown is not None
        return Net(self._history.message(delta_between(before, shown), end, _newest(batches, end)), end, shown)


def _newest(batches: Sequence[Batch], end: int) -> Batch | None:
    """The last batch up to an offset, with the corrections of all of them."""
    told = [batch for batch in batches if batch.end <= end]
    late = [key for batch in told if batch.meta is not None for key in batch.meta.corrected or ()]
    if not late or told[-1].meta is None:
        return told[-1] if told else None
    return replace(told[-1], meta=msgspec.structs.replace(told[-1].meta, corrected=late))
