"""Serves one subscription from beginning to end: over every build of its view, with `reset` where changes cannot lead.

1. Who cannot be brought up to date by changes (its position is too old, of another build, or of an app that showed the
   view another way; or the build was replaced) is told `reset` and gets a snapshot; it is never left guessing.
2. A subscription that arrives while its view is loading waits.
3. Equal queries on one build share one `QueryGroup`, and all groups of a build one `Dispatch`.
"""

from __future__ import annotations

import asyncio

from penstock.config import Limits
from penstock.observe.metrics import Observer
from penstock.observe.signals import SubscriberReset
from penstock.position import Position
from penstock.serve.fanout.dispatch import Dispatch
from penstock.serve.fanout.member import Gone
from penstock.serve.fanout.messages import reset
from penstock.serve.fanout.query_group import FAN_OUT, QueryGroup
from penstock.serve.fanout.receiver import Receiver
from penstock.serve.question import Question
from penstock.views.read_query import Query
from penstock.views.store import Content, View

POSITION_S = 15.0
"""A subscriber learns at least this often how far it has come when batches passed it by."""
AHEAD_S = 5.0
"""How long an edge that is behind a subscriber's position tries to catch up before it says `reset`."""


class Hub:
    """All subscriptions of an edge. Belongs to its loop."""

    def __init__(self, limits: Limits, observer: Observer, *, position_s: float = POSITION_S) -> None:
        self.limits = limits
        self.observer = observer
        self._position_s = position_s
        self._groups: dict[tuple[str, Query], QueryGroup] = {}
        self._dispatches: dict[str, Dispatch] = {}
        self._following: dict[Receiver, QueryGroup] = {}
        self._announcing: asyncio.Task[None] | None = None
        observer.gauge(
            "penstock_serve_subscribers", "Subscriptions that are open.", ("view",), self._subscribers_by_view
        )
        observer.gauge(
            "penstock_serve_queries",
            "Different queries of subscribers; each is evaluated once.",
            ("view",),
            lambda: {(name,): float(len(dispatch)) for name, dispatch in self._dispatches.items()},
        )
        observer.gauge(
            "penstock_serve_queries_unindexed",
            "Those among them that are tried on every change, because their filter has no term to look up by.",
            ("view",),
            lambda: {(name,): float(dispatch.unindexed) for name, dispatch in self._dispatches.items()},
        )

    async def start(self) -> None:
        self._announcing = asyncio.create_task(self._announce(), name="announce positions")

    async def stop(self) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        await asyncio.gather(*(dispatch.stop() for dispatch in self._dispatches.values()))
        await asyncio.gather(*(group.stop() for group in self._groups.values()))

    async def subscribe(self, view: View, question: Question, since: Position | None, receiver: Receiver) -> None:
        """Tell `receiver` everything behind `since`, or a snapshot and everything behind it, until cancelled.

        Raises `BadQueryError`, `OverBudgetError`, or what `receiver.send` raises.
        """
        while True:
            content = await view.loaded()
            query = question.query(view, content)
            try:
                offset = await self._offset(view, content, since)
                group = self._following[receiver] = self._group(view, content, query)
                await group.follow(receiver, offset, question.policy)
                reason = "the server fell behind" if view.content is content else "the view was rebuilt"
            except Gone as gone:
                reason = str(gone)
            finally:
                self._following.pop(receiver, None)
            since = None
            self.observer.emit(SubscriberReset(view.name, reason, question.policy))
            await receiver.send(reset(reason))

    def ahead_s(self, view: View, since: Position) -> float:
        """How long it takes at most until who asks behind `since` is told that it is ahead; 0 for who is not."""
        content = view.content
        ahead = content is not None and since.epoch == content.shown and since.offsets > (content.offset,)
        return AHEAD_S + 1 if ahead else 0.0

    def announce(self, receiver: Receiver) -> None:
        """Tell a subscriber how far it has come, where batches have passed it by."""
        if (group := self._following.get(receiver)) is not None:
            group.announce_to(receiver)

    async def announce_all(self) -> None:
        """The same for all of them, with the loop given back in between."""
        told = 0
        for group in list(self._groups.values()):
            await group.announce()
            told += 1 + len(group.members)
            if told >= FAN_OUT:
                told = 0
                await asyncio.sleep(0)

    async def _offset(self, view: View, content: Content, since: Position | None) -> int | None:
        if since is None:
            return None
        if since.epoch != content.shown or len(since.offsets) != 1:
            raise Gone("the position is of another build of the view")
        offset = since.offsets[0]
        if not await view.until(lambda: content.offset >= offset or view.content is not content, AHEAD_S):
            raise Gone("the position is ahead of this server")
        return offset

    def _group(self, view: View, content: Content, query: Query) -> QueryGroup:
        group = self._groups.get((view.name, query))
        if group is None or group.content is not content or group.ended.is_set():
            dispatch = self._dispatch(view, content)
            group = self._groups[view.name, query] = QueryGroup(dispatch, query, self.limits, self.observer)
        return group

    def _dispatch(self, view: View, content: Content) -> Dispatch:
        dispatch = self._dispatches.get(view.name)
        if dispatch is None or dispatch.content is not content or dispatch.ended:
            dispatch = self._dispatches[view.name] = Dispatch(view, content, self.observer)
        return dispatch

    async def _announce(self) -> None:
        while True:
            await asyncio.sleep(self._position_s / 2)
            self._groups = {key: group for key, group in self._groups.items() if not group.ended.is_set()}
            await self.announce_all()

    def _subscribers_by_view(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for (view, _), group in self._groups.items():
            counts[view,] = counts.get((view,), 0.0) + len(group.members)
        return counts
