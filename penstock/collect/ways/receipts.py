"""Remembers what became of requests that did not wait (`ack=none`), so that their receipt leads to an answer later.

1. A receipt is kept for an hour, as `kept_replies.py` says.
2. A receipt whose events were lost before their commit is unknown: that is what `none` means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.clock import Clock
from penstock.collect.intake import Keys
from penstock.collect.judging.rejection import Rejection
from penstock.collect.ways.kept_replies import MOST_KEPT, KeptReply, ReplyBook
from penstock.errors import BadBodyError
from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.position import Position

KEPT_US = 3_600_000_000


class Receipts:
    """All receipts that are known; lives on the edge's loop."""

    def __init__(self, memory: ControlMap, clock: Clock) -> None:
        self._book = ReplyBook(memory, control_keys.receipt, clock, KEPT_US)
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._lost: dict[str, dict[str, Any]] = {}

    def open(self, id: str) -> None:
        self._pending[id] = asyncio.get_running_loop().create_future()

    def taken(self, id: str, rejections: Sequence[Rejection], shed: int) -> Keys:
        """What the commit of the request's events writes."""
        return self._book.keys(id, rejections, shed)

    def unread(self, id: str, end: Position, error: BadBodyError) -> dict[str, Any | None]:
        """What the commit writes that keeps a body that cannot be read."""
        sets, reply = self._book.keys(id, ack=end.token(), error=error.body())
        assert reply is not None
        return {**sets, reply[0]: reply[1]}

    def close(self, id: str) -> None:
        """The commit is durable, or will not be."""
        pending = self._pending.pop(id, None)
        if pending is not None and not pending.done():
            pending.set_result(None)

    def lose(self, id: str, error: dict[str, Any]) -> None:
        """The commit failed: this process can still say why."""
        self._lost[id] = error
        while len(self._lost) > MOST_KEPT:
            self._lost.pop(next(iter(self._lost)))
        self.close(id)

    async def find(self, id: str, wait_s: float) -> KeptReply | None:
        """The receipt, waiting for one that is under way; None when it is unknown, lost or still pending."""
        if (pending := self._pending.get(id)) is not None and wait_s > 0:
            await asyncio.wait([pending], timeout=wait_s)
        return self._book.find(id)

    def pending(self, id: str) -> bool:
        return id in self._pending

    def lost(self, id: str) -> dict[str, Any] | None:
        return self._lost.get(id)
