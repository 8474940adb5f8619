"""`penstock watch`: a view as a live table in the terminal, or each of its changes as a line of JSON.

It is a reader like any other program: the client resumes from the last position when the connection breaks, and gives
a snapshot when the server says `reset`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.client import Changes, Client, Notice, ViewFacts, Watch
from penstock.client.read_request import DEFAULT
from penstock.errors import BadRequestError
from penstock.run.terminal import Terminal

GLOW_S = 1.0
"""How long a row shows that it has changed."""
ROWS = 40
"""Rows that a terminal shows of a view without a limit."""

_LOOK_S = 0.5
"""How often to see whether anybody still reads."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """Which rows, as the command line names them."""

    view: str
    where: str | None = None
    params: str | None = None
    select: str | None = None
    limit: int | None = None
    since: str | None = None

    def options(self) -> dict[str, Any]:
        """For the client's `watch`."""
        limit = DEFAULT if self.limit is None else self.limit
        return {"where": self.where, "params": _params(self.params), "select": self.select, "limit": limit}


def _params(text: str | None) -> Mapping[str, Any] | None:
    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        found = text
    if found is None or isinstance(found, dict):
        return found
    raise BadRequestError(f"--params {text} is no JSON object", hint="""write --params '{"least": 10}'""")


def watch(url: str, key: str | None, ca: Path | None, wanted: Wanted, terminal: Terminal, *, as_json: bool) -> None:
    """Show the view until Ctrl-C."""
    if as_json:
        show = lambda notice: terminal.note(f"{notice.name}: {notice.text}")  # noqa: E731
        with Client(url, key=key, ca=ca, notify=show) as client:
            client.view(wanted.view)  # what is wrong with the address or the name is told at once
            for changes in _while_read(client.watch(wanted.view, since=wanted.since, **wanted.options()), terminal):
                for line in lines(changes):
                    terminal.data(line)
        return
    table = LiveTable(wanted.view)
    with Client(url, key=key, ca=ca, notify=table.says) as client:
        table.has(client.view(wanted.view), wanted)
        with Live(console=terminal.out, get_renderable=lambda: table.render(time.monotonic()), screen=True):
            for changes in client.watch(wanted.view, since=wanted.since, **wanted.options()):
                table.apply(changes, time.monotonic())


def _while_read(batches: Watch[Changes], terminal: Terminal) -> Iterator[Changes]:
    """The batches, until nobody reads what is printed: `penstock watch topics | head -1` ends."""
    while True:
        try:
            yield batches.next(_LOOK_S)
        except TimeoutError:
            if not terminal.is_read():
                raise BrokenPipeError from None


def lines(changes: Changes) -> Iterator[str]:
    """A batch as one change a line."""
    at = {"position": changes.position}
    if changes.reset is not None:
        yield json.dumps({"change": "reset", "reason": changes.reset} | at)
    kind = "snapshot" if changes.snapshot else "upsert"
    for row in changes.upserts:
        yield json.dumps({"change": kind, "row": row} | at)
    for key in changes.deletes:
        yield json.dumps({"change": "delete", "key": key} | at)


@dataclass
class LiveTable:
    """What the terminal shows of a view: the rows by key, in the view's order."""

    view: str
    key: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    order_by: list[str] = field(default_factory=list)
    limit: int | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    _changed: dict[str, float] = field(default_factory=dict)
    _fresh_ms: float | None = None
    _changes: int = 0
    status: str = "connecting"

    def has(self, facts: ViewFacts, wanted: Wanted) -> None:
        """The columns, key and order that the server names for this view."""
        chosen = None if wanted.select is None else [*facts.key, *(n.strip() for n in wanted.select.split(","))]
        names = [name for name, _ in facts.columns] or list(facts.key)
        self.key = list(facts.key)
        self.columns = [name for name in names if chosen is None or name in chosen]
        self.order_by, self.limit = list(facts.order_by), wanted.limit or facts.limit

    def apply(self, changes: Changes, now: float) -> None:
        if changes.snapshot:
            self.rows, self._changed = {}, {}
        self.status = "live"
        for gone in changes.deletes:
            self.rows.pop(self._id(gone), None)
        for row in changes.upserts:
            self.rows[self._id(row)] = row
            if not changes.snapshot:
                self._changed[self._id(row)] = now
        if not changes.snapshot:
            self._changes += len(changes.upserts) + len(changes.deletes)
        if changes.accepted is not None:
            self._fresh_ms = (datetime.now(UTC) - datetime.fromisoformat(changes.accepted)).total_seconds() * 1000

    def says(self, notice: Notice) -> None:
        """The connection broke: the rows stay, and the title tells."""
        self.status = "live" if notice.kind == "back" else notice.text

    def _id(self, row: Row) -> str:
        return json.dumps([row.get(column) for column in self.key])

    def ordered(self) -> list[tuple[str, Row]]:
        """The rows by `order_by` (a minus: descending), then by key; nulls last."""
        rows = sorted(self.rows.items())
        for column in reversed(self.order_by):
            name = column.removeprefix("-")
            there = [row for row in rows if row[1].get(name) is not None]
            missing = [row for row in rows if row[1].get(name) is None]
            there.sort(key=lambda item: _comparable(item[1][name]), reverse=column.startswith("-"))
            rows = there + missing
        return rows[: self.limit or ROWS]

    def render(self, now: float) -> RenderableType:
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        rows = self.ordered()
        for name in self.columns:
            numeric = any(isinstance(row.get(name), int | float) for _, row in rows)
            table.add_column(name, justify="right" if numeric else "left")
        for key, row in rows:
            style = "bold green" if now - self._changed.get(key, 0.0) < GLOW_S else ""
            table.add_row(*(_cell(row.get(name)) for name in self.columns), style=style)
        return Group(self._title(), Text(), table)

    def _title(self) -> Text:
        shown = min(len(self.rows), self.limit or ROWS)
        fresh = f" · {self._fresh_ms:,.0f} ms after the event" if self._fresh_ms is not None else ""
        facts = f"  {shown:,} of {len(self.rows):,} rows · {self._changes:,} changes{fresh} · "
        colour = "green" if self.status == "live" else "yellow"
        return Text.assemble((self.view, "bold"), (facts, "dim"), (self.status, colour))


def _comparable(value: Any) -> Any:
    """JSON values of one column in an order: numbers also where they come as strings, windows by their
    start."""
    if isinstance(value, dict):
        return (1, 0.0, json.dumps(value, sort_keys=True) if "start" not in value else value["start"])
    if isinstance(value, bool | int | float):
        return (0, float(value), "")
    try:
        return (0, float(value), "")
    except (TypeError, ValueError):
        return (1, 0.0, str(value))


def _cell(value: Any) -> Text:
    if value is None:
        return Text("∅", style="dim")
    if isinstance(value, dict) and value.keys() == {"start", "end"}:
        return Text(f"{_short(value['start'])} to {str(value['end'])[11:19]}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Text(_short(value) if isinstance(value, str) else json.dumps(value))
    return Text(f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")


def _short(text: str) -> str:
    """A timestamp without what no one reads in a table."""
    stamp = len(text) == 24 and text[10] == "T" and text.endswith("Z")
    return f"{text[:10]} {text[11:19]}" if stamp else text
