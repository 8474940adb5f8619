"""How much one account may ask, and how many connections it may hold open, so that none takes what all need.

A rate is a bucket of tokens for each account, one token for each event or request. A bucket fills at the rate, up to
the burst. A request of more events than the burst needs a full bucket and leaves a debt, which is paid off before the
next: the rate holds, and no size of request is refused for ever. Buckets that are full again are forgotten, since a
new one is full too, so only those who have sent lately take memory; above a number the one that was used longest ago
goes, which only ever favours its sender.

A key's own limits come before those of the server. Whoever comes without a credential (on a server that has no key)
and the process that started this one are not limited: nobody could tell the one from the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from penstock.clock import Clock
from penstock.errors import TooManyError
from penstock.observe.signals import LimitReached, Signals
from penstock.overload import Rate
from penstock.rights.credential import ANONYMOUS, NOBODY, Credential

IsOver = Callable[[], bool]
MOST_ACCOUNTS = 10_000
"""Buckets of one stream, or of one rate of requests: about 2 MB."""
SWEEP_ACCOUNTS = 1_000
"""With as many buckets the full ones are looked for, at most once a second."""


class Buckets:
    """The accounts of one stream, or of one rate of requests; lives on the edge's loop."""

    def __init__(
        self, message: str, rate: Rate, clock: Clock, most: int = MOST_ACCOUNTS, *, unit: str = "requests"
    ) -> None:
        """`message` is what an account above its rate is told; `unit` what is counted."""
        self._message, self._unit = message, unit
        self._rate, self._clock, self._most = rate, clock, most
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._swept_s = 0.0

    def __len__(self) -> int:
        return len(self._tokens)

    def check(self, account: str) -> None:
        """Raises `TooManyError` when not even one event would be taken: before its body is read."""
        self._enough(account, 1)

    def take(self, account: str, events: int) -> None:
        """Raises `TooManyError`, with when the tokens will be there, and takes none."""
        if events:
            now_s = self._clock.monotonic()
            self._tokens[account] = (self._enough(account, events) - events, now_s)
            self._tokens.move_to_end(account)
            if len(self._tokens) > min(SWEEP_ACCOUNTS, self._most):
                self._sweep(now_s)

    def give_back(self, account: str, events: int) -> None:
        """Tokens of events that were not taken after all."""
        if account in self._tokens:  # else it is full
            self._tokens[account] = (self._now(account) + events, self._clock.monotonic())

    def wait_s(self, account: str, events: int) -> float:
        """Until so many events may be taken; 0 when they may now."""
        needed = min(events, self._rate.burst) - self._now(account)
        return max(0.0, needed / self._rate.per_s)

    def _enough(self, account: str, events: int) -> float:
        """The tokens there are, if they are enough."""
        wait_s = self.wait_s(account, events)
        if wait_s > 1e-9:
            came = f"; {events} came" if events > 1 else ""  # of a request that was not read, nobody knows how many
            raise TooManyError(
                self._message,
                detail=f"{self._rate.per_s:g} {self._unit} per second, {self._rate.burst} at once{came}",
                hint="send the same request again after the time in Retry-After",
            ).after(wait_s)
        return self._now(account)

    def _now(self, account: str) -> float:
        tokens, at_s = self._tokens.get(account, (float(self._rate.burst), self._clock.monotonic()))
        return min(self._rate.burst, tokens + (self._clock.monotonic() - at_s) * self._rate.per_s)

    def _sweep(self, now_s: float) -> None:
        if now_s - self._swept_s >= 1.0:
            self._swept_s = now_s
            for account in [a for a in self._tokens if self._now(a) >= self._rate.burst]:
                del self._tokens[account]
        while len(self._tokens) > self._most:
            self._tokens.popitem(last=False)


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
                detail=f"{most} sockets, streams of events and requests that wait",
                hint="share one socket among subscriptions, or close one; a key's limit is set by "
                "penstock keys create --connections",
            ).after(RETRY_S)


def _is_free(credential: Credential) -> bool:
    return credential.id in (ANONYMOUS.id, NOBODY.id, "supervisor")
