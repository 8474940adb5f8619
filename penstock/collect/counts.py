"""Keeps how many events of each stream were duplicates or died at the door, in the log itself, so that totals survive.

What was accepted is the stream's own length. The two numbers here are written in the commit that they count, under
`count/<stream>` in the control stream, and only when they change.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

_PREFIX = "count/"


class Counts:
    """The totals of every stream. The writer's thread changes them inside a commit, the loop reads them."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, dict[str, int]] = {
            key.removeprefix(_PREFIX): dict(value) for key, value in memory.items() if key.startswith(_PREFIX)
        }

    def of(self, stream: str) -> dict[str, int]:
        """`{"duplicates": n, "dead": n}` since the stream was made."""
        with self._lock:
            return dict(self._totals.get(stream) or {"duplicates": 0, "dead": 0})

    def add(self, stream: str, duplicates: int, dead: int) -> dict[str, Any]:
        """Count, and return what the commit must remember: nothing, if nothing changed."""
        if not duplicates and not dead:
            return {}
        with self._lock:
            total = self._totals.setdefault(stream, {"duplicates": 0, "dead": 0})
            total["duplicates"] += duplicates
            total["dead"] += dead
            return {f"{_PREFIX}{stream}": dict(total)}
