"""Lets one edge at a time run a pull: a lease in the control stream, which every commit of the pull requires.

1. A lease is taken under the condition that it is still what was seen: nobody else can take it in between.
2. Every commit of a pull requires the lease to be this holder's, so a holder that was thought dead and wakes up late
   writes nothing.
3. A lease that was taken under an older term of the log is free: its holder cannot write any more. So an edge that
   starts again after a crash does not wait for the lease of its former self.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.clock import Clock
from penstock.errors import ConditionError, LeaseLostError
from penstock.log import control_keys
from penstock.log.group_commit import GroupCommit, first_taken
from penstock.log.log import Append, KeyIs, Log

LEASE_US = 30_000_000
RENEW_S = 10.0
"""Three tries before it runs out."""


class Leases:
    """The leases of one edge; `holder` names it. A pull is named by its key."""

    def __init__(self, log: Log, group: GroupCommit, holder: str, clock: Clock) -> None:
        self._memory, self._group, self._clock = log.memory(), group, clock
        self._term = log.term
        self._ours = {"holder": holder, "term": log.term}

    def held(self, pull: str) -> KeyIs:
        """The condition under which a commit of this pull is taken."""
        return KeyIs(control_keys.lease(pull), self._ours)

    def check(self, pull: str) -> None:
        """Raises `LeaseLostError` when the lease is another's by now."""
        there = self._memory.get(control_keys.lease(pull)) or {}
        if there != self._ours:
            raise LeaseLostError(
                f"another edge runs the pull '{pull}' by now",
                detail=f"its lease is held by '{there.get('holder')}'",
                hint="nothing: this edge waits until the lease is free again",
            )

    async def take(self, pull: str) -> float:
        """Take or renew the lease: 0 when it is ours, else the seconds until it may be free."""
        lease, end = control_keys.lease(pull), control_keys.lease_end(pull)
        while True:
            there, end_us = self._memory.get(lease), self._memory.get(end)
            if wait_us := self._wait_us(there, end_us):
                return wait_us / 1e6
            seen = (KeyIs(lease, there), KeyIs(end, end_us))
            try:
                await first_taken(self._group.append([Append(sets=self._lease(pull), requires=seen)]))
            except ConditionError:  # somebody was quicker: look again
                continue
            return 0.0

    async def renew(self, pulls: Iterable[str]) -> None:
        """One commit for all that are still ours."""
        await self._set({pull: {control_keys.lease_end(pull): self._end_us()} for pull in pulls})

    async def release(self, pulls: Iterable[str]) -> None:
        """Let others have them at once."""
        await self._set({pull: dict.fromkeys(self._lease(pull)) for pull in pulls})

    async def _set(self, values: dict[str, dict[str, Any]]) -> None:
        await self._group.append([Append(sets=sets, requires=(self.held(pull),)) for pull, sets in values.items()])

    def _lease(self, pull: str) -> dict[str, Any]:
        return {control_keys.lease(pull): self._ours, control_keys.lease_end(pull): self._end_us()}

    def _wait_us(self, there: dict[str, Any] | None, end_us: int | None) -> int:
        if there is None or there == self._ours or there["term"] < self._term:
            return 0
        return max(0, (end_us or 0) - self._clock.now_us())

    def _end_us(self) -> int:
        return self._clock.now_us() + LEASE_US
