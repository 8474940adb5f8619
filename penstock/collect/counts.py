"""How many events of each stream were duplicates, died, were shed or skewed: kept in the log, so that totals survive.

What was accepted is the stream's own length. The numbers here are written in the commit that they count, under
`control_keys.count(stream)`, and only when they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.log import control_keys
from penstock.log.log import Count, Share

_NOTHING = {"duplicates": 0, "dead": 0, "shed": 0}


class StreamCounts:
    """The totals of every stream, as the log's memory has them."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self._memory = memory

    def of(self, stream: str) -> dict[str, int]:
        """`{"duplicates": n, "dead": n, "shed": n}` since the stream was made, and `skewed` where there are any."""
        numbers: dict[str, int] = self._memory.get(control_keys.count(stream), {})
        return _NOTHING | numbers


def counted(stream: str, *, repeated: bool = False, **numbers: int | Share) -> tuple[Count, ...]:
    """What an append adds to the numbers of a stream: `counted("orders", shed=3)`."""
    key = control_keys.count(stream)
    return tuple(Count(key, name, by, repeated) for name, by in numbers.items() if by)
