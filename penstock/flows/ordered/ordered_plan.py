"""What is known of an ordered flow before it runs: its columns, its fingerprint, and what is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.declaration import FlowDef, Problem
from penstock.flows.ordered.fold import FoldSpec
from penstock.flows.project import project_sources
from penstock.schema import TIME, read_schema, simple_type

_KEYS = ("string", "bigint", "int", "boolean", "date", "timestamp", "decimal", "binary", "double")


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
    fields = tuple(pa.field(name, first.field(name).type) for name in ordered.key)
    spec = FoldSpec(flow.name, ordered.script, fields, ordered.order, ordered.keep_us)
    facts = {"late_after": late_after, "upstream": {n: upstream[n] for n in flow.inputs if n in upstream}}
    digest = ordered_fingerprint(flow, facts, [*schemas.values(), spec.rows_schema, spec.state_schema])
    return {
        "node": flow,
        "inputs": dict(inputs),
        "mode": "append",
        "event_time": ordered.order == "time",
        "drops_late": False,
        "needed": tuple(sorted({name for schema in schemas.values() for name in schema.names})),
        "frame_schema": from_arrow_schema(spec.rows_schema),
        "ordered": True,
        "aggregates": False,
        "proof": "exact",
        "proof_reasons": (),
        "fingerprint": digest,
        "how": "ordered",
        "fold": spec,
    }, []


def state_facts(spec: FoldSpec) -> dict[str, Any]:
    """What differs where the state of an ordered flow is a view: the flow keeps it."""
    return {"mode": "update", "frame_schema": from_arrow_schema(spec.state_schema)}


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
    if flow.time is not None and flow.time not in (*(ordered.script.rows.names if ordered.script.rows else ()), TIME):
        text = f"time='{flow.time}' of '{flow.name}' is no field of its Output"
        yield Problem("error", "unknown_field", text, flow.place, "name one of its fields")


def ordered_fingerprint(flow: FlowDef, facts: Mapping[str, Any], schemas: Sequence[pa.Schema]) -> str:
    """Another one: the flow is not the one that made its rows. What Python does is known by the project's source."""
    ordered = flow.ordered
    assert ordered is not None
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    own = (ordered.key, ordered.order, ordered.keep_us, ordered.script.version, flow.key, flow.time, flow.partitions)
    digest.update(repr(own).encode())
    for schema in schemas:
        digest.update(str([(f.name, str(f.type)) for f in schema]).encode())
    meaning: Callable[[], str] | None = getattr(ordered.script.script, "meaning", None)
    if meaning is not None:
        digest.update(meaning().encode())
        return digest.hexdigest()
    for name, source in project_sources(flow.function):
        digest.update(f"{name}\n".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()
