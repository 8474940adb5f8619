"""Patterns: the matcher equals a reference by brute force, and what can never match is said so."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pyarrow as pa
import pytest

from penstock import App
from penstock.errors import DeclarationError
from penstock.flows.ordered.fold import LATE, SEQUENCE, STEP, BatchGround, FoldSpec, event_kind, fold
from penstock.flows.ordered.ordered_plan import pattern_problems
from penstock.flows.ordered.pattern_match import PatternScript
from penstock.patterns import begin, check_pattern
from penstock.schema import TIMESTAMP
from penstock.stateful import Out, Script
from tests.pattern_reference import Case, case_of, matches

SEEDS = int(os.environ.get("PATTERN_SEEDS", "300"))
EVENTS = pa.schema([("who", pa.string()), ("v", pa.int64()), ("n", pa.int64())])


def found(case: Case, cuts: list[int], complete: int) -> list[Any]:
    """What the matcher finds, as numbers of events, with batches cut here."""
    script = PatternScript(case.pattern, EVENTS, ("who",), case.within, case.after)
    spec = FoldSpec("p", Script(script, "p"), (pa.field("who", pa.string()),), "time", None)
    states, rows = spec.state_schema.empty_table(), []
    bounds = [0, *cuts, len(case.events)]
    for start, end in itertools.pairwise(bounds):
        part = list(enumerate(case.events))[start:end]
        last = end == len(case.events)
        table = pa.table(
            {
                "who": pa.array(["k"] * len(part), pa.string()),
                "v": pa.array([event[1] for _, event in part], pa.int64()),
                "n": pa.array([number for number, _ in part], pa.int64()),
                "_time": pa.array([event[0] for _, event in part], pa.int64()).cast(TIMESTAMP),
                "_key": pa.array(["k"] * len(part), pa.string()),
                "_partition": pa.array([0] * len(part), pa.int32()),
                "_offset": pa.array([number for number, _ in part], pa.int64()),
                LATE: pa.array([False] * len(part), pa.bool_()),
                STEP: pa.array([0] * len(part), pa.int64()),
                SEQUENCE: pa.array(range(len(part)), pa.int64()),
            }
        )
        ground = BatchGround((complete if last else None,), 0)
        folded = fold(spec, ground, {"s": script.wanted(table)}, states)
        assert folded.letters == []
        states = folded.states if folded.states.num_rows or folded.gone else states
        rows += folded.rows.to_pylist()
    steps = [step for step in case.pattern.steps if step.link != "not_followed_by"]
    return [[[e["n"] for e in row[s.name]] if s.many else [row[s.name]["n"]] for s in steps] for row in rows]


@pytest.mark.parametrize("part", range(10))
def test_each_pattern_equals_the_reference_however_batches_are_cut(part: int) -> None:
    seen = 0
    for seed in range(part, SEEDS, 10):
        case = case_of(seed)
        complete = case.events[-1][0] + (case.within if seed % 3 else 0)
        expected = matches(case, complete)
        seen += len(expected)
        cuts = [at for at in range(1, len(case.events)) if (seed >> at) & 1]
        assert found(case, [], complete) == expected, (seed, case)
        assert found(case, cuts, complete) == expected, (seed, case, cuts)
    assert seen > 0


def test_what_only_time_can_end_needs_an_end() -> None:
    absent = begin("a", "v > 1").not_followed_by("b", "v < 1")
    with pytest.raises(DeclarationError, match="only time can end"):
        check_pattern(absent, "p", None, "none")
    with pytest.raises(DeclarationError, match="two steps are called 'a'"):
        begin("a", "v > 1").next("a", "v > 2")
    with pytest.raises(DeclarationError, match="not to come at all"):
        absent.times(2)


def problems(pattern: Any, *, timed: bool = True) -> list[str]:
    app = App("roads")

    @app.pattern(key="who", within="1 minute", name="p", order="log")
    def jam(reports: Any) -> Any:
        return pattern

    flow = app.declared().flows[0]
    script = PatternScript(pattern, EVENTS, ("who",), 1, "none")
    return [problem.code for problem in pattern_problems(flow, script, timed=timed)]


def test_a_pattern_that_can_never_match_is_an_error_before_it_runs() -> None:
    assert problems(begin("a", "v < 20").followed_by("b", "v < a.v")) == []
    assert problems(begin("a", "v < 20 and v > 30")) == ["never_matches"]
    assert problems(begin("a", "v < 20").followed_by("b", "v < a.v and 20 <= v")) == ["never_matches"]
    assert problems(begin("a", "speed < 20")) == ["bad_pattern"]
    assert problems(begin("v", "v < 20")) == ["name_taken"]
    assert problems(begin("a", "v < 20").not_followed_by("b", "v > 20"), timed=False) == ["never_complete"]


def test_a_key_holds_a_thousand_partial_matches_and_the_oldest_goes_to_dead() -> None:
    case = Case(begin("a", "v = 1").followed_by("b", "v = 2"), {}, [(1, 1)] * 1002, 10, "none")
    script = PatternScript(case.pattern, EVENTS, ("who",), case.within, case.after)
    state, out = script.State(), Out(script.Output, ("who",), 0)
    out.key = ("k",)
    kind = event_kind("s", ["v", "who", "n", "_time"])
    for number in range(1002):
        script.on_event(state, kind(1, "k", number, 1), out)
    assert [reason for reason, _ in out.rejected] == ["too_many_partial"] * 2
    assert len(state.partials) == 1000
