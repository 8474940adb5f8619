"""Lets one edge at a time run a pull: a lease in the control stream, taken, renewed and checked where commits are made.

1. Taking a lease is one step of the log's writer: nobody else can take it in between.
2. Every commit of a pull checks inside itself that the lease is still this holder's, so a holder that was thought
   dead and wakes up late writes nothing.
3. A lease that was taken under an older term of the log is free: its holder cannot write any more. So an edge that
   starts again after a crash does not wait for the lease of its former self.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.clock import Clock
from penstock.collect.counted import Group
from penstock.errors import LeaseLostError
from penstock.log.log import Log

LEASE_US = 30_000_000
RENEW_S = 10.0
"""Three tries before it runs out."""


class Leases:
    """The leases of one edge; `holder` names it."""

    def __init__(self, log: Log, group: Group, holder: str, clock: Clock) -> None:
        self._log, self._group, self._clock = log, group, clock
        self.holder = holder
        self._memory = log.memory()

    async def take(self, key: str) -> float:
        """Take or renew the lease: 0 when it is ours, else the seconds until it may be free."""
        return await asyncio.wrap_future(self._group.run(lambda: self._take(key)))

    async def renew(self, keys: Sequence[str]) -> None:
        """One commit for all that are still ours."""
        await asyncio.wrap_future(self._group.run(lambda: self._renew(keys)))

    async def release(self, keys: Sequence[str]) -> None:
        """Let others have them at once."""
        await asyncio.wrap_future(self._group.run(lambda: self._release(keys)))

    async def remember(self, key: str, values: Mapping[str, Any]) -> None:
        """A commit of these keys alone, if the lease is ours."""
        await asyncio.wrap_future(self._group.run(lambda: self._remember(key, values)))

    def check(self, key: str) -> None:
        """Called inside a commit. Raises `LeaseLostError` when the lease is another's by now."""
        if not self._is_ours(key):
            raise LeaseLostError(
                f"another edge runs the pull '{key}' by now",
                detail=f"its lease is held by '{(self._memory.get(_at(key)) or {}).get('holder')}'",
                hint="nothing: this edge waits until the lease is free again",
            )

    # On the writer's thread

    def _take(self, key: str) -> float:
        held = self._memory.get(_at(key))
        now_us = self._clock.now_us()
        if held and held["holder"] != self.holder and held["term"] >= self._log.term and held["until_us"] > now_us:
            return float(held["until_us"] - now_us) / 1e6
        self._log.append([], {_at(key): self._value()})
        return 0.0

    def _remember(self, key: str, values: Mapping[str, Any]) -> None:
        self.check(key)
        self._log.append([], dict(values))

    def _renew(self, keys: Sequence[str]) -> None:
        if ours := [key for key in keys if self._is_ours(key)]:
            self._log.append([], {_at(key): self._value() for key in ours})

    def _release(self, keys: Sequence[str]) -> None:
        if ours := [key for key in keys if self._is_ours(key)]:
            self._log.append([], {_at(key): None for key in ours})

    def _value(self) -> dict[str, Any]:
        return {"holder": self.holder, "until_us": self._clock.now_us() + LEASE_US, "term": self._log.term}

    def _is_ours(self, key: str) -> bool:
        return (self._memory.get(_at(key)) or {}).get("holder") == self.holder


def _at(key: str) -> str:
    return f"lease/{key}"
