"""Views that meet: whoever reads two views of one stream sees both at one position, in every commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.change import OP, UPSERT
from penstock.flows.regroup import meetings
from penstock.flows.regroup.meetings import Meetings
from tests.flows.world import World

Make = Callable[[App], World]


class Step(Event):
    n: int
    at: int
    kind: str


def diamond() -> App:
    """Even and odd numbers are counted apart, the odd ones behind a flow, and all of them together: what the three have
    to do with each other is the same at every position."""
    app = App("diamond")
    app.stream("steps", Step, time="at", late_after="1 hour")

    @app.view(key="kind")
    def evens(steps: DataFrame) -> DataFrame:
        return steps.where("n % 2 = 0").groupBy("kind").agg(F.count("*").alias("c"))

    @app.flow()
    def odd(steps: DataFrame) -> DataFrame:
        return steps.where("n % 2 = 1").select("_time", "n", "kind")

    @app.view(key="kind")
    def odds(odd: DataFrame) -> DataFrame:
        return odd.groupBy("kind").agg(F.count("*").alias("c"))

    @app.view(key="kind")
    def everything(steps: DataFrame) -> DataFrame:
        return steps.groupBy("kind").agg(F.count("*").alias("c"))

    @app.view(key="kind")
    def doubled(evens: DataFrame) -> DataFrame:
        return evens.select("kind", (F.col("c") * 2).alias("c"))

    @app.view(key="kind")
    def balance(everything: DataFrame, doubled: DataFrame, odds: DataFrame) -> DataFrame:
        joined = everything.join(doubled.withColumnRenamed("c", "d"), "kind", "left")
        joined = joined.join(odds.withColumnRenamed("c", "o"), "kind", "left")
        missing = F.col("c") - F.coalesce("d", F.lit(0)) / 2 - F.coalesce("o", F.lit(0))
        return joined.select("kind", "c", missing.cast("long").alias("missing"))

    return app


def events(first: int, count: int) -> list[Step]:
    return [Step(n=n, at=1_000_000 + n, kind="abc"[n % 3]) for n in range(first, first + count)]


def changes(played: World, name: str) -> list[list[dict[str, Any]]]:
    """The upserts of each commit."""
    stream = played.stream(name)
    assert stream is not None
    found: dict[int, list[dict[str, Any]]] = {}
    for block in played._flows.read(stream, 0, 0):
        found.setdefault(block.commit, []).extend(row for row in block.batch.to_pylist() if row[OP] == UPSERT)
    return list(found.values())


class Load:
    """Sends commits, small and large, so many at least, and until the view has moved some times."""

    def __init__(self, played: World, commits: int) -> None:
        self._played, self._commits = played, commits
        self.sent = 0
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _send(self) -> None:
        while "live/balance" not in self._played.memory():
            time.sleep(0.05)  # until there is somebody to see half of it
        number = 0
        while number < self._commits or (self._moves() < 10 and number < 3_000):
            count = 1 + number % 7
            self._played.send("steps", [events(self.sent, count)])
            self.sent += count
            number += 1
            time.sleep(0.03)

    def _moves(self) -> int:
        stream = self._played.stream("balance")
        return 0 if stream is None else self._played._flows.bounds(stream).ends[0]

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()


def test_views_that_meet_are_read_at_one_position_in_every_commit(world: Make) -> None:
    played = world(diamond())
    with Load(played, commits=100) as load:
        played.run(until=lambda: load.done and played.level())
    commits = changes(played, "balance")
    wrong = [row for rows in commits for row in rows if row["missing"] != 0]
    assert wrong == []
    assert len(commits) > 5, "it moves while events come"
    assert sum(row["c"] for row in played.rows("balance")) == load.sent
    assert {name: r.result for name, r in played.verify().items() if r.result != "equal"} == {}


def test_a_view_that_stands_still_holds_up_those_that_need_it_and_no_others(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`odds` commits nothing more: `doubled` goes on without it, `balance` waits, and both are level afterwards."""
    monkeypatch.setattr(meetings, "_PATIENCE_S", 0.5)
    played = world(diamond())
    played.send("steps", [events(0, 30)])
    played.run()
    live, stood = Meetings._at, dict[str, Any]()

    def stands(self: Meetings, name: str, *given: Any) -> Any:
        now = live(self, name, *given)
        return stood.setdefault(name, now) if name == "odds" else now

    monkeypatch.setattr(Meetings, "_at", stands)
    before = played.rows("balance")
    played.send("steps", [events(30, 30)])
    played.run(until=lambda: sum(row["c"] for row in played.rows("doubled")) == 60)
    assert played.rows("balance") == before
    monkeypatch.undo()
    played.send("steps", [events(60, 6)])
    played.run()
    assert sum(row["c"] for row in played.rows("balance")) == 66
    assert [row for rows in changes(played, "balance") for row in rows if row["missing"] != 0] == []
