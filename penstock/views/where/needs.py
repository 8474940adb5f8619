"""Thousands of filters must not be tried one by one on each row, so each says what must hold of a row that passes.

A *need* is a set of entries of which at least one must hold; a filter has several, and the index (`filter_index`) files
it under the one that it judges best. A need follows from the filter and says no more: a row without it cannot pass, a
row with it is tested in full.

1. An entry is about the value of an expression, computed as the filter itself computes it, casts included. So an
   index meets NULL, NaN, decimals and time zones as the filter does.
2. Only expressions that cannot raise are entries: looking a row up counts no error that testing it would not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_ENTRIES: Final = 1_000
"""Of one need; a filter with more values is tried on every row."""
MAX_NEEDS: Final = 16


@dataclass(frozen=True, slots=True)
class On:
    """An expression that rows are looked up by: its SQL text and kind of value identify it, the source computes it."""

    text: str
    family: str
    source: str

    @property
    def name(self) -> tuple[str, str]:
        return self.text, self.family


@dataclass(frozen=True, slots=True)
class Is:
    """The value is this one, which may be None."""

    on: On
    value: Any

    @property
    def rank(self) -> int:
        """The lower, the fewer rows are likely to have it."""
        return 4 if self.value is None or isinstance(self.value, bool) else 0


@dataclass(frozen=True, slots=True)
class Holds:
    """The value is an array with this element."""

    on: On
    value: Any

    @property
    def rank(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Within:
    """The value lies between two others, both included; None is no bound. NaN lies above every number."""

    on: On
    low: Any = None
    high: Any = None

    @property
    def rank(self) -> int:
        return 3 if self.low is None or self.high is None else 2


Entry = Is | Holds | Within
Need = tuple[Entry, ...]
"""One of these must hold. Without entries: it cannot be true."""
Needs = tuple[Need, ...]

NEVER: Final[Needs] = ((),)


def rank(need: Need) -> tuple[int, int]:
    """The lower, the better to file a filter under."""
    return max((entry.rank for entry in need), default=-1), len(need)


def all_of(parts: Iterable[Needs]) -> Needs:
    """The needs of a conjunction: those of every part; ranges of one expression are cut to what they share."""
    ranges: dict[tuple[str, str], Within] = {}
    others: list[Need] = []
    for need in (need for needs in parts for need in needs):
        if len(need) == 1 and isinstance(entry := need[0], Within):
            earlier = ranges.get(entry.on.name)
            ranges[entry.on.name] = entry if earlier is None else _shared(earlier, entry)
        else:
            others.append(need)
    others += [(entry,) for entry in ranges.values()]
    return tuple(sorted(dict.fromkeys(others), key=rank)[:MAX_NEEDS])


def _shared(one: Within, two: Within) -> Within:
    lows = [bound for bound in (one.low, two.low) if bound is not None]
    highs = [bound for bound in (one.high, two.high) if bound is not None]
    return Within(one.on, max(lows, default=None), min(highs, default=None))


def any_of(parts: Sequence[Needs]) -> Needs:
    """The needs of a disjunction: one of each part, joined; those about one expression where all parts have one."""
    if not parts or not all(parts):
        return ()
    joined = [_joined(part[0] for part in parts)]
    for name in _names(parts[0]):
        about = [next((need for need in part if _names([need]) == [name]), None) for part in parts if part != NEVER]
        if all(need is not None for need in about):
            joined.append(_joined(need for need in about if need is not None))
    return tuple(need for need in dict.fromkeys(joined) if len(need) <= MAX_ENTRIES)


def _joined(needs: Iterable[Need]) -> Need:
    return tuple(dict.fromkeys(entry for need in needs for entry in need))


def _names(needs: Iterable[Need]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(entry.on.name for need in needs for entry in need))
