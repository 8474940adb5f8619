"""Keeps replies to requests in the control stream, so that they can be given again: receipts, and idempotent requests.

1. A reply is written in the commit of the request's own events: whoever finds the events finds it, after a crash too.
2. It is forgotten after a time. The oldest go earlier when there are more than 100,000, or too many bytes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.collect.intake import Keys
from penstock.collect.judging.rejection import Rejection
from penstock.log.control import ControlMap
from penstock.log.control_keys import KeyFamily
from penstock.position import Position

MOST_KEPT = 100_000
REJECTIONS_KEPT = 100
"""In a reply; the stream `dead` has all of them."""
FORGET_AT_ONCE = 64
"""Replies forgotten in one commit at most, so that no commit becomes long by it."""
_OVERHEAD_BYTES = 500


class KeptReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request, as the control stream keeps it."""

    at_us: int
    ack: str | None = None
    accepted: int = 0
    duplicates: int = 0
    rejected: list[dict[str, Any]] = []
    rejected_in_all: int = 0
    shed: int = 0
    body: str | None = None
    """Hash of what was sent, of an idempotent request."""
    error: dict[str, Any] | None = None
    """Of a body that could not be read."""
    stream: str = ""
    epoch: str = ""
    offsets: list[int] = []
    """Receipts of earlier versions have these instead of `ack`."""

    @property
    def position(self) -> Position:
        if self.ack is not None:
            return Position.parse(self.ack)
        return Position("stream", self.stream, self.epoch, tuple(self.offsets))

    @property
    def received(self) -> int:
        return self.accepted + self.duplicates + self.rejected_in_all + self.shed


class ReplyBook:
    """The replies of one kind; lives on the edge's loop."""

    def __init__(
        self, memory: ControlMap, family: KeyFamily, clock: Clock, kept_us: int, most_bytes: int | None = None
    ) -> None:
        self._memory, self._family, self._clock, self._kept_us = memory, family, clock, kept_us
        self._most_bytes = most_bytes
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        if most_bytes is not None:
            memory.watch(family, self._weigh)
            self._weigh(memory.family(family))

    def find(self, id: str) -> KeptReply | None:
        """What was replied, unless it is too long ago."""
        stored = self._memory.get(self._family(id))
        if stored is None or stored["at_us"] < self._clock.now_us() - self._kept_us:
            return None
        return msgspec.convert(stored, KeptReply)

    def keys(self, id: str, rejections: Sequence[Rejection] = (), shed: int = 0, **more: Any) -> Keys:
        """What the commit of a request writes, so that its reply can be found under this id."""
        facts = {
            "at_us": self._clock.now_us(),
            "rejected": [rejection.body() for rejection in rejections[:REJECTIONS_KEPT]],
            "rejected_in_all": len(rejections),
            "shed": shed,
        }
        return Keys(self._expired(), (self._family(id), facts | more))

    def _expired(self) -> dict[str, None]:
        """The keys to forget with the next commit."""
        oldest_us = self._clock.now_us() - self._kept_us
        over = self._memory.size(self._family) + 1 - MOST_KEPT
        over_bytes = 0 if self._most_bytes is None else self._bytes - self._most_bytes
        keys: dict[str, None] = {}
        for key, stored in self._memory.family(self._family, FORGET_AT_ONCE).items():
            if len(keys) >= over and over_bytes <= 0 and stored["at_us"] >= oldest_us:
                break
            over_bytes -= self._sizes.get(key, 0)
            keys[key] = None
        return keys

    def _weigh(self, changed: Mapping[str, Any | None]) -> None:
        """In the thread that feeds the memory: about what the replies take there."""
        for key, stored in changed.items():
            size = 0 if stored is None else _size(stored)
            self._bytes += size - self._sizes.pop(key, 0)
            if size:
                self._sizes[key] = size


def _size(stored: Mapping[str, Any]) -> int:
    return _OVERHEAD_BYTES + sum(100 + 2 * len(str(each.get("detail"))) for each in stored.get("rejected", ()))
