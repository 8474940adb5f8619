"""Holds accounts to a rate, a stream's or a key's: a bucket of tokens for each, one token for each event or request.

A bucket fills at the rate, up to the burst. A request of more events than the burst needs a full bucket and leaves a
debt, which is paid off before the next: the rate holds, and no size of request is refused for ever. Buckets that are
full again are forgotten, since a new one is full too, so memory is bounded by who has sent lately; above a number the
one that was used longest ago goes, which only ever favours its sender.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.clock import Clock
from penstock.errors import TooManyError
from penstock.overload import Rate

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
        self._short(account, 1)

    def take(self, account: str, events: int) -> None:
        """Raises `TooManyError`, with when the tokens will be there, and takes none."""
        if events:
            now_s = self._clock.monotonic()
            left = self._short(account, events) - events
            self._tokens[account] = (left, now_s)
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

    def _short(self, account: str, events: int) -> float:
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
