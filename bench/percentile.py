"""The statistics of the benchmarks, apart from anything that measures, so that they can be tested."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, between two neighbours in proportion.

    >>> percentile([1, 2, 3, 4], 0.5)
    2.5
    """
    if not values:
        raise ValueError("no values, no percentile")
    if not 0 <= share <= 1:
        raise ValueError(f"a share lies between 0 and 1, not {share}")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


@dataclass(frozen=True)
class Spread:
    """A distribution in the three figures that are told of it."""

    count: int
    p50: float
    p99: float


def spread(values: Iterable[float]) -> Spread | None:
    """None when there is nothing to tell of.

    >>> spread([3.0, 1.0, 2.0])
    Spread(count=3, p50=2.0, p99=2.98)
    """
    known = list(values)
    return Spread(len(known), percentile(known, 0.5), percentile(known, 0.99)) if known else None
