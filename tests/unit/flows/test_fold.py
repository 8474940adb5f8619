"""The loop of ordered flows: timers, poison and old states, however batches are cut; no Spark and no log take part."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock import Struct
from penstock.declaration import Order
from penstock.flows.ordered.fold import LATE, SEQUENCE, STEP, BatchGround, Folded, FoldSpec, fold
from penstock.schema import TIMESTAMP
from penstock.stateful import script_of

SECOND = 1_000_000
Commit = tuple[int | None, list[tuple[str, int, int]]]
"""What was complete before it, and its events: key, time in seconds, number."""


def spec_of(cls: type, order: Order = "log", keep_s: int | None = None) -> FoldSpec:
    keep_us = None if keep_s is None else keep_s * SECOND
    return FoldSpec("watch", script_of(cls, "watch", ("who",)), (pa.field("who", pa.string()),), order, keep_us)


class Twin:
    """Folds commits over states that it keeps."""

    def __init__(self, spec: FoldSpec) -> None:
        self.spec = spec
        self.states = spec.state_schema.empty_table()
        self.rows: list[dict[str, Any]] = []
        self.letters: list[str] = []
        self.offset = 0

    def take(self, commits: Sequence[Commit], fired: tuple[Any, ...] = ()) -> Folded:
        events = [(who, at, n, step) for step, (_, commit) in enumerate(commits) for who, at, n in commit]
        offsets = list(range(self.offset, self.offset + len(events)))
        self.offset += len(events)
        table = pa.table(
            {
                "who": pa.array([e[0] for e in events], pa.string()),
                "n": pa.array([e[2] for e in events], pa.int64()),
                "_time": pa.array([e[1] * SECOND for e in events], pa.int64()).cast(TIMESTAMP),
                "_key": pa.array([e[0] for e in events], pa.string()),
                "_partition": pa.array([0] * len(events), pa.int32()),
                "_offset": pa.array(offsets, pa.int64()),
                LATE: pa.array([False] * len(events), pa.bool_()),
                STEP: pa.array([e[3] for e in events], pa.int64()),
                SEQUENCE: pa.array(range(len(events)), pa.int64()),
            }
        )
        complete = tuple(None if c is None else c * SECOND for c, _ in commits)
        folded = fold(self.spec, BatchGround(complete, 0, True, fired), {"seen": table}, self.states)
        changed = {row["who"]: row for row in (*self.states.to_pylist(), *folded.states.to_pylist())}
        for key in folded.gone:
            del changed[key[0]]
        self.states = pa.Table.from_pylist([changed[who] for who in sorted(changed)], self.spec.state_schema)
        self.rows += folded.rows.to_pylist()
        self.letters += [letter.said for letter in folded.letters]
        return folded


class Absence:
    """Tells who was not seen for ten seconds."""

    class State(Struct):
        last: int = 0

    class Output(Struct):
        who: str
        n: int

    def on_event(self, state: Any, event: Any, out: Any) -> None:
        state.last = event.n
        out.timer("gone", at=event._time + dt.timedelta(seconds=10))

    def on_timer(self, state: Any, timer: Any, out: Any) -> None:
        out.emit(n=state.last)


def test_a_timer_fires_at_the_commit_that_completes_its_time_before_its_events() -> None:
    twin = Twin(spec_of(Absence))
    twin.take([(None, [("a", 100, 1)]), (105, [("b", 112, 2)])])
    assert twin.rows == []
    twin.take([(110, [("a", 115, 3)])])
    assert [(r["who"], r["n"], r["_time"].timestamp()) for r in twin.rows] == [("a", 1, 110)]


@pytest.mark.parametrize("order", ["log", "time"])
def test_the_same_rows_in_the_same_order_however_batches_are_cut(order: Order) -> None:
    dice = random.Random(7)
    commits: list[Commit] = []
    at, complete, n = 100, None, 0
    for _ in range(60):
        events = []
        for _ in range(dice.randint(0, 4)):
            at += dice.randint(0, 6)
            n += 1
            events.append((dice.choice("abcdef"), at, n))
        commits.append((complete, events))
        complete = at - 3
    whole = Twin(spec_of(Absence, order))
    whole.take(commits) if order == "log" else [whole.take([c]) for c in commits]
    assert len(whole.rows) > 20
    for seed in range(5):
        cut, left = Twin(spec_of(Absence, order)), list(commits)
        while left:
            size = random.Random(seed + len(left)).randint(1, 9) if order == "log" else 1
            cut.take(left[:size])
            left = left[size:]
        assert cut.rows == whole.rows
        assert cut.states == whole.states


def test_a_timer_in_the_past_fires_at_once_and_one_that_sets_itself_is_stopped() -> None:
    class Eager:
        class Output(Struct):
            who: str
            n: int

        def on_event(self, state: Any, event: Any, out: Any) -> None:
            out.emit(n=event.n)
            out.timer("past", at=event._time - dt.timedelta(days=1))

        def on_timer(self, state: Any, timer: Any, out: Any) -> None:
            out.emit(n=-1)
            if out.key == ("loop",):
                out.timer("past", at=timer.at)

    twin = Twin(spec_of(Eager))
    twin.take([(100, [("a", 100, 1), ("b", 100, 2)])])
    assert [(r["who"], r["n"]) for r in twin.rows] == [("a", 1), ("a", -1), ("b", 2), ("b", -1)]
    twin.take([(100, [("loop", 100, 3)])])
    assert "set again in the past" in twin.letters[0]


def test_an_exception_leaves_nothing_of_its_event_behind() -> None:
    class Fragile:
        class State(Struct):
            seen: list[int] = []

        class Output(Struct):
            n: int

        def on_event(self, state: Any, event: Any, out: Any) -> None:
            state.seen.append(event.n)
            out.emit(n=event.n)
            out.clock("later", after="1 second")
            if event.n % 3 == 0:
                raise ValueError(f"{event.n} is poison")

    twin = Twin(spec_of(Fragile))
    twin.take([(None, [("a", 1, n) for n in range(1, 8)])])
    assert [row["n"] for row in twin.rows] == [1, 2, 4, 5, 7]
    assert twin.states.to_pylist()[0]["seen"] == [1, 2, 4, 5, 7]
    assert twin.letters == ["on_event: ValueError: 3 is poison", "on_event: ValueError: 6 is poison"]


def test_a_state_goes_when_its_key_was_silent_and_begins_anew() -> None:
    class Counter:
        class State(Struct):
            n: int = 0

        class Output(Struct):
            who: str
            n: int

        def on_event(self, state: Any, event: Any, out: Any) -> None:
            state.n += 1
            out.emit(n=state.n)
            if event.n == 99:
                out.forget()

    for cuts in ([3], [1, 1, 1]):
        twin, at = Twin(spec_of(Counter, keep_s=10)), 0
        commits: list[Commit] = [
            (None, [("a", 100, 1), ("b", 100, 1)]),
            (109, [("a", 112, 2)]),
            (111, [("a", 113, 3), ("b", 113, 1), ("c", 113, 99)]),
        ]
        for cut in cuts:
            twin.take(commits[at : at + cut])
            at += cut
        assert [(r["who"], r["n"]) for r in twin.rows] == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1)]
        assert [row["who"] for row in twin.states.to_pylist()] == ["a", "b"]
    twin.take([(124, [])])
    assert twin.states.num_rows == 0


def test_timers_by_the_clock_fire_when_they_are_named() -> None:
    class Waiting(Absence):
        def on_event(self, state: Any, event: Any, out: Any) -> None:
            state.last += event.n
            out.clock("decide", after="300 ms")

    twin = Twin(spec_of(Waiting))
    twin.take([(None, [("a", 100, 1), ("b", 100, 5)])])
    twin.take([(None, [("a", 101, 2)])], fired=((("a",), "decide"),))
    assert [(r["who"], r["n"], r["_time"].timestamp()) for r in twin.rows] == [("a", 1, 100)]
    assert twin.take([], fired=((("a",), "unknown"),)).rows.num_rows == 0
