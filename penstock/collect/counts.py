"""Keeps how many events of each stream were duplicates, died, were shed or skewed, in the log, so that totals survive.

What was accepted is the stream's own length. The numbers here are written in the commit that they count, under
`count/<stream>` in the control stream, and only when they change.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

_PREFIX = "count/"
_NOTHING = {"duplicates": 0, "dead": 0, "shed": 0}


class Counts:
    """The totals of every stream. The writer's thread changes them inside a commit, the loop reads them."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, dict[str, int]] = {
            key.removeprefix(_PREFIX): dict(value) for key, value in memory.items() if key.startswith(_PREFIX)
        }

    def of(self, stream: str) -> dict[str, int]:
        """`{"duplicates": n, "dead": n, "shed": n}` since the stream was made, and `skewed` where there are any."""
        with self._lock:
            return _NOTHING | self._totals.get(stream, {})

    def add(self, stream: str, **more: int) -> dict[str, Any]:
        """Count, and return what the commit must remember: nothing, if nothing changed."""
        if not any(more.values()):
            return {}
        with self._lock:
            total = self._totals.setdefault(stream, dict(_NOTHING))
            for name, number in more.items():
                if number:
                    total[name] = total.get(name, 0) + number
            return {f"{_PREFIX}{stream}": dict(total)}
