"""How far back an event that is sent again is known by its id: what a stream may declare, and what holds otherwise.

>>> parse_horizon(50_000_000)
Horizon(ids=50000000, age_us=86400000000)
>>> parse_horizon("7 days")
Horizon(ids=10000000, age_us=604800000000)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock.config import duration_us
from penstock.errors import DeclarationError

MOST_IDS = 100_000_000
"""2 to 4 GB of memory; more than that belongs into several streams, or into keys that need no memory."""


@dataclass(frozen=True)
class Horizon:
    """At least the newest `ids` are known, unless they are older than `age_us`: memory is bounded by the first."""

    ids: int = 10_000_000
    age_us: int = 24 * 3600 * 1_000_000


def parse_horizon(value: int | str | timedelta | None) -> Horizon:
    """A number of ids, or a duration; the other of the two stays as it is by default."""
    if value is None:
        return Horizon()
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_IDS:
            raise DeclarationError(f"horizon={value}", hint=f"use 1 to {MOST_IDS} ids; each takes 20 to 40 bytes")
        return Horizon(ids=value)
    age_us = duration_us(value) if isinstance(value, str | timedelta) else 0
    if age_us <= 0:
        raise DeclarationError(f"horizon={value!r}", hint='use a number of ids, or a duration such as "7 days"')
    return Horizon(age_us=age_us)
