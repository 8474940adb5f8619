"""What an app declares for the case of too much: how fast senders may send, what may be dropped, how far views may lag.

>>> parse_rate("1000/s", None)
Rate(per_s=1000.0, burst=1000)
>>> parse_max_lag("30 seconds"), parse_max_lag(100_000)
(MaxLag(us=30000000, events=None), MaxLag(us=None, events=100000))
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, cast

from penstock.config import duration_us
from penstock.errors import DeclarationError

Rule = Literal["newest", "random", "priority", "sample"]
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*([a-z]+)\s*")
_RULES = "use 'newest', 'random', 'sample' (whole keys) or 'priority:<field>'"


@dataclass(frozen=True)
class Rate:
    """How many events a second one account may send to a stream, and how many at once after a pause."""

    per_s: float
    burst: int


@dataclass(frozen=True)
class Shed:
    """Which events go when there is too much of them. `field` holds the priority, of which larger is kept longer."""

    rule: Rule
    field: str | None = None


@dataclass(frozen=True)
class MaxLag:
    """How far a view may fall behind before senders of its inputs have to wait: a time or a number of events."""

    us: int | None = None
    events: int | None = None

    def __str__(self) -> str:
        return f"{self.events} events" if self.us is None else f"{self.us / 1e6:g} s"


def parse_rate(text: str | None, burst: int | None) -> Rate | None:
    """`"1000/s"`, `"60/minute"`; without a burst, what comes in one second, and at least one event."""
    if text is None:
        if burst is not None:
            raise DeclarationError(f"burst={burst} without a rate", hint='add rate="1000/s"')
        return None
    match = _RATE.fullmatch(text.lower())
    if match is None or float(match[1]) <= 0:
        raise DeclarationError(f"rate='{text}'", hint="write events and a unit of time: '1000/s', '60/minute'")
    per_s = float(match[1]) * 1e6 / duration_us(f"1 {match[2]}")
    if burst is not None and burst < 1:
        raise DeclarationError(f"burst={burst}", hint="use 1 or more events")
    return Rate(per_s, burst or max(1, round(per_s)))


def parse_shed(overload: str, shed: str | None, keyed: bool) -> Shed | None:
    """None where senders wait instead (`overload="refuse"`)."""
    if overload not in ("refuse", "shed"):
        raise DeclarationError(f"overload='{overload}'", hint="use 'refuse' (senders get 503) or 'shed'")
    if overload == "refuse":
        if shed is not None:
            raise DeclarationError(f"shed='{shed}' without overload='shed'", hint="add overload='shed'")
        return None
    rule, _, field = (shed or "newest").partition(":")
    if rule not in ("newest", "random", "priority", "sample") or (rule == "priority") != bool(field):
        raise DeclarationError(f"shed='{shed}'", hint=_RULES)
    if rule == "sample" and not keyed:
        raise DeclarationError("shed='sample' keeps whole keys, and the stream has no key", hint="add key=...")
    return Shed(cast(Rule, rule), field or None)


def parse_max_lag(value: str | timedelta | int | None) -> MaxLag | None:
    """A duration, or a number of events."""
    if value is None:
        return None
    limit = MaxLag(events=value) if isinstance(value, int) else MaxLag(us=duration_us(value))
    if (limit.events or limit.us or 0) <= 0:
        raise DeclarationError(f"max_lag={value!r}", hint="use a duration ('30 seconds') or a number of events")
    return limit
