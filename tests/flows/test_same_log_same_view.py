"""The same log gives the same view, however batches are cut; what is late is what the rule names, exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from tests.flows.world import World

LATE_AFTER_MS = 60_000
START_MS = 1_700_000_000_000


class Tick(Event):
    n: int
    at: int
    kind: str


def ticks_app() -> App:
    app = App("ticks")
    app.stream("ticks", Tick, time="at", id="n", late_after="1 minute")

    @app.flow
    def evens(ticks: DataFrame) -> DataFrame:
        return ticks.where("n % 2 = 0").select("_time", "n", "kind")

    @app.view(key=["window", "kind"])
    def windows(ticks: DataFrame) -> DataFrame:
        return ticks.groupBy(F.window("_time", "20 seconds"), "kind").agg(
            F.count("*").alias("c"), F.sum("n").alias("s")
        )

    @app.view(key=["window"])
    def even_windows(evens: DataFrame) -> DataFrame:
        return evens.groupBy(F.window("_time", "20 seconds")).agg(F.count("*").alias("c"))

    @app.view(key=["kind", "session_window"])
    def sessions(ticks: DataFrame) -> DataFrame:
        return ticks.groupBy("kind", F.session_window("_time", "1 second")).agg(F.count("*").alias("c"))

    @app.view(key="kind")
    def kinds(ticks: DataFrame) -> DataFrame:
        return ticks.groupBy("kind").agg(F.count("*").alias("c"))

    return app


def out_of_order(seed: int, commits: int = 40) -> list[list[Tick]]:
    """Commits of a few events each; one in ten far behind, some of them late. The first commit is of 1969 and 1970,
    before which Spark's watermark cannot go."""
    chance = random.Random(seed)
    made = [[Tick(n=n, at=at, kind="ab"[n % 2]) for n, at in enumerate([-86_400_000, -1, 0, 1])]]
    n = len(made[0])
    for commit in range(commits):
        group = []
        for _ in range(chance.randint(1, 30)):
            back = chance.choice([0] * 9 + [chance.randint(0, 200_000)])
            group.append(Tick(n=n, at=START_MS + commit * 5_000 + chance.randint(0, 5_000) - back, kind="ab"[n % 2]))
            n += 1
        made.append(group)
    return made


def late_by_rule(commits: list[list[Tick]]) -> set[int]:
    bound, late = None, set()
    for group in commits:
        late |= {t.n for t in group if t.at <= 0 or (bound is not None and t.at < bound - LATE_AFTER_MS)}
        bound = max([t.at for t in group] + ([bound] if bound is not None else []))
    return late


def _sorted(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(rows, key=repr)


def test_views_depend_neither_on_how_batches_are_cut_nor_on_where_the_log_lies(
    world: Callable[[App], World], kafka: str, tmp_path: Path
) -> None:
    commits = out_of_order(seed=1)
    late = late_by_rule(commits)
    assert late, "the test needs late events"
    whole = world(ticks_app())
    whole.send("ticks", commits)
    whole.run(until=lambda: whole.level() and len(whole.rows("sessions")) > 10)  # they close in a batch without events
    pieces = World(whole.spark, tmp_path / "pieces", ticks_app(), f"{kafka}/ticks")
    third = len(commits) // 3
    for part in (commits[:third], commits[third : 2 * third], commits[2 * third :]):  # with restarts between
        pieces.send("ticks", part)
        pieces.run(max_rows=60)
    assert (whole.dropped, pieces.dropped) == (0, 0)
    for view in ("windows", "even_windows", "kinds"):
        assert _sorted(whole.rows(view)) == _sorted(pieces.rows(view))
    for one in (whole, pieces):
        assert {report.result for report in one.verify().values()} == {"equal"}
        entries = [(e["flow"], e["stream"]) for e in one.events("late")]
        assert len(entries) == len(set(e["_id"] for e in one.events("late")))
        assert {
            int(e["event"].split('"n":')[1].split(",")[0]) for e in one.events("late") if e["flow"] == "windows"
        } == late
        assert {flow for flow, _ in entries} == {
            "windows",
            "evens",
            "sessions",
        }  # kinds has no event time: nothing is late for it
    assert sum(r["c"] for r in whole.rows("windows")) == sum(map(len, commits)) - len(late)
    assert sum(r["c"] for r in whole.rows("kinds")) == sum(map(len, commits))
    ends = [one.ends("ticks") for one in (whole, pieces)]
    assert ends[0] == ends[1]
    pieces.close()
