"""Shows people what the machine-readable replies say: `status` as tables, `verify` as one line per view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.sending import Sent
from penstock.cli.terminal import paragraph
from penstock.declaration import Problem

if TYPE_CHECKING:  # at run time this would load Spark, which `status` has no need of
    from penstock.flows.verify import Report

_STATES = {
    "running": "green",
    "starting": "yellow",
    "rebuilding": "yellow",
    "retrying": "bold red",
    "stopped": "bold red",
}
_RESULTS = {
    "equal": ("✓", "green"),
    "different": ("✗", "bold red"),
    "unverifiable": ("?", "yellow"),
    "open": ("…", "cyan"),
}


def report_body(report: Report) -> dict[str, Any]:
    return {
        "name": report.name,
        "kind": report.kind,
        "result": report.result,
        "rows": report.rows,
        "events": report.events,
        "seconds": round(report.seconds, 3),
        "differences": list(report.differences),
        "reasons": list(report.reasons),
    }


def report_text(report: Report) -> Text:
    """One line, and below it what differs or why it cannot be proved."""
    mark, style = _RESULTS.get(report.result, ("-", ""))
    facts = f"  {report.rows:,} rows from {report.events:,} events in {report.seconds:.1f} s"
    text = Text.assemble((f"{mark} ", style), (report.name, "bold"), f" {report.kind} ", (report.result, style))
    text.append(facts, style="dim")
    for line in (*report.differences, *report.reasons):
        text.append(f"\n    {line}", style="red" if report.differences else "dim")
    return text


def sent(stream: str, sent: Sent) -> str:
    """What became of the events of `send`, in one line."""
    parts = [f"{sent.accepted:,} accepted"]
    parts += [f"{sent.duplicates:,} already known"] if sent.duplicates else []
    parts += [f"{sent.skipped_chunks:,} chunks sent by an earlier run"] if sent.skipped_chunks else []
    parts += [f"{sent.rejected:,} rejected (penstock tail dead)"] if sent.rejected else []
    return f"'{stream}': {', '.join(parts)}"


def problem_body(problem: Problem) -> dict[str, Any]:
    """What `check --json` says of one problem."""
    place = problem.place and {"file": problem.place.file, "line": problem.place.line}
    rest = {"message": problem.message, "place": place, "hint": problem.hint}
    return {"level": problem.level, "code": problem.code} | rest


def problem_count(problems: Sequence[Problem]) -> str:
    """The last line of `check`.

    >>> problem_count([])
    '0 errors, 0 warnings'
    """
    levels = [problem.level for problem in problems]
    counts = [(levels.count("error"), "error"), (levels.count("warning"), "warning")]
    return ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)


def status(body: Mapping[str, Any]) -> RenderableType:
    """The whole of `GET /status` on one screen."""
    parts: list[RenderableType] = [_heading(body)]
    for title, table in (("processes", _processes(body)), ("streams", _streams(body)), ("views", _views(body))):
        if table.row_count:
            parts += [Text(), Text(title, style="bold"), table]
    parts += [_flow_error(flow) for flow in _flows(body) if flow.get("error")]
    return Group(*parts)


def _heading(body: Mapping[str, Any]) -> Text:
    ready = bool(body.get("ready", True))
    state = ("ready", "bold green") if ready else ("not ready", "bold yellow")
    return Text.assemble((str(body.get("app", "")), "bold"), "  ", state)


def _grid(*columns: str) -> Table:
    """A table without lines; a column whose name begins with # holds numbers."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
    return table


def _processes(body: Mapping[str, Any]) -> Table:
    table = _grid("process", "state", "#pid", "#restarts", "#hung")
    for name, child in _named(body.get("processes") or body.get("children") or {}):
        state = str(child.get("state", ""))
        table.add_row(name, _state(state), *_numbers(child, "pid", "restarts", "hung", plain=True))
    return table


def _streams(body: Mapping[str, Any]) -> Table:
    table = _grid("stream", "#events", "#per second", "#duplicates", "#rejected", "#late")
    for name, stream in _named(body.get("streams") or {}, "stream"):
        table.add_row(name, *_numbers(stream, "events", "rate", "duplicates", "rejected", "late"))
    return table


def _views(body: Mapping[str, Any]) -> Table:
    table = _grid("view", "flow", "#rows", "proof")
    for name, view in _named(body.get("views") or {}, "view"):
        state = str((view.get("flow") or {}).get("state", ""))
        table.add_row(name, _state(state), *_numbers(view, "rows"), str(view.get("class") or ""))
    return table


def _flows(body: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Every flow's state: those of views stand with the view, the others on their own."""
    for name, view in _named(body.get("views") or {}, "view"):
        yield {"name": name} | dict(view.get("flow") or {})
    for name, flow in _named(body.get("flows") or {}, "flow"):
        yield {"name": name} | dict(flow)


def _flow_error(flow: Mapping[str, Any]) -> Group:
    error = flow["error"]
    text = paragraph(str(error.get("code")), str(error.get("message")), error.get("detail"), error.get("hint"))
    return Group(Text(), text)


def _named(things: Any, key: str = "name") -> Iterable[tuple[str, Mapping[str, Any]]]:
    """A list of objects with a name, or an object by name: the same to whoever prints it."""
    if isinstance(things, Mapping):
        return [(str(name), thing) for name, thing in things.items() if isinstance(thing, Mapping)]
    return [(str(thing.get(key) or thing.get("name")), thing) for thing in things]


def _state(state: str) -> Text:
    return Text(state, style=_STATES.get(state, ""))


def _numbers(thing: Mapping[str, Any], *names: str, plain: bool = False) -> list[str]:
    return [_number(thing.get(name), plain) for name in names]


def _number(value: Any, plain: bool) -> str:
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    if plain:
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
