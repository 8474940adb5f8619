"""Estimates what a view holds in memory, so that a view that outgrows its budget stops itself and not the process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from penstock.change import Key, Row
from penstock.errors import OverBudgetError

_SAMPLE = 200
_ENTRY_BYTES = 130
"""A dict entry, its share of free slots, and the key's tuple."""


def over_budget(view: str, budget_bytes: int) -> OverBudgetError:
    return OverBudgetError(
        f"the view '{view}' outgrew its memory budget",
        detail=f"its rows need more than {budget_bytes} bytes",
        hint="narrow it with where= or keep=, or aggregate further, and start again",
    )


def row_bytes(rows: Iterable[Row]) -> float:
    """The average size of a row, by a sample from the front.

    >>> row_bytes([]) == 0
    True
    """
    sizes = [_deep(row) for row in islice(rows, _SAMPLE)]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _deep(value: Any) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(_deep(item) for item in value.values())
    if isinstance(value, tuple | list):
        return size + sum(_deep(item) for item in value)
    return size


def rows_bytes(rows: Mapping[Key, Row], average: float) -> int:
    """What all rows take, given the average size of one."""
    return int(len(rows) * (average + _ENTRY_BYTES))
