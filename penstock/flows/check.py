"""`penstock check`: everything that can be said of an app before a query starts, with the user's line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.config import Folder
from penstock.declaration import Application, FlowDef, Problem, StreamDef, ViewDef
from penstock.errors import PenstockError
from penstock.flows import flow_build
from penstock.flows.plan import Planned, Planner, served_columns
from penstock.flows.regroup.table_versions import input_of
from penstock.flows.session import open_session
from penstock.log import control_keys
from penstock.log.class_change import WAY_OUT, judged, key_refused
from penstock.log.log import LogReader, Stream
from penstock.log.opening import open_reader
from penstock.views.read_rule import rule_problems, stream_columns

_DAY_US = 86_400_000_000
MANY_WINDOWS = 60
"""A view whose events are in more windows than this each is slow: 30 minutes every 5 s was not done with 500,000
events after 250 s."""


def check(application: Application, folder: Folder | None) -> list[Problem]:
    """Errors, warnings and notes; with a data folder also what will be rebuilt and whether its events still fit."""
    problems = application.problems()
    if any(p.level == "error" for p in problems):
        return problems
    spark = open_session(application.name)
    with tempfile.TemporaryDirectory() as scratch:  # a check leaves no trace in the data folder
        planned, found = Planner(spark, application, Folder(Path(scratch))).plan_all()
    problems += found
    problems += rule_problems(application, stream_columns(application) | served_columns(planned))
    for made in planned.values():
        problems += _notes(application, made)
    if folder is not None:
        problems = [_with_rate(application, problem, folder) for problem in problems]
        problems += _against_folder(application, planned, folder)
    return problems


def _notes(application: Application, made: Planned) -> Iterator[Problem]:
    node = made.node
    if made.windows > MANY_WINDOWS:
        text = f"'{node.name}' counts each event in {made.windows} windows, and costs that many times a plain one"
        yield Problem("warning", "many_windows", text, node.place, "make the interval longer, or the window shorter")
    if isinstance(node, FlowDef) and made.how == "ordered":
        yield from _silent(application, made)
        if made.fold is not None and made.fold.order == "log" and len(made.inputs) > 1:
            text = f"'{node.name}' sees its inputs in the order in which it read them, so a rebuild may change it"
            yield Problem("note", "rebuild_may_differ", text, node.place, 'order="time" is the same in any rebuild')
    if isinstance(node, ViewDef):
        why = f": {', '.join(made.proof_reasons)}" if made.proof_reasons else ""
        yield Problem("note", f"proof_{made.proof}", f"'{node.name}' is {made.proof}{why}", node.place)
        yield Problem("note", f"kept_{made.how}", f"'{node.name}' is {made.how}: {price(made)}", node.place)
        if made.units is not None and node.within_us is not None:
            yield from _cut_into(application, node, node.within_us)
            yield from _forgotten(application, made, node.within_us)
        elif made.bound_us is not None:
            yield from (replace(problem, level="error") for problem in _unbounded(application, made))
        elif not made.event_time and node.keep_us is None and made.how != "ordered":
            yield from _unbounded(application, made)
    elif isinstance(node, FlowDef) and node.late_after_us and not made.hands_on:
        text = f"lateness in '{node.name}' is judged on its own stream, so a rebuild may change it"
        yield Problem("note", "rebuild_may_differ", text, node.place)


def _silent(application: Application, made: Planned) -> Iterator[Problem]:
    """An ordered flow that waits for time, over streams in which silence lets none pass."""
    script = made.fold.script.script if made.fold else None
    waits = made.event_time or getattr(getattr(script, "pattern", None), "waits", hasattr(script, "on_timer"))
    roots = sorted(application.roots(made.node.name))
    still = [name for name in roots if (stream := application.stream(name)) and stream.idle_after_us is None]
    if script is not None and waits and still:
        text = f"'{made.node.name}' waits for time, and silence in {' and '.join(still)} lets none pass"
        yield Problem("note", "silence_waits", text, made.node.place, 'add idle_after="10 seconds" to the stream')


def price(made: Planned) -> str:
    """What keeping a view current costs, in words."""
    if made.how == "ordered":
        return "events of a key go through Python one after the other"
    if made.units is None:
        return "each event costs the same"
    inputs = " and ".join(f"'{name}'" for name in made.inputs)
    if made.how == "added":
        groups = ", ".join(made.units.columns)
        return f"a change of {inputs} is added to the sums of its {groups or 'one row'}, however many rows they have"
    if made.units.first is not None:
        by = ", ".join(name for name, _ in made.units.first.order)
        return f"any change computes it again, from the first {made.units.first.count:,} rows of {inputs} by {by}"
    if made.how == "whole":
        assert isinstance(made.node, ViewDef)
        return f"any change computes all of it again, from at most {made.node.whole_rows:,} rows of {inputs}"
    unit = ", ".join(made.units.columns)
    if made.bound_us is not None:
        inputs += f" (events are held for {made.bound_us * 2 / 60e6:,.0f} minutes and late_after)"
    return f"a change computes the rows of its {unit} again, from those rows of {inputs} that lead there"


def _forgotten(application: Application, made: Planned, within_us: int) -> Iterator[Problem]:
    """Tables that forget versions which events that count may ask for."""
    leaves = made.units.leaves if made.units else ()
    for name in sorted({input_of(leaf.input) for leaf in leaves if leaf.input != input_of(leaf.input)}):
        table = application.table(name)
        if table is not None and (table.versions_us or 0) < within_us:
            text = f"'{made.node.name}' joins events with versions of '{name}' for longer than that table keeps them"
            hint = "let versions= of the table reach at least as far as within= of the view"
            yield Problem("error", "retained_input", text, made.node.place, hint)


def _cut_into(application: Application, node: ViewDef, within_us: int) -> Iterator[Problem]:
    """Streams that forget events which still count."""
    for stream in (stream for name in node.inputs if (stream := application.stream(name))):
        if stream.retain.bytes is not None or (stream.retain.age_us or within_us) < within_us:
            text = (
                f"'{node.name}' counts events of '{stream.name}' for as long as within= says, and that stream forgets"
            )
            hint = "let the stream keep events for longer than that, by an age and not by a size"
            yield Problem("error", "retained_input", f"{text} them before", node.place, hint)


def _with_rate(application: Application, problem: Problem, folder: Folder) -> Problem:
    """What a bound would hold, in figures, if the folder tells: how many events a day there are, and how large."""
    if problem.code != "needs_within":
        return problem
    edge = open_reader(folder.edge_log)
    try:
        names = (s.name for s in application.streams if f"'{s.name}'" in problem.message)
        rates = [rate for name in names if (found := edge.find(name)) and (rate := _rate(edge, found))]
        return replace(problem, message=f"{problem.message} ({'; '.join(rates)})") if rates else problem
    except PenstockError:
        return problem
    finally:
        edge.close()


def _rate(edge: LogReader, stream: Stream) -> str | None:
    """Events of a stream by day, from the times at which its first and last commits were written."""
    bounds = edge.bounds(stream)
    first, last = edge.commits(stream, bounds.first_commit, limit=1), edge.last_commit(stream)
    if not first or last is None or last.written_us <= first[0].written_us:
        return None
    rows = last.total_rows - first[0].total_rows + first[0].rows
    days = (last.written_us - first[0].written_us) / _DAY_US
    return f"'{stream.name}' has about {rows / days:,.0f} events a day of {bounds.bytes // max(rows, 1):,} bytes each"


def _unbounded(application: Application, made: Planned) -> Iterator[Problem]:
    for root in application.roots(made.node.name):
        stream = application.stream(root)
        if stream and (stream.retain.age_us or stream.retain.bytes):
            yield Problem(
                "warning",
                "retained_input",
                f"'{made.node.name}' counts over all time, but '{root}' keeps events only for a while: after that its "
                "numbers can be neither rebuilt nor verified",
                made.node.place,
                "window the view, or let the stream keep everything",
            )


def _against_folder(application: Application, planned: dict[str, Planned], folder: Folder) -> Iterator[Problem]:
    edge = open_reader(folder.edge_log)
    flows = open_reader(folder.flows_log)
    try:
        for entry in application.entries:
            yield from stored_problems(entry, edge, () if application.stream(entry.name) else entry.key)
        epochs = {s.name: found.epoch for s in application.streams if (found := edge.find(s.name))}
        memory = flows.memory()
        for name, made in planned.items():
            stored = memory.get(control_keys.build(name))
            inputs = {i: epochs.get(i, "") for i in made.inputs} if made.how in ("folded", "ordered") else {}
            why = flow_build.why_rebuilt(memory, made, inputs)
            if why:
                yield Problem("note", "will_rebuild", f"'{name}' will be rebuilt: {why}", made.node.place)
            epochs[name] = "new" if why or not stored else stored["epoch"]
    except PenstockError as error:
        yield Problem("error", error.code, error.message, None, error.hint)
    finally:
        edge.close()
        flows.close()


def stored_problems(stream: StreamDef, edge: LogReader, table_key: tuple[str, ...] = ()) -> Iterator[Problem]:
    """What of a declared stream does not go with the stream that the folder holds: the edge would refuse to start. A
    table is a stream with a `table_key`."""
    stored = edge.find(stream.name)
    if stored is None:
        return
    if stored.partitions != stream.partitions:
        yield Problem(
            "error",
            "partitions_changed",
            f"the stream '{stream.name}' was made with partitions={stored.partitions} and is declared with "
            f"partitions={stream.partitions}: their number is fixed when a stream is made",
            stream.place,
            f"write partitions={stored.partitions}, or use another stream or --data folder",
        )
    found = judged(stream, edge.versions(stored))
    for why in (*found.refused, *key_refused(stored, table_key)):
        yield Problem(
            "error",
            "incompatible_schema",
            f"{'the table' if table_key else 'the stream'} '{stream.name}' holds "
            f"{'rows' if table_key else 'events'} that its class no longer fits: {why}",
            stream.place,
            f"{WAY_OUT}, or use another --data folder",
        )
    for why in found.warnings:
        yield Problem(
            "warning",
            "narrower_class",
            f"producers of '{stream.name}' that do not know of the change may be rejected: {why}",
            stream.place,
            "change the producers first, or let the class take both for a while",
        )
