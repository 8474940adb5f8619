"""What closes does so by what the log says is complete, and by nothing else: neither events alone nor batches."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.log.builds import batch_meta
from penstock.log.index.tables import COMPLETENESS
from tests.flows.world import World

START_MS = 1_700_000_040_000
MINUTE_MS = 60_000
MINUTE = 60_000_000


class Step(Event):
    n: int
    at: int


def step(n: int, minute: float) -> Step:
    return Step(n=n, at=int(START_MS + minute * MINUTE_MS))


def app() -> App:
    made = App("complete")
    made.stream("steps", Step, time="at", id="n", late_after="10 minutes")
    made.stream("calls", Step, time="at", id="n", late_after="20 minutes")

    @made.flow
    def closed(steps: DataFrame) -> DataFrame:
        return steps.where("n > 0").groupBy(F.window("_time", "1 minute")).agg(F.count("*").alias("c"))

    @made.view(key=["all", "session_window"])
    def sessions(steps: DataFrame) -> DataFrame:
        everyone = (F.col("n") * 0).alias("all")
        return steps.groupBy(everyone, F.session_window("_time", "1 minute")).agg(F.count("*").alias("c"))

    @made.flow
    def both(steps: DataFrame, calls: DataFrame) -> DataFrame:
        return steps.select("_time", "n").union(calls.select("_time", "n"))

    @made.view(key="window", final=True)
    def of_both(both: DataFrame) -> DataFrame:
        return both.groupBy(F.window("_time", "1 minute")).agg(F.count("*").alias("c"))

    @made.view(key="n")
    def unanswered(steps: DataFrame, calls: DataFrame) -> DataFrame:
        later = calls.select(F.col("n").alias("called"), F.col("_time").alias("then"))
        near = F.expr("n = called AND then BETWEEN _time AND _time + INTERVAL 5 MINUTES")
        return steps.join(later, near, "left_outer").select("n", "_time", "called")

    @made.view(key="n")
    def plain(steps: DataFrame) -> DataFrame:
        return steps.groupBy("n").agg(F.max("at").alias("at"))

    return made


def complete(there: World, name: str) -> Any:
    """In minutes since the start, as the newest commit of a view or flow stores it: as its own, and of its inputs."""
    stream = there.stream(name)
    assert stream is not None
    last = there._flows.last_commit(stream)
    assert last is not None
    assert last.meta is not None
    meta_us = batch_meta(last.meta).complete_us
    minutes = [None if us is None else (us - START_MS * 1000) / MINUTE for us in (last.complete_us, meta_us)]
    return tuple(minutes)


def windows(there: World, name: str) -> list[int]:
    rows = there.events(name) if name == "closed" else there.rows(name)
    column = "session_window" if name == "sessions" else "window"
    return sorted(round(row[column]["start"].timestamp() * 1000 - START_MS) // MINUTE_MS for row in rows)


def finals(there: World) -> list[Any]:
    rows = there.rows("of_both")
    return sorted(
        ((row["window"]["start"].timestamp() * 1000 - START_MS) // MINUTE_MS, row["is_final"]) for row in rows
    )


def test_a_tick_closes_what_waits_for_time_and_nothing_else_does(world: Callable[[App], World]) -> None:
    there = world(app())
    there.send("steps", [[step(1, 0), step(2, 1)], [step(0, 60)], [step(3, 50.5)], [step(4, 49)]])
    there.send("calls", [[step(1, 2)], [step(9, 60)]])
    there.run(until=lambda: there.level() and len(there.rows("unanswered")) == 2 and windows(there, "closed") == [0, 1])
    # 60 - 10 minutes: what was at 49 is late; what was at 50.5 is not, and its window is open
    assert complete(there, "plain") == complete(there, "sessions") == (50, 50)
    assert complete(there, "both") == complete(there, "of_both") == (40, 40), "the least of 50 and 40"
    assert complete(there, "closed")[1] == 50
    assert [e["event"] for e in there.events("late") if e["flow"] == "closed"] == ['{"n":4,"at":1700002980000}']
    assert windows(there, "of_both") == [0, 1, 2, 50, 60], "an event that keeps its _time is not late again"
    assert {row["n"]: row["called"] for row in there.rows("unanswered")} == {1: 1, 2: None}
    before = there.stream("plain"), there._flows.bounds(there.stream("plain")).next_commit  # type: ignore[arg-type]

    there.tick("steps", (START_MS + 51 * MINUTE_MS + 1) * 1000)  # Spark wants a millisecond more
    there.run(timeout_s=120, until=lambda: windows(there, "closed") == [0, 1, 50])
    assert complete(there, "closed")[1] > 51
    assert finals(there) == [(0, True), (1, True), (2, True), (50, False), (60, False)]
    there.tick("steps", (START_MS + 70 * MINUTE_MS) * 1000)
    there.tick("calls", (START_MS + 70 * MINUTE_MS) * 1000)
    there.run(until=lambda: len(there.rows("unanswered")) == 4 and windows(there, "sessions") == [0, 50, 60])
    there.run(until=lambda: all(final for _, final in finals(there)))
    after = there.stream("plain"), there._flows.bounds(there.stream("plain")).next_commit  # type: ignore[arg-type]
    assert before == after, "a tick is no reason for a batch where nothing waits for time"
    there.send("steps", [[step(5, 65), step(6, 71)]])
    there.run()
    assert {row["n"]: row["called"] for row in there.rows("unanswered")} == {0: None, 1: 1, 2: None, 3: None}
    assert {e["event"] for e in there.events("late") if e["flow"] == "closed"} == {
        '{"n":4,"at":1700002980000}',
        '{"n":5,"at":1700003940000}',
    }
    assert there.dropped == 0
    results = {name: report.result for name, report in there.verify().items()}
    assert results.pop("unanswered") == "unverifiable", "an outer join of two streams"
    assert set(results.values()) == {"equal"}


def as_before(there: World) -> None:
    """The folder's logs as they were before commits said how far their streams are complete."""
    for path in (there.folder.root / "edge.db", there.folder.root / "flows.db"):
        with closing(sqlite3.connect(path)) as connection:
            for name in COMPLETENESS:
                connection.execute(f"ALTER TABLE commits DROP COLUMN {name}")
            connection.execute("UPDATE commits SET meta = json_remove(meta, '$.complete_us', '$.waits_us')")
            connection.execute("UPDATE meta SET value = 1 WHERE key = 'format'")
            connection.commit()


def test_a_folder_of_before_goes_on_and_nothing_is_rebuilt(world: Callable[[App], World]) -> None:
    made = App("before")
    made.stream("steps", Step, time="at", id="n", late_after="10 minutes")

    @made.flow
    def closed(steps: DataFrame) -> DataFrame:
        return steps.groupBy(F.window("_time", "1 minute")).agg(F.count("*").alias("c"))

    there = world(made)
    there.send("steps", [[step(1, 0)], [step(2, 60)], [step(3, 10)]])
    there.run(until=lambda: there.level() and windows(there, "closed") == [0])
    stream = there.stream("closed")
    assert stream is not None
    last = there._flows.last_commit(stream)
    assert last is not None
    assert last.meta is not None
    assert batch_meta(last.meta).waits_us == (START_MS + 61 * MINUTE_MS) * 1000, "the end of the last open window"
    as_before(there)
    there.send("steps", [[step(4, 20)], [step(5, 55)], [step(6, 90)]])
    there.run(until=lambda: there.level() and windows(there, "closed") == [0, 55, 60])
    assert there.stream("closed") == stream, "its build goes on"
    assert [e["event"] for e in there.events("late")] == ['{"n":3,"at":1700000640000}', '{"n":4,"at":1700001240000}']
    assert complete(there, "closed")[1] == 80
    assert there.verify()["closed"].result == "equal"
