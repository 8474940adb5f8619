"""One subscriber in a group: how far it has come, and whether batches are offered to it or merged for it later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.change import Key, Row
from penstock.declaration import Policy
from penstock.serve.fanout.receiver import Receiver
from penstock.views.read_query import Query, key_of

Shown = Mapping[Key, Row]
"""The rows that a subscriber sees by key, projected."""


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

    async def paused(self, pace_s: float) -> bool:
        """Wait for the next multiple of the pace, so that members of equal pace share what is made for them.

        False when something came in between: another pace, or the end.
        """
        self.hurry.clear()
        now = asyncio.get_running_loop().time()
        return not await in_time(self.hurry.wait, pace_s - now % pace_s)


def shown_rows(query: Query, rows: Sequence[Row]) -> Shown:
    """Projected rows by key; a projection keeps the key's columns."""
    names = [column.name for column in query.output]
    indexes = [names.index(name) for name in query.key]
    return {key_of(row, indexes): row for row in rows}


class Gone(Exception):
    """A subscriber cannot be brought up to date by changes."""


async def in_time(call: Callable[[], Awaitable[object]], seconds: float) -> bool:
    """Whether it returned within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await call()
        return True
    except TimeoutError:
        return False
