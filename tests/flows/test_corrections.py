"""Late events change closed windows as far back as `correct=` says, and the same log still gives the same view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.flows.check import check
from penstock.log.builds import batch_meta
from tests.flows.world import World

START_MS = 1_700_000_000_000
SECOND, MINUTE = 1_000, 60_000


class Tick(Event):
    n: int
    at: int


def app(correct: str | None = "10 minutes", late_after: str | None = "1 minute") -> App:
    made = App("corrections")
    made.stream("ticks", Tick, time="at", id="n", late_after=late_after)

    @made.view(key="window", correct=correct)
    def windows(ticks: DataFrame) -> DataFrame:
        return ticks.groupBy(F.window("_time", "20 seconds")).agg(F.count("*").alias("c"))

    return made


COMMITS = [
    [Tick(n=0, at=START_MS)],
    [Tick(n=1, at=START_MS + 5 * MINUTE)],
    [Tick(n=2, at=START_MS + 1 * SECOND)],  # late, and within 10 minutes: its window closed four minutes ago
    [Tick(n=3, at=START_MS + 12 * MINUTE)],
    [Tick(n=4, at=START_MS + 2 * SECOND), Tick(n=5, at=START_MS + 3 * MINUTE)],  # too late; late and corrected
]


def counts(there: World) -> list[tuple[Any, int]]:
    return sorted((row["window"]["start"], row["c"]) for row in there.rows("windows"))


def corrections(there: World) -> list[Any]:
    stream = there.stream("windows")
    assert stream is not None
    metas = [batch_meta(commit.meta) for commit in there._flows.commits(stream, 0) if commit.meta]
    return [meta.corrected for meta in metas]


@pytest.mark.parametrize("max_rows", [1, 500_000])
def test_a_late_event_changes_its_window_and_the_ledger_says_so(world: Callable[[App], World], max_rows: int) -> None:
    there = world(app())
    there.send("ticks", COMMITS)
    there.run(max_rows=max_rows)
    assert [c for _, c in counts(there)] == [2, 1, 1, 1]
    assert [event["corrected"] for event in there.events("late")] == [True, False, True]
    assert there.verify()["windows"].result == "equal"
    assert there.dropped == 0
    told = [keys and [key["window"]["start"] for key in keys] for keys in corrections(there)]
    if max_rows == 1:
        assert told == [None, None, ["2023-11-14T22:13:20.000Z"], None, ["2023-11-14T22:16:20.000Z"]]


def test_without_correct_the_same_events_are_left_out(world: Callable[[App], World]) -> None:
    there = world(app(correct=None))
    there.send("ticks", COMMITS)
    there.run()
    assert [c for _, c in counts(there)] == [1, 1, 1]
    assert [event["corrected"] for event in there.events("late")] == [False, False, False]


@pytest.mark.parametrize(("correct", "late_after"), [("1 minute", "1 minute"), ("1 hour", None)])
def test_check_refuses_a_correction_that_is_none(spark: SparkSession, correct: str, late_after: str | None) -> None:
    assert "bad_correct" in [problem.code for problem in check(app(correct, late_after).declared(), None)]
