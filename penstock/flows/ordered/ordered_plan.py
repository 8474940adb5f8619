"""What is known of an ordered flow before it runs: its columns, its fingerprint, and what is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.change import Column
from penstock.declaration import FlowDef, Node, Problem, ViewDef
from penstock.errors import BadQueryError
from penstock.flows.ordered.event_numbers import NumberScript
from penstock.flows.ordered.fold import FoldSpec
from penstock.flows.ordered.pattern_match import PatternScript
from penstock.flows.ordered.pattern_ranges import Range, is_empty, ranges_of
from penstock.flows.project import project_sources
from penstock.patterns import DeclaredPattern
from penstock.schema import TIME, TIMESTAMP, read_schema, simple_type
from penstock.stateful import Script
from penstock.views.where.filter import compile_where
from penstock.views.where.needs import NEVER
from penstock.views.where.syntax import parse

_KEYS = ("string", "bigint", "int", "boolean", "date", "timestamp", "decimal", "binary", "double")


def is_kept_by_a_flow(node: Node) -> bool:
    """Whether no query of Spark's computes it."""
    if isinstance(node, ViewDef):
        return node.state_of is not None
    return node.ordered is not None or node.alert is not None


def ordered_plan(
    node: Node, planned: Mapping[str, Any], source: Callable[[str], Any]
) -> tuple[dict[str, Any] | None, list[Problem]]:
    """What is planned of a node that a flow keeps, as arguments, or what is wrong with it."""
    if isinstance(node, ViewDef):
        flow = planned.get(node.state_of or "")
        if flow is None:
            return None, []
        whole = {part.name: getattr(flow, part.name) for part in fields(flow)}
        return {**whole, "node": node, **shown_facts(flow.fold, flow.inputs)}, []
    if node.alert is not None:
        return alert_facts(node, source(node.inputs[0]))
    upstream = {name: made.fingerprint for name, made in planned.items()}
    return ordered_facts(node, {name: source(name) for name in node.inputs}, upstream)


def ordered_facts(
    flow: FlowDef, inputs: Mapping[str, Any], upstream: Mapping[str, str]
) -> tuple[dict[str, Any] | None, list[Problem]]:
    """What is planned of the flow, or what is wrong with it; `inputs` are planned ones, `upstream` their meaning."""
    assert flow.ordered is not None
    schemas = {name: read_schema(source.schema) for name, source in inputs.items()}
    late_after = {name: source.late_after_us for name, source in inputs.items()}
    problems = list(ordered_problems(flow, schemas, late_after))
    if problems:
        return None, problems
    first, ordered = next(iter(schemas.values())), flow.ordered
    keys = tuple(pa.field(name, first.field(name).type) for name in ordered.key)
    script = bound_script(flow, first)
    if isinstance(script.script, PatternScript):
        timed = all(late_after_us is not None for late_after_us in late_after.values())
        problems = list(pattern_problems(flow, script.script, timed=timed))
        if problems:
            return None, problems
    spec = FoldSpec(flow.name, script, keys, ordered.order, ordered.keep_us)
    facts = {"late_after": late_after, "upstream": {n: upstream[n] for n in flow.inputs if n in upstream}}
    digest = ordered_fingerprint(flow, script, facts, [*schemas.values(), spec.rows_schema, spec.state_schema])
    found = _facts(flow, inputs, spec.rows_schema, digest)
    # All that it will emit is as new as what its inputs are complete to: events, and timers, which fire then.
    hands_on = flow.time is None and flow.late_after_us is None and None not in late_after.values()
    return {**found, "event_time": ordered.order == "time", "fold": spec, "hands_on": hands_on}, []


def state_facts(spec: FoldSpec) -> dict[str, Any]:
    """What differs where the state of an ordered flow is a view: the flow keeps it."""
    return {"mode": "update", "frame_schema": from_arrow_schema(spec.state_schema)}


def shown_facts(spec: FoldSpec | None, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What differs where a view shows a flow's states, or what an alert has raised."""
    return state_facts(spec) if spec is not None else alert_view_facts(next(iter(inputs.values())).schema)


RAISED_AT = "_raised"
"""The column of an alert's view that says since when a row is there."""


def alert_facts(flow: FlowDef, source: Any) -> tuple[dict[str, Any] | None, list[Problem]]:
    """What is planned of an alert, or what is wrong with it; `source` is the view that it watches, as planned input."""
    assert flow.alert is not None
    problems = list(_alert_problems(flow, source.schema))
    if problems:
        return None, problems
    meaning = repr((flow.alert.when, flow.alert.until, flow.alert.hold_us, str(source.schema)))
    facts = _facts(flow, {source.name: source}, pa.schema([]), hashlib.sha256(meaning.encode()).hexdigest())
    return {**facts, "frame_schema": alert_frame(flow, source)}, []


def alert_frame(flow: FlowDef, source: Any) -> StructType:
    """The columns of what an alert tells."""
    keys = [source.schema.field(name) for name in flow.key]
    row = pa.field("row", pa.struct(list(source.schema)))
    own = [*keys, pa.field("alert", pa.string()), pa.field("since", TIMESTAMP), row, pa.field(TIME, TIMESTAMP)]
    return from_arrow_schema(pa.schema(own))


def alert_view_facts(schema: pa.Schema) -> dict[str, Any]:
    """What differs for the view of what is raised, over a view of these columns."""
    return {"mode": "update", "frame_schema": from_arrow_schema(pa.schema([*schema, pa.field(RAISED_AT, TIMESTAMP)]))}


def _alert_problems(flow: FlowDef, schema: pa.Schema) -> Iterator[Problem]:
    assert flow.alert is not None
    for option, text in (("when", flow.alert.when), ("until", flow.alert.until)):
        try:
            if text is not None:
                compile_where(text, [Column(f.name, simple_type(f.type)) for f in schema])
        except BadQueryError as error:
            said = f"{option}= of the alert '{flow.alert.shown.name}': {error.message}"
            yield Problem("error", "bad_alert", said, flow.place, error.hint)


def _facts(flow: FlowDef, inputs: Mapping[str, Any], rows: pa.Schema, digest: str) -> dict[str, Any]:
    return {
        "node": flow,
        "inputs": dict(inputs),
        "mode": "append",
        "event_time": False,
        "drops_late": False,
        "needed": tuple(sorted({name for source in inputs.values() for name in read_schema(source.schema).names})),
        "frame_schema": from_arrow_schema(rows),
        "ordered": True,
        "aggregates": False,
        "proof": "exact",
        "proof_reasons": (),
        "fingerprint": digest,
        "how": "ordered",
    }


def ordered_problems(
    flow: FlowDef, schemas: Mapping[str, pa.Schema], late_after: Mapping[str, int | None]
) -> Iterator[Problem]:
    """What stops the flow from running."""
    ordered = flow.ordered
    assert ordered is not None
    types: dict[str, dict[str, str]] = {}
    for name, schema in schemas.items():
        for column in ordered.key:
            if column not in schema.names:
                text = f"key='{column}' of '{flow.name}' is no column of '{name}'"
                hint = f"its columns are {', '.join(n for n in schema.names if not n.startswith('_'))}"
                yield Problem("error", "unknown_field", text, flow.place, hint)
                continue
            types.setdefault(column, {})[name] = simple_type(schema.field(column).type)
    for column, found in types.items():
        if len(set(found.values())) > 1:
            text = f"key='{column}' of '{flow.name}' has another type in each input: {found}"
            yield Problem("error", "bad_key", text, flow.place, "let a flow before it make them one")
        elif next(iter(found.values())).partition("(")[0] not in _KEYS:
            text = f"key='{column}' of '{flow.name}' is {next(iter(found.values()))}"
            yield Problem("error", "bad_key", text, flow.place, "a key is made of texts, numbers, dates and times")
    if ordered.order == "time":
        for name, late_after_us in late_after.items():
            if late_after_us is None:
                text = f"'{flow.name}' is in the order of time, and '{name}' never says that a time is complete"
                yield Problem("error", "never_complete", text, flow.place, "give the stream late_after=")
    rows = None if isinstance(ordered.script.script, DeclaredPattern) else ordered.script.rows
    if flow.time is not None and flow.time not in (*(rows.names if rows is not None else ()), TIME):
        text = f"time='{flow.time}' of '{flow.name}' is no field of its Output"
        yield Problem("error", "unknown_field", text, flow.place, "name one of its fields")


def pattern_problems(flow: FlowDef, script: PatternScript, *, timed: bool) -> Iterator[Problem]:
    """What stops a pattern from ever matching."""
    clash = next((step.name for step in script.pattern.steps if step.name in (*script.names, "_time")), None)
    if clash is not None:
        text = f"the step '{clash}' of '{flow.name}' is called like a column of the events"
        yield Problem("error", "name_taken", text, flow.place, "give the step another name")
        return
    if script.pattern.waits and not timed:
        text = f"'{flow.name}' waits for the end of within=, and its stream never says that a time is complete"
        yield Problem("error", "never_complete", text, flow.place, "give the stream late_after=")
    ranges: dict[str, dict[str, Range]] = {}
    for step in script.pattern.steps:
        try:
            where = compile_where(step.where, script.columns())
        except BadQueryError as error:
            text = f"the condition of '{step.name}' in '{flow.name}': {error.message}"
            yield Problem("error", "bad_pattern", text, flow.place, error.hint)
            return
        ranges[step.name] = ranges_of(parse(step.where), ranges)
        empty = [column for column, found in ranges[step.name].items() if is_empty(found)]
        if (empty or where.needs == NEVER) and step.link != "not_followed_by":
            why = f": there is no '{empty[0]}' that fits" if empty else ""
            text = f"no event ever fits the step '{step.name}' of '{flow.name}'{why}"
            yield Problem("error", "never_matches", text, flow.place, "its conditions exclude each other: mend one")


def bound_script(flow: FlowDef, schema: pa.Schema) -> Script:
    """The script of a flow, now that the columns of its events are known."""
    assert flow.ordered is not None
    declared = flow.ordered.script.script
    if isinstance(declared, NumberScript):
        return Script(declared.bound(schema), flow.name)
    if isinstance(declared, DeclaredPattern):
        within_us, after = declared.within_us, declared.after_match
        return Script(PatternScript(declared.pattern, schema, flow.ordered.key, within_us, after), flow.name)
    return flow.ordered.script


def ordered_fingerprint(flow: FlowDef, script: Script, facts: Mapping[str, Any], schemas: Sequence[pa.Schema]) -> str:
    """Another one: the flow is not the one that made its rows. What Python does is known by the project's source."""
    ordered = flow.ordered
    assert ordered is not None
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    own = (ordered.key, ordered.order, ordered.keep_us, script.version, flow.key, flow.time, flow.partitions)
    digest.update(repr(own).encode())
    for schema in schemas:
        digest.update(str([(f.name, str(f.type)) for f in schema]).encode())
    meaning: Callable[[], str] | None = getattr(script.script, "meaning", None)
    if meaning is not None:
        digest.update(meaning().encode())
        return digest.hexdigest()
    for name, source in project_sources(flow.function):
        digest.update(f"{name}\n".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()
