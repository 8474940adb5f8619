"""Remembers what became of requests that did not wait (`ack=none`), so that their receipt leads to an answer later.

1. A receipt is written in the commit of its own events, under `receipt/<id>` in the control stream: whoever finds
   the receipt finds the events, also after a crash.
2. It is forgotten after an hour, and the oldest of more than 100,000 go first.
3. A receipt whose events were lost before their commit is unknown: that is what `none` means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.collect.intake import Outcome
from penstock.position import Position

KEPT_US = 3_600_000_000
MOST_KEPT = 100_000
REJECTIONS_KEPT = 100
"""In a receipt; the stream `dead` has all of them."""
FORGET_AT_ONCE = 64
"""Receipts forgotten in one commit at most, so that no commit becomes long by it."""
_PREFIX = "receipt/"


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request, as the control stream keeps it."""

    at_us: int
    stream: str
    epoch: str
    offsets: list[int]
    accepted: int = 0
    duplicates: int = 0
    rejected: list[dict[str, Any]] = []
    rejected_in_all: int = 0
    shed: int = 0
    error: dict[str, Any] | None = None

    @property
    def position(self) -> Position:
        return Position("stream", self.stream, self.epoch, tuple(self.offsets))


class Receipts:
    """All receipts that are known; lives on the edge's loop."""

    def __init__(self, memory: Mapping[str, Any], clock: Clock) -> None:
        self._clock = clock
        kept = [
            (k.removeprefix(_PREFIX), msgspec.convert(v, Receipt)) for k, v in memory.items() if k.startswith(_PREFIX)
        ]
        self._kept: dict[str, Receipt] = dict(sorted(kept, key=lambda item: item[1].at_us))
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._lost: dict[str, dict[str, Any]] = {}

    def open(self, id: str) -> None:
        self._pending[id] = asyncio.get_running_loop().create_future()

    def made(self, outcome: Outcome, error: dict[str, Any] | None = None) -> Receipt:
        """A receipt for what has become of a request."""
        at = outcome.position
        return Receipt(
            at_us=self._clock.now_us(),
            stream=at.name,
            epoch=at.epoch,
            offsets=list(at.offsets),
            accepted=outcome.accepted,
            duplicates=outcome.duplicates,
            rejected=[rejection.body() for rejection in outcome.rejections[:REJECTIONS_KEPT]],
            rejected_in_all=len(outcome.rejections),
            shed=outcome.shed,
            error=error,
        )

    def expired(self) -> list[str]:
        """The ids to forget with the next commit."""
        oldest = self._clock.now_us() - KEPT_US
        over = len(self._kept) + 1 - MOST_KEPT
        ids = []
        for at, (id, receipt) in enumerate(islice(self._kept.items(), FORGET_AT_ONCE)):
            if at >= over and receipt.at_us >= oldest:
                break
            ids.append(id)
        return ids

    def keys(self, id: str, receipt: Receipt, expired: list[str]) -> dict[str, Any]:
        """What the commit must remember."""
        return {f"{_PREFIX}{id}": msgspec.to_builtins(receipt)} | {f"{_PREFIX}{old}": None for old in expired}

    def settle(self, id: str, receipt: Receipt, expired: list[str]) -> None:
        """The commit is durable."""
        for old in expired:
            self._kept.pop(old, None)
        self._kept[id] = receipt
        self._wake(id)

    def lose(self, id: str, error: dict[str, Any]) -> None:
        """The commit failed: this process can still say why."""
        self._lost[id] = error
        while len(self._lost) > MOST_KEPT:
            self._lost.pop(next(iter(self._lost)))
        self._wake(id)

    async def find(self, id: str, wait_s: float) -> Receipt | None:
        """The receipt, waiting for one that is under way; None when it is unknown, lost or still pending."""
        if (pending := self._pending.get(id)) is not None and wait_s > 0:
            await asyncio.wait([pending], timeout=wait_s)
        receipt = self._kept.get(id)
        return receipt if receipt and receipt.at_us >= self._clock.now_us() - KEPT_US else None

    def pending(self, id: str) -> bool:
        return id in self._pending

    def lost(self, id: str) -> dict[str, Any] | None:
        return self._lost.get(id)

    def _wake(self, id: str) -> None:
        pending = self._pending.pop(id, None)
        if pending is not None and not pending.done():
            pending.set_result(None)
