"""What a benchmark found, in one form for all: a table for people, JSON for comparing with another day."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.percentile import Spread

Note = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """One thing that was measured. `value` is the middle one where `p99` is there too."""

    case: str
    what: str
    value: float
    unit: str
    p99: float | None = None
    count: int | None = None
    aim: str = ""


@dataclass(frozen=True)
class Result:
    """All figures of one benchmark, and the settings that they hold for."""

    name: str
    figures: list[Figure]
    settings: dict[str, Any] = field(default_factory=dict)


def of_spread(case: str, what: str, found: Spread | None, unit: str, aim: str = "") -> list[Figure]:
    """A distribution as a figure; none when nothing was measured."""
    return [] if found is None else [Figure(case, what, found.p50, unit, found.p99, found.count, aim)]


def table(result: Result) -> Table:
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    made = Table(title=result.name, title_justify="left", title_style="bold", caption=settings, caption_justify="left")
    for name in ("case", "what"):
        made.add_column(name, overflow="fold")
    for name in ("value or p50", "p99", "unit", "n"):
        made.add_column(name, justify="left" if name == "unit" else "right")
    made.add_column("aim", style="dim")
    last = None
    for figure in result.figures:
        made.add_row(
            figure.case if figure.case != last else "",
            figure.what,
            number(figure.value),
            "" if figure.p99 is None else number(figure.p99),
            figure.unit,
            "" if figure.count is None else str(figure.count),
            figure.aim,
        )
        last = figure.case
    return made


def number(value: float) -> str:
    """The digits that count.

    >>> number(1234567.8), number(12.345), number(0.01234), number(0)
    ('1,234,568', '12.3', '0.012', '0')
    """
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def write(path: Path, done: Sequence[Result], facts: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"machine": dict(facts), "results": [asdict(result) for result in done]}
    path.write_text(json.dumps(body, indent=2) + "\n")
