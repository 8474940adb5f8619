"""The sizes of a run: what is measured for how long, at full size and quickly."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from bench.results import Note


@dataclass(frozen=True)
class Options:
    """What the benchmarks were asked for."""

    note: Note
    """Tells whoever waits what is going on."""
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    seconds: float = 30.0
    """How long each case of `freshness` is measured; `ingest` takes a third of it for each of its many cases."""
    warm_s: float = 10.0
    """What a case runs before it is measured."""
    rates: tuple[int, ...] = (1_000, 10_000)
    flows: tuple[int, ...] = (1, 3)
    paint: bool = True
    cases: tuple[str, ...] = ()
    """Of `fanout`; none: all."""
    events: int = 5_000_000
    rows: int = 1_000_000
    logs: tuple[str, ...] = ("sqlite",)
    """Of `freshness`, `ingest` and `catchup`: each on these logs, one after the other."""
    starts: int = 3
    idle_s: float = 10.0

    @classmethod
    def quickly(cls, note: Note) -> Self:
        return cls(note, seconds=8.0, warm_s=4.0, events=500_000, rows=100_000, starts=1, idle_s=5.0)

    def with_only(self, given: Mapping[str, Any]) -> Self:
        """These options with those that were given changed."""
        return replace(self, **given)
