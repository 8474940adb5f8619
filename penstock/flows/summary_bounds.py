"""Compares estimates within a bound with the values that they stand for: `verify` of quantiles and heavy hitters.

Under `summaries.exactly()` a view's function gives, where an estimate would stand, all values of its group and how the
estimate is meant. The rank or the count of the estimate among them is exact, and must lie within the stated bound. A
bound that holds 99 times of 100 may be missed by 3 rows of 100, and by 3 at least; those are listed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.summaries import CHECK, VALUES

MISSED_SHARE = 0.03
MISSED_LEAST = 3
_EPSILON = 1e-9

Equal = Callable[[Any, Any], bool]


@dataclass
class BoundReport:
    """What a comparison has found: what differs, and which bounds were missed that may be missed now and then."""

    differences: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    rows: int = 0

    def settle(self) -> None:
        """More misses than chance explains are differences."""
        if len(self.missed) > max(MISSED_LEAST, int(self.rows * MISSED_SHARE)):
            self.differences += self.missed
            self.missed = []


def compare_bounded(held: Mapping[Any, Any], exact: Mapping[Any, Any], equal: Equal) -> BoundReport:
    """Rows of a view by key, and what they stand for."""
    report = BoundReport(rows=len(held))
    for key in held.keys() | exact.keys():
        mine, theirs = held.get(key), exact.get(key)
        if mine is None or theirs is None:
            report.differences.append(f"{key}: {'not in the view' if mine is None else 'in the view alone'}")
            continue
        certain = [said for sure, said in _faults(mine, theirs, equal, "") if sure]
        likely = [said for sure, said in _faults(mine, theirs, equal, "") if not sure]
        if certain:
            report.differences.append(f"{key}: {'; '.join(certain)}")
        elif likely:
            report.missed.append(f"{key}: {'; '.join(likely)}")
    report.settle()
    report.differences.sort()
    return report


def _faults(mine: Any, theirs: Any, equal: Equal, at: str) -> Iterator[tuple[bool, str]]:
    """What is wrong with a value, and whether that is certain."""
    if isinstance(theirs, dict) and CHECK in theirs:
        facts = json.loads(theirs[CHECK])
        judge = {"rank": _rank_faults, "top": _top_faults}[facts["kind"]]
        for said in judge(mine, [value for value in theirs[VALUES] if value is not None], facts):
            yield facts.get("likely", 1.0) == 1.0, f"{at}: {said}"
    elif isinstance(theirs, dict) and isinstance(mine, dict) and mine.keys() == theirs.keys():
        checked = any(_is_checked(value) for value in theirs.values())
        for name, value in theirs.items():
            if not (checked and name == "sketch"):  # chance decides its bytes; what it says is compared
                yield from _faults(mine[name], value, equal, f"{at}.{name}".lstrip("."))
    elif isinstance(theirs, list) and any(map(_is_checked, theirs)):
        for number, value in enumerate(theirs):
            yield from _faults(mine[number] if mine else None, value, equal, f"{at}[{number}]")
    elif not equal(mine, theirs):
        yield True, f"{at}: view {mine}, batch {theirs}"


def _is_checked(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_checked, value))
    return isinstance(value, dict) and CHECK in value


def _rank_faults(mine: Any, values: list[float], facts: Mapping[str, Any]) -> Iterator[str]:
    if not values or mine is None:
        if bool(values) or mine is not None:
            yield f"{mine} of {len(values)} values"
        return
    ordered = np.sort(np.asarray(values, float))
    low, high = (float(np.searchsorted(ordered, mine, side)) / len(ordered) for side in ("left", "right"))
    slack = facts["error"] + 1 / len(ordered) + _EPSILON
    if not (low - slack <= facts["at"] <= high + slack):
        wanted = f"{facts['at']} ± {facts['error']:.5f}"
        yield f"{mine} has the rank {low:.5f} to {high:.5f} of {len(ordered)} values, not {wanted}"


def _top_faults(mine: Any, values: list[Any], facts: Mapping[str, Any]) -> Iterator[str]:
    exact, shown = Counter(values), {each["item"]: each["count"] for each in mine or ()}
    bound = facts["error"] * len(values) + 1
    for item, count in shown.items():
        if abs(count - exact[item]) > bound:
            yield f"{item!r} came {exact[item]} times, not {count} ± {bound:.0f}"
    least = min(shown.values()) if len(shown) >= facts["k"] else 0
    for item, count in exact.items():
        if item not in shown and count > least + 2 * bound:
            yield f"{item!r} came {count} times and is not shown"
