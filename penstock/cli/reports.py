"""Shows people what the machine-readable replies say: `status` as tables, `verify` as lines, `graph` as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from penstock.cli.file_sender import Sent
from penstock.declaration import Problem
from penstock.run.terminal import paragraph

if TYPE_CHECKING:  # at run time this would load Spark, which `status` has no need of
    from penstock.flows.verify import Report

_STATES = {
    "running": "green",
    "connected": "green",
    "paused": "yellow",
    "waiting": "yellow",
    "disconnected": "bold red",
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
_STYLES = {"source": "magenta", "stream": "cyan", "table": "cyan", "flow": "yellow", "view": "green", "channel": "blue"}
_SHAPES = {
    "source": ("[/", "/]"),
    "stream": ("([", "])"),
    "table": ("[[", "]]"),
    "flow": ("{{", "}}"),
    "view": ("[(", ")]"),
    "channel": (">", "]"),
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
        "missed": list(report.missed),
    }


def report_text(report: Report) -> Text:
    """One line, and below it what differs or why it cannot be proved."""
    mark, style = _RESULTS.get(report.result, ("-", ""))
    facts = f"  {report.rows:,} rows from {report.events:,} events in {report.seconds:.1f} s"
    text = Text.assemble((f"{mark} ", style), (report.name, "bold"), f" {report.kind} ", (report.result, style))
    text.append(facts, style="dim")
    for line in (*report.differences, *report.reasons):
        text.append(f"\n    {line}", style="red" if report.differences else "dim")
    for line in report.missed:
        text.append(f"\n    within chance: {line}", style="dim")
    return text


def sent(stream: str, sent: Sent) -> str:
    """What became of the events of `send`, in one line."""
    parts = [f"{sent.accepted:,} accepted"]
    parts += [f"{sent.duplicates:,} already known"] if sent.duplicates else []
    parts += [f"{sent.unanswered:,} taken, though the reply was lost"] if sent.unanswered else []
    parts += [f"{sent.skipped_chunks:,} chunks sent by an earlier run"] if sent.skipped_chunks else []
    parts += [f"{sent.rejected:,} rejected (penstock dead list)"] if sent.rejected else []
    return f"'{stream}': {', '.join(parts)}"


def problem_body(problem: Problem) -> dict[str, Any]:
    """What `check --json` says of one problem."""
    at = problem.place
    place = at and {"file": at.file, "line": at.line} | ({"column": at.column} if at.column else {})
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
    parts: list[RenderableType] = [_heading(body), *_pressure(body.get("pressure") or {})]
    for table in (_processes(body), _streams(body), _pulls(body), _flows(body), _topics(body)):
        if table.row_count:
            parts += [Text(), table]
    hints = [(s["stream"], s["hint"]) for s in body.get("streams") or () if s.get("hint")]
    parts += [Text.assemble(("\n! ", "bold yellow"), f"'{name}': {hint}") for name, hint in hints]
    parts += [_flow_error(flow["error"]) for flow in body.get("flows") or () if flow.get("error")]
    return Group(*parts)


def _heading(body: Mapping[str, Any]) -> Text:
    since = f"up {_duration(float(body.get('uptime_s') or 0))}"
    fresh = body.get("freshness") or {}
    text = Text.assemble((str(body.get("app", "")), "bold"), (f"  penstock {body.get('version', '')}, {since}", "dim"))
    if fresh.get("p50_ms") is not None:
        text.append(f", fresh within {_ms(fresh['p50_ms'])} (p99 {_ms(fresh['p99_ms'])})", style="dim")
    return text


def _pressure(body: Mapping[str, Any]) -> list[Text]:
    """Who waits and because of whom; nothing while all is well."""
    if body.get("state", "ok") == "ok":
        return []
    text = Text.assemble((str(body["state"]), "bold yellow" if body["state"] == "limiting" else "bold red"))
    for because in body.get("because") or ():
        text.append(f"  {_because(because)}")
    text.append(f"\n  What to do: {body.get('hint')}", style="dim")
    return [text]


def _because(because: Mapping[str, Any]) -> str:
    if "view" in because:
        behind = f"'{because['view']}' is {because['lag_events']:,} events ({because['lag_s']:g} s) behind"
        return f"{behind} '{because['stream']}', max_lag {because['max_lag']}, since {because['since']}"
    if "shed" in because:
        return f"'{because['stream']}' keeps {because['part']:.1%} ({because['shed']})"
    return "as much waits for the log as may"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"


def _duration(seconds: float) -> str:
    """The largest two units of a time span.

    >>> _duration(7384)
    '2 h 3 min'
    """
    days, hours, minutes = seconds // 86400, seconds % 86400 // 3600, seconds % 3600 // 60
    parts = [f"{n:.0f} {unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if n]
    return " ".join(parts[:2]) or f"{seconds:.0f} s"


def _grid(*columns: str) -> Table:
    """A table without lines; a column whose name begins with # holds numbers."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
    return table


def _processes(body: Mapping[str, Any]) -> Table:
    processes = body.get("processes") or {}
    off = any(child.get("plain") for child in processes.values())
    table = _grid("process", "state", "#pid", "#restarts", "#hung", *(["plain"] if off else []))
    for name, child in processes.items():
        numbers = [str(child.get(key) or 0) for key in ("pid", "restarts", "hung")]
        parts = [", ".join(child.get("plain") or ())] if off else []
        table.add_row(name, _state(child.get("state")), *numbers, *parts)
    return table


def _streams(body: Mapping[str, Any]) -> Table:
    streams = body.get("streams") or ()
    poisoned = any(stream["totals"].get("poisoned") for stream in streams)
    timed = any(map(_complete, streams))
    more = [*(["#poisoned"] if poisoned else []), *(["complete"] if timed else [])]
    table = _grid("stream", "#events", "#per second", "#duplicates", "#dead", "#shed", "#late", *more)
    for stream in streams:
        totals, rate = stream["totals"], (stream.get("rates") or {}).get("accepted")
        counts = [totals["accepted"], rate, totals["duplicates"], totals["dead"], totals.get("shed", 0), totals["late"]]
        counts += [totals["poisoned"]] if poisoned else []
        style = "dim" if stream.get("kind") == "ledger" else ""
        times = [_complete(stream)] if timed else []
        table.add_row(stream["stream"], *map(_number, counts), *times, style=style)
    return table


def _pulls(body: Mapping[str, Any]) -> Table:
    table = _grid("pull", "into", "state", "#events", "behind", "why")
    for pull in body.get("pulls") or ():
        behind = ", ".join(f"{_number(amount)} {unit}" for unit, amount in (pull.get("lag") or {}).items() if amount)
        why = pull.get("paused") or pull.get("error") or ""
        table.add_row(pull["url"], pull["stream"], _state(pull["state"]), _number(pull["events"]), behind, str(why))
    return table


def _flows(body: Mapping[str, Any]) -> Table:
    rows = {view["view"]: view["rows"] for view in body.get("views") or ()}
    views = {view["view"]: view for view in body.get("views") or ()}
    timed = ["complete"] if any(map(_complete, body.get("flows") or ())) else []
    table = _grid("flow", "state", "#rows", "#per second", "#behind", "#batch ms", "kept", "proof", *timed)
    for flow in body.get("flows") or ():
        name = flow["flow"]
        told = (rows.get(name), flow.get("rate"), flow.get("lag_events"), flow.get("batch_ms"))
        numbers = [_number(value) for value in told]
        facts = [str(views.get(name, {}).get(fact) or "") for fact in ("how", "class")]
        table.add_row(name, _state(flow.get("state")), *numbers, *facts, *([_complete(flow)] if timed else []))
    return table


def _topics(body: Mapping[str, Any]) -> Table:
    table = _grid("topic", "of", "state", "since", "why")
    for topic in body.get("published") or ():
        why = (topic.get("error") or {}).get("message") or ""
        table.add_row(topic["topic"], topic["name"], _state(topic["state"]), topic["since"], str(why))
    return table


def _complete(told: Mapping[str, Any]) -> str:
    """Up to when events are complete, and what holds it."""
    when, holder = str(told.get("complete") or "")[:19].replace("T", " "), told.get("held_by")
    return f"{when} ({holder})".strip() if holder else when


def _flow_error(error: Mapping[str, Any]) -> Group:
    text = paragraph(str(error.get("code")), str(error.get("message")), error.get("detail"), error.get("hint"))
    return Group(Text(), text)


def _state(state: Any) -> Text:
    return Text(str(state or ""), style=_STATES.get(str(state), ""))


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def tree(graph: dict[str, Any]) -> Tree:
    """An app's graph: what flows into what, from the sources down. A node with several inputs is drawn out under the
    first one."""
    root = Tree(f"[bold]{escape(graph['app'])}[/]", guide_style="dim")
    nodes = {node["name"]: node for node in graph["nodes"]}
    fed = {edge["to"] for edge in graph["edges"]}
    drawn: set[str] = set()
    for name in nodes:
        if name not in fed:
            _branch(root, name, nodes, graph["edges"], drawn)
    return root


def _branch(
    above: Tree,
    name: str,
    nodes: dict[str, Any],
    edges: list[dict[str, Any]],
    drawn: set[str],
    into: Mapping[str, Any] | None = None,
) -> None:
    again = name in drawn
    drawn.add(name)
    branch = above.add(f"{_label(nodes[name], again)}{_grouping(into)}")
    for edge in () if again else edges:
        if edge["from"] == name:
            _branch(branch, edge["to"], nodes, edges, drawn, edge)


def _grouping(edge: Mapping[str, Any] | None) -> str:
    """How what comes over an edge is spread, where that is not as one over one."""
    if edge is None or not edge.get("grouping") or (edge["grouping"] == "as one" and edge["parallelism"] == 1):
        return ""
    return f"  [dim]({edge['grouping']} x {edge['parallelism']})[/]"


def _label(node: dict[str, Any], again: bool) -> str:
    style = _STYLES[node["kind"]]
    first = (node["doc"] or "").strip().splitlines()
    doc = "(above)" if again else escape(first[0]) if first else ""
    return f"[bold {style}]{escape(node['name'])}[/] [{style}]{node['kind']}[/]  [dim]{doc}[/]".rstrip()


def mermaid(graph: dict[str, Any]) -> str:
    """The graph in Mermaid's language.

    >>> print(mermaid({"nodes": [{"name": "a", "kind": "stream"}], "edges": []}))
    graph LR
      n0(["a"])
    """
    ids = {node["name"]: f"n{number}" for number, node in enumerate(graph["nodes"])}
    lines = ["graph LR"]
    for node in graph["nodes"]:
        left, right = _SHAPES[node["kind"]]
        lines.append(f'  {ids[node["name"]]}{left}"{_quoted(node["name"])}"{right}')
    for edge in graph["edges"]:
        said = f'|"{edge["grouping"]} x {edge["parallelism"]}"|' if edge.get("grouping") else ""
        lines.append(f"  {ids[edge['from']]} -->{said} {ids[edge['to']]}")
    return "\n".join(lines)


def _quoted(name: str) -> str:
    return str(name).replace('"', "#quot;")
