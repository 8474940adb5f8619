"""What a query's answer was and what it has been told since, made from the view's history for those who come late."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from penstock.change import Key, Row
from penstock.serve.fanout.answers import SMALL_ROWS, prepare
from penstock.serve.fanout.member import Gone
from penstock.serve.fanout.messages import Message, MessageMaker
from penstock.views.history import Batch
from penstock.views.read_query import Delta, Query
from penstock.views.store import Content
from penstock.views.top_rows import RESERVE_ROWS, TopState

T = TypeVar("T")

REPLAY_BYTES = 4 * 1024**2
"""How much history is evaluated at once for one who catches up."""


class QueryHistory:
    """The history of one query on one build of a view. Belongs to the edge's loop; large work happens in threads."""

    def __init__(self, content: Content, query: Query, make: MessageMaker) -> None:
        self._content, self._query, self._make = content, query, make

    async def ready(self) -> None:
        """Called before batches are taken, so that a state before them costs as little as it can."""
        await prepare(self._query, self._content, RESERVE_ROWS)

    def since(self, at: int) -> Sequence[Batch]:
        """The batches behind an offset. Raises `Gone` when some of them are no longer kept."""
        batches = self._content.history.after(at)
        if batches is None:
            raise Gone("the position is older than what is kept")
        return batches

    async def replayed(self, offset: int, target: int) -> tuple[list[Message], int]:
        """The messages behind `offset`, of as many batches up to `target` as are evaluated at once, and where they
        end."""
        await self.ready()
        known = self.since(offset)
        batches: Sequence[Batch] = [batch for batch in known if batch.end <= target]
        if self._query.limit is None:
            batches = _page(batches)
            state = TopState(self._query, {})
        else:
            state = await self.state_before(known)

        def evaluate() -> list[Message]:
            told = ((batch, state.apply(batch.changes)) for batch in batches)
            return [m for batch, t in told if (m := self.message(t, batch.end, batch)) is not None]

        return await maybe_in_thread(_changes(batches), evaluate), batches[-1].end

    async def state_before(self, batches: Sequence[Batch]) -> TopState:
        """The state before these batches, which lead up to the present: the present rows, taken back.

        Its reserve covers every change that can be applied to it on the way back to the present.
        """
        changes = _changes(batches)
        reserve = RESERVE_ROWS + changes
        rows = self._content.top(self._query, (self._query.limit or 0) + reserve + changes + 1)
        return await maybe_in_thread(
            len(rows) + changes, lambda: TopState(self._query, EarlierRows(rows, batches), reserve)
        )

    def message(self, told: Delta | None, end: int, newest: Batch | None) -> Message | None:
        """None when there is nothing to tell. Raises `Gone` when that is not known."""
        if told is None:
            raise Gone("too few rows were kept")
        upserts, deletes = told
        meta = None if newest is None else newest.meta
        return self._make.changes(upserts, deletes, end, meta) if upserts or deletes else None


class Backlog:
    """The newest messages of a group, for those who catch up: every one behind `start`."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._messages: deque[Message] = deque()
        self._bytes = 0

    def add(self, message: Message, most_bytes: int) -> None:
        self._messages.append(message)
        self._bytes += len(message.payload)
        while self._bytes > most_bytes and len(self._messages) > 1:
            gone = self._messages.popleft()
            self._bytes -= len(gone.payload)
            self.start = gone.end

    def extend_back(self, messages: Sequence[Message], start: int) -> None:
        """These come before all that is here, and are all behind `start`."""
        self._messages.extendleft(reversed(messages))
        self._bytes += sum(len(message.payload) for message in messages)
        self.start = start

    def after(self, offset: int) -> list[Message]:
        return [message for message in self._messages if message.end > offset]


class EarlierRows:
    """The rows as they were before some batches, without copying a large view.

    Of the first rows of an order it gives the first ones of then, as many as there are less those that changed since.
    """

    def __init__(self, rows: Mapping[Key, Row], batches: Sequence[Batch]) -> None:
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


def _changes(batches: Sequence[Batch]) -> int:
    return sum(len(batch.changes) for batch in batches)


def _page(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The first batches, as many as `REPLAY_BYTES` allow, but at least one."""
    size = 0
    for number, batch in enumerate(batches):
        size += batch.bytes
        if size > REPLAY_BYTES:
            return batches[: max(1, number)]
    return batches


async def maybe_in_thread(size: int, call: Callable[[], T], threshold: int = SMALL_ROWS) -> T:
    """On the loop when there is little to do, else in a thread."""
    return call() if size <= threshold else await asyncio.to_thread(call)
