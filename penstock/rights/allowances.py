"""How much one credential may ask, and how many connections it may hold open, so that none takes what all need.

A key's own limits come before those of the server. Whoever comes without a credential (on a server that has no key)
and the process that started this one are not limited: nobody could tell the one from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from penstock.clock import Clock
from penstock.errors import TooManyError
from penstock.overload import Rate
from penstock.rights.buckets import Buckets
from penstock.rights.credential import ANONYMOUS, NOBODY, Credential
from penstock.rights.signals import LimitReached, Signals

IsOver = Callable[[], bool]
RETRY_S = 5.0
"""When it is worth asking again for a connection: others end when they end."""


class Allowances:
    """What each credential has used; lives on the edge's loop."""

    def __init__(self, rate: Rate | None, connections: int | None, clock: Clock, signals: Signals) -> None:
        """`rate` and `connections` are those of a credential that has none of its own; None: no limit."""
        self._rate, self._connections = rate, connections
        self._clock, self._signals = clock, signals
        self._buckets: dict[Rate, Buckets] = {}
        self._open: dict[str, list[IsOver]] = {}

    @property
    def open(self) -> int:
        """Connections that are held under some credential."""
        return sum(map(len, self._open.values()))

    def ask(self, credential: Credential) -> None:
        """One request. Raises `TooManyError`, with when the next may come."""
        try:
            self._use(credential)
        except TooManyError:
            self._signals(LimitReached("rate"))
            raise

    def grants(self, credential: Credential) -> bool:
        """One request, if it may be; else nothing is used or counted."""
        try:
            self._use(credential)
        except TooManyError:
            return False
        return True

    def _use(self, credential: Credential) -> None:
        rate = credential.rate or self._rate
        if rate is None or _is_free(credential):
            return
        buckets = self._buckets.get(rate)
        if buckets is None:
            buckets = self._buckets[rate] = Buckets("this credential asks more often than it may", rate, self._clock)
        buckets.take(credential.id, 1)

    @contextmanager
    def held(self, credential: Credential, is_over: IsOver) -> Iterator[None]:
        """A connection that stays. `is_over`: its client has gone, whoever serves it may learn that later.

        Raises `TooManyError`.
        """
        held = self._open.setdefault(credential.id, [])
        try:
            self._check(credential, held)
            held.append(is_over)
            yield
        finally:
            with suppress(ValueError):
                held.remove(is_over)
            if not held and self._open.get(credential.id) is held:
                del self._open[credential.id]

    def _check(self, credential: Credential, held: list[IsOver]) -> None:
        most = self._connections if credential.connections is None else credential.connections
        if most is None or _is_free(credential) or len(held) < most:
            return
        held[:] = [is_over for is_over in held if not is_over()]
        if len(held) >= most:
            self._signals(LimitReached("connections"))
            raise TooManyError(
                "this credential has as many connections open as it may",
                detail=f"{most} sockets and streams of events",
                hint="share one socket among subscriptions, or close one; a key's limit is set by "
                "penstock keys create --connections",
            ).after(RETRY_S)


def _is_free(credential: Credential) -> bool:
    return credential.id in (ANONYMOUS.id, NOBODY.id, "supervisor")
