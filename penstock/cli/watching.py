"""`penstock watch`: a view as a live table in the terminal, or each of its changes as a line of JSON.

It is a subscriber like any other: it resumes from its last position when the connection breaks, and starts
anew when the server says `reset`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.remote import Params, Remote, ServerEvent, path_of
from penstock.cli.terminal import Terminal
from penstock.errors import UnknownViewError, UnreachableError

GLOW_S = 1.0
"""How long a row shows that it has changed."""
ROWS = 40
"""Rows that a terminal shows of a view without a limit."""

Row = dict[str, Any]


def messages(remote: Remote, view: str, params: Params, note: Callable[[str], None]) -> Iterator[ServerEvent]:
    """The view's snapshot and changes for ever, across breaks. An error of the server's own ends it."""
    since: str | None = None
    connected = False
    while True:
        try:
            for event in remote.events(path_of("views", view, "events"), params, since):
                connected = True
                since = event.id or since
                yield event
        except UnreachableError as error:
            if not connected:
                raise
            note(f"{error.message}; trying again")
            time.sleep(1.0)


def watch(
    remote: Remote, view: str, where: str | None, limit: int | None, terminal: Terminal, *, as_json: bool
) -> None:
    """Show the view until Ctrl-C."""
    table = table_of(remote, view, limit)
    news = messages(remote, view, {"where": where, "limit": limit}, terminal.note if as_json else table.says)
    if as_json:
        for line in (line for event in news for line in lines(event)):
            terminal.data(line)
    with Live(console=terminal.out, get_renderable=lambda: table.render(time.monotonic()), screen=True):
        for event in news:
            table.apply(event, time.monotonic())


def lines(event: ServerEvent) -> Iterator[str]:
    """A message as one change a line."""
    at = {"position": event.data.get("position") or event.id}
    for row in event.data.get("rows", ()):
        yield json.dumps({"change": "snapshot", "row": row} | at)
    for row in event.data.get("upserts", ()):
        yield json.dumps({"change": "upsert", "row": row} | at)
    for key in event.data.get("deletes", ()):
        yield json.dumps({"change": "delete", "key": key} | at)
    if event.event in ("reset", "stall", "error"):
        yield json.dumps({"change": event.event} | event.data)


def table_of(remote: Remote, view: str, limit: int | None) -> LiveTable:
    """An empty table with the columns, key and order that the server names for this view."""
    known = {str(v["view"]): v for v in remote.get("/views")["views"]}
    if view not in known:
        raise UnknownViewError(f"there is no view '{view}'", hint=f"the views are: {', '.join(known) or 'none'}")
    facts = known[view]
    columns = [c["name"] if isinstance(c, dict) else str(c) for c in facts.get("columns") or facts["key"]]
    order = [str(column) for column in facts.get("order_by") or ()]
    return LiveTable(view, list(facts["key"]), columns, order, limit or facts.get("limit"))


@dataclass
class LiveTable:
    """What the terminal shows of a view: the rows by key, in the view's order."""

    view: str
    key: list[str]
    columns: list[str]
    order_by: list[str]
    limit: int | None
    rows: dict[str, Row] = field(default_factory=dict)
    _changed: dict[str, float] = field(default_factory=dict)
    _fresh_ms: float | None = None
    _changes: int = 0
    status: str = "connecting"

    def apply(self, event: ServerEvent, now: float) -> None:
        message = event.data
        if event.event == "reset" or (event.event == "snapshot" and message.get("part", 1) == 1):
            self.rows, self._changed = {}, {}
        self.status = "live"
        for row in message.get("rows", ()):
            self.rows[self._id(row)] = row
        for row in message.get("upserts", ()):
            self.rows[self._id(row)] = row
            self._changed[self._id(row)] = now
        for gone in message.get("deletes", ()):
            self.rows.pop(self._id(gone), None)
        self._changes += len(message.get("upserts", ())) + len(message.get("deletes", ()))
        if accepted := message.get("accepted"):
            self._fresh_ms = (datetime.now(UTC) - datetime.fromisoformat(accepted)).total_seconds() * 1000

    def says(self, note: str) -> None:
        """The connection broke: the rows stay, and the title tells."""
        self.status = note

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
