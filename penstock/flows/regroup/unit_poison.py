"""Units on which a view's query fails: found by halving, left out of the view, and tried again when they change.

One row may make a query fail: a division by zero, a number that overflows. Computed together with others its unit
would hold up all of them. So units that fail together are halved until those are found that fail alone. They leave the
view and stand in `dead` and in the build's skip list, which survives restarts; whenever one of their rows changes they
are computed again, each by itself. If all of several fail, or many, it is the function that is wrong: the view stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock import schema as columns_
from penstock.errors import PenstockError
from penstock.flows import failure
from penstock.log import control_keys
from penstock.log.folder_log import DEAD

TRIES = 3
"""Computations that fail before units are halved: most failures pass by themselves."""
_MOST_UNITS = 10
_MOST_SHARE = 0.01

Compute = Callable[[set[bytes]], pa.Table]


class FunctionFailsError(Exception):
    """All units fail, or so many that it is the function; its cause is what Spark said."""


class TooSlowError(Exception):
    """The computation was cut off, which says nothing of its units."""


@dataclass(frozen=True)
class UnitResults:
    """Rows of units that were computed together, and those that fail alone with the reason."""

    parts: list[tuple[set[bytes], pa.Table]]
    failed: dict[bytes, str]


def compute_units(compute: Compute, slices: Iterable[set[bytes]], suspects: Iterable[bytes], tries: int) -> UnitResults:
    """Compute units slice by slice, and those that have failed before each alone. What a slice raises is raised, until
    so many tries have failed that it is halved."""
    parts: list[tuple[set[bytes], pa.Table]] = []
    failed: dict[bytes, BaseException] = {}
    for unit in sorted(suspects):
        parts += _halved(compute, {unit}, failed)
    known = set(failed)
    total = 0
    for some in slices:
        total += len(some)
        parts += _halved(compute, some, failed) if tries >= TRIES - 1 else [(some, compute(some))]
    new = failed.keys() - known
    if len(new) > max(_MOST_UNITS, int(total * _MOST_SHARE)) or len(new) == total > 1:
        raise FunctionFailsError from failed[min(new)]
    return UnitResults(parts, {unit: failure.reason(str(error)) for unit, error in failed.items()})


def _halved(
    compute: Compute, units: set[bytes], failed: dict[bytes, BaseException]
) -> Iterator[tuple[set[bytes], pa.Table]]:
    """Rows of all units but those that fail alone, which are noted."""
    try:
        result = compute(units)
    except Exception as error:
        if isinstance(error, PenstockError | TooSlowError) or failure.no_worker(error):
            raise
        if len(units) == 1:
            failed |= dict.fromkeys(units, error)
            return
    else:
        yield units, result
        return
    ordered = sorted(units)
    middle = len(ordered) // 2
    for half in (ordered[:middle], ordered[middle:]):
        yield from _halved(compute, set(half), failed)


def unit_words(columns: Sequence[str], unit: bytes) -> str:
    """A unit as a person reads it: its columns and their values."""
    values = msgspec.msgpack.decode(unit)
    return ", ".join(f"{name} = {value!r}" for name, value in zip(columns, values, strict=True)) or "all of it"


# The skip list and `dead`


def skip_list(failed: Mapping[bytes, str]) -> list[list[str]] | None:
    """The units that a build leaves out, as the control stream keeps them."""
    return [[unit.hex(), said] for unit, said in sorted(failed.items())] or None


def skipped_units(memory: Mapping[str, Any], name: str, epoch: str) -> dict[bytes, str]:
    """The units that a build of a regrouped view leaves out, and why."""
    return {bytes.fromhex(unit): said for unit, said in memory.get(control_keys.skip(name, epoch)) or []}


def letters(view: str, epoch: str, columns: Sequence[str], failed: Mapping[bytes, str], now_us: int) -> pa.RecordBatch:
    """Units that fail as dead letters: whose rows the view lacks, and what Spark said."""
    rows = [
        {
            "stream": view,
            "reason": "poison",
            "detail": f"{unit_words(columns, unit)}: {said}",
            "raw": msgspec.json.encode(dict(zip(columns, msgspec.msgpack.decode(unit), strict=True))),
            "flow": view,
            columns_.TIME: now_us,
            columns_.RECEIVED: now_us,
            columns_.ID: f"{view}/{epoch}/{unit.hex()}/{now_us}",
        }
        for unit, said in sorted(failed.items())
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DEAD)
