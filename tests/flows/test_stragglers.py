"""Views that are slow, hang or fail: the others go on as fresh as before, and these catch up to equality."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.flows.regroup import steps
from tests.flows.world import World

Make = Callable[[App], World]
_DEADLINE_S = 120.0


class User(Event):
    id: int
    name: str
    country: str


def hanging(gate: Path) -> App:
    """`stuck` hangs on the users of Narnia while a file is there, and fails on those of Mordor; `both` meets it and its
    sibling."""
    app = App("users")
    app.table("users", User, key="id")
    path = str(gate)

    def wait(country):  # type: ignore[no-untyped-def]  # PySpark warns of annotations that it cannot resolve
        while country == "narnia" and os.path.exists(path):
            time.sleep(0.05)
        if country == "mordor":
            raise ValueError(country)
        return country

    waited = F.udf(wait, "string")

    @app.view(key="country")
    def sibling(users: DataFrame) -> DataFrame:
        return users.groupBy("country").agg(F.count("*").alias("n"))

    @app.view(key="id", deterministic=True)
    def stuck(users: DataFrame) -> DataFrame:
        return users.select("id", waited("country").alias("country"))

    @app.view(key="country")
    def below(stuck: DataFrame) -> DataFrame:
        return stuck.groupBy("country").agg(F.count("*").alias("n"))

    @app.view(key="country")
    def both(below: DataFrame, sibling: DataFrame) -> DataFrame:
        other = sibling.withColumnRenamed("n", "m")
        return below.join(other, "country", "full").select("country", (F.col("n") - F.col("m")).alias("missing"))

    return app


class Play:
    """Does things one after the other while the flows run."""

    def __init__(self, played: World, script: Callable[[Play], None]) -> None:
        self.world = played
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(script,))
        self._next = 1

    def __call__(self) -> None:
        self._thread.start()
        try:
            self.world.run(until=lambda: not self._thread.is_alive(), timeout_s=600)
        finally:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self, script: Callable[[Play], None]) -> None:
        try:
            script(self)
        except BaseException as error:
            self._failure = error

    def until(self, holds: Callable[[], bool], what: str) -> float:
        began = time.monotonic()
        while not holds():
            assert time.monotonic() < began + _DEADLINE_S, what
            time.sleep(0.01)
        return time.monotonic() - began

    def counted(self, view: str) -> dict[str, Any]:
        if f"live/{view}" not in self.world.memory():
            return {}
        return {row["country"]: row["n"] for row in self.world.rows(view)}

    def add(self, country: str, count: int = 1) -> None:
        users = [User(id=self._next + n, name=f"u{self._next + n}", country=country) for n in range(count)]
        self._next += count
        self.world.change("users", [users])

    def freshness(self, rounds: int) -> float:
        """The median time from a change to its commit in the view `sibling`."""
        took = []
        for _ in range(rounds):
            before = self.counted("sibling").get("no", 0)
            self.add("no")
            took.append(self.until(lambda: self.counted("sibling").get("no", 0) > before, "the sibling stands still"))  # noqa: B023
        return statistics.median(took)


def as_fresh(now_s: float, before_s: float) -> bool:
    """Within one and a half, on a machine whose mood changes by a second."""
    return now_s <= max(1.5 * before_s, before_s + 1.0)


def test_a_view_that_hangs_holds_up_neither_its_siblings_nor_the_next_start(
    world: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "STEP_S", 2.0)
    monkeypatch.setattr(steps, "_BACKOFF_MOST_S", 1.0)
    gate = tmp_path / "gate"
    played = world(hanging(gate))
    played.change("users", [[User(id=100_000 + n, name="x", country=c) for n, c in enumerate(["se", "dk", "fi"])]])

    def hang(play: Play) -> None:
        play.until(lambda: play.counted("below") != {}, "nothing is served")
        before = play.freshness(8)
        play.add("mordor")
        now = play.freshness(8)
        assert as_fresh(now, before), f"{now:.2f} s beside a view that fails, {before:.2f} s without"
        play.until(lambda: played.events("dead") != [], "it is not left out")
        gate.touch()
        play.add("narnia")
        play.until(lambda: play.counted("sibling").get("narnia") == 1, "the sibling waits for the one that hangs")
        now = play.freshness(8)
        print(f"beside a view that hangs {now:.2f} s, without {before:.2f} s")
        assert as_fresh(now, before), f"{now:.2f} s beside a view that hangs, {before:.2f} s without"
        assert "narnia" not in play.counted("below")

    Play(played, hang)()
    before = played.rows("both")

    def release(play: Play) -> None:
        play._next = 1_000
        play.until(lambda: played.memory()["flow/sibling"].get("run") == f"run {played.runs}", "no start")
        play.freshness(2)
        assert played.rows("both") == before, "it can stand nowhere that is level"
        gate.unlink()
        play.until(lambda: played.level(), "it does not catch up")

    Play(played, release)()
    right = dict.fromkeys(["se", "dk", "fi", "no", "narnia"], 0)
    assert {row["country"]: row["missing"] for row in played.rows("both")} == {**right, "mordor": None}
    assert {name: r.result for name, r in played.verify().items()} == dict.fromkeys(
        ["sibling", "stuck", "below", "both"], "equal"
    )


def ranking(*, ranked: bool) -> App:
    """A rank over everything, what is made of it, and where that meets a view with units."""
    app = App("users")
    app.table("users", User, key="id")
    app.sql("sibling", key="country", query="SELECT country, count(*) AS n FROM users GROUP BY country")
    if ranked:
        app.sql("ranks", key="id", query="SELECT id, country, row_number() OVER (ORDER BY name, id) AS n FROM users")
        app.sql(
            "last", key="country", query="SELECT country, max(n) AS last, count(*) AS n FROM ranks GROUP BY country"
        )
        met = "SELECT country, l.n - s.n AS missing FROM last l JOIN sibling s USING (country)"
        app.sql("met", key="country", query=met)
    return app


def test_a_view_without_units_is_computed_beside_the_steps(world: Make) -> None:
    played = world(ranking(ranked=False))
    played.change("users", [[User(id=10_000 + n, name=f"n{n:06}", country=f"c{n % 1000}") for n in range(80_000)]])
    fresh: list[float] = []

    def change(play: Play) -> None:
        play._next = 1 + 100 * len(fresh)
        last = "met" if fresh else "sibling"
        play.until(lambda: f"live/{last}" in played.memory() and len(played.rows(last)) >= 1_000, "nothing is served")
        fresh.append(play.freshness(12))

    Play(played, change)()
    played.use(ranking(ranked=True))
    Play(played, change)()
    played.run()
    print(f"beside a whole view {fresh[1]:.2f} s, without {fresh[0]:.2f} s")
    assert as_fresh(fresh[1], fresh[0]), f"{fresh[1]:.2f} s beside a whole view, {fresh[0]:.2f} s without"
    assert {row["missing"] for row in played.rows("met")} == {0}
    assert {r.result for r in played.verify().values()} == {"equal"}
