"""The contract of a source that a table is filled from: it is read whole, again and again, and compared.

1. A source gives all rows of one moment, or raises `NotNow`: what is not certain changes nothing.
2. `read` may take minutes, and must not hold up the edge's loop meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec.inspect as mi

from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.judge import Judge

MOST_ROWS = 5_000_000
"""In one source: they are held in memory while they are compared."""


@dataclass(frozen=True, slots=True)
class TableReading:
    """All rows of a source."""

    decoded: DecodedEvents
    columns: frozenset[str] | None = None
    """What its columns are called; None: each row names its own fields, as in JSON."""
    mark: Any = None
    """By which the source is known to be unchanged; None: nobody can tell."""


class TableSource(Protocol):
    """Something outside that holds rows; its implementations stand in `sources/`, named after the outside system."""

    async def mark(self) -> Any:
        """What it would be marked with now. Cheap. Raises `NotNow` when it is not there."""

    async def read(self, judge: Judge) -> TableReading:
        """All of it. Raises `NotNow` when it cannot be read, or does not hold rows of this class at all."""


def nullable(judge: Judge) -> frozenset[str]:
    """The fields that may be null, as JSON calls them."""
    info = mi.type_info(judge.stream.events.kind)
    assert isinstance(info, mi.StructType)
    return frozenset(field.encode_name for field in info.fields if _may_be_null(field.type))


def _may_be_null(info: mi.Type) -> bool:
    if isinstance(info, mi.Metadata):
        return _may_be_null(info.type)
    return isinstance(info, mi.UnionType) and any(isinstance(kind, mi.NoneType) for kind in info.types)
