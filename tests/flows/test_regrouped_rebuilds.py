"""Rows that go where nobody looks: with a rebuild of an input, with another app over the same tables, with `keep=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from penstock import App, Event, plain
from penstock.flows.plan import Planner
from penstock.flows.regroup.kept_view import Kept
from penstock.flows.regroup.unit_poison import TooSlowError
from tests.flows.world import World

GRID = """
    SELECT v.c AS country, count(u.id) AS n FROM VALUES ('no'), ('zz') v(c) LEFT JOIN users u ON u.country = v.c
    GROUP BY v.c
"""


class User(Event):
    id: int
    name: str
    country: str


def users_app(least: int = 0, by_name: bool = False, weight: int = 1) -> App:
    app = App("shop")
    app.table("users", User, key="id")

    @app.view(key="id")
    def some(users: DataFrame) -> DataFrame:
        return users.where(F.col("id") > least).select("id", "country")

    @app.view(key="country")
    def counted(some: DataFrame) -> DataFrame:
        return some.groupBy("country").agg((F.count("*") * weight).alias("n"))

    @app.view(key="country")
    def countries(users: DataFrame) -> DataFrame:
        return users.groupBy("country").agg(F.count("*").alias("n"))

    app.sql("grid", key="country", query=GRID)
    if by_name:

        @app.view(key="name")
        def names(users: DataFrame) -> DataFrame:
            return users.groupBy("name").agg(F.count("*").alias("n"))

    return app


def counts(world: World, view: str) -> dict[str, Any]:
    return {row["country"]: row["n"] for row in world.rows(view)}


def test_what_went_while_nobody_looked_leaves_every_view(world: Callable[[App], World]) -> None:
    one = world(users_app())
    one.change("users", [[User(id=n, name="A", country=c) for n, c in enumerate(["no", "se", "dk"], 1)]])
    one.run()
    assert counts(one, "counted") == counts(one, "countries") == {"no": 1, "se": 1, "dk": 1}
    assert counts(one, "grid") == {"no": 1, "zz": 0}, "a row that comes from a constant alone"
    one.use(users_app(least=1))  # its only row of "no" is gone with the rebuild
    one.run()
    assert counts(one, "counted") == {"se": 1, "dk": 1}
    one.change("users", [[(3,)]])
    one.use(users_app(least=1, by_name=True))  # the table of users gets another index, and is made anew for it
    one.run()
    assert counts(one, "counted") == {"se": 1}
    assert counts(one, "countries") == {"no": 1, "se": 1}
    assert {report.result for report in one.verify().values()} == {"equal"}
    assert not {"prepared", "eviction"} & plain.given_up().keys(), "else this tests the plain way alone"


def first_commit_us(played: World, view: str) -> int:
    """When the build that is served was first written."""
    stream = played.stream(view)
    assert stream is not None
    return played._flows.commits(stream, 0, limit=1)[0].written_us


@pytest.mark.parametrize("beside", [False, True], ids=["within a step", "beside the steps"])
def test_an_input_that_is_rebuilt_resets_nobody_and_two_that_changed_go_live_in_one_commit(
    world: Callable[[App], World], monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    one = world(users_app())
    one.change("users", [[User(id=n, name="A", country=c) for n, c in enumerate(["no", "se", "se", "dk"], 1)]])
    one.run()
    before = one.memory()
    if beside:
        computed = Kept.computed

        def slow(self: Kept, *given: Any, **named: Any) -> Any:
            if self.name == "counted" and named.get("most_slices"):
                raise TooSlowError("it takes a minute")
            return computed(self, *given, **named)

        monkeypatch.setattr(Kept, "computed", slow)
    one.use(users_app(least=1))
    one.run()
    after = one.memory()
    assert after["live/some"] != before["live/some"]
    assert after["live/counted"] == before["live/counted"], "who reads it gets changes, and no reset"
    assert counts(one, "counted") == {"se": 2, "dk": 1}
    one.use(users_app(least=2, weight=10))
    one.run()
    both = one.memory()
    assert both["live/some"] != after["live/some"]
    assert both["live/counted"] != after["live/counted"]
    assert counts(one, "counted") == {"se": 10, "dk": 10}
    assert first_commit_us(one, "some") == first_commit_us(one, "counted")
    assert {report.result for report in one.verify().values()} == {"equal"}


class Tick(Event):
    at: int
    user: str


def ticks_app() -> App:
    app = App("ticks")
    app.stream("ticks", Tick, time="at", late_after="1 minute")

    def counted(ticks: DataFrame) -> DataFrame:
        return ticks.groupBy(F.window("_time", "1 minute"), "user").agg(F.count("*").alias("n"))

    @app.view(key=["window", "user"], keep="1 hour")
    def running(ticks: DataFrame) -> DataFrame:
        by = Window.partitionBy("user").orderBy("window")
        return counted(ticks).withColumn("total", F.sum("n").over(by))

    @app.view(key=["window", "place"], keep="1 hour")
    def top(ticks: DataFrame) -> DataFrame:
        by = Window.partitionBy("window").orderBy(F.desc("n"), "user")
        return counted(ticks).withColumn("place", F.row_number().over(by)).where("place <= 3")

    return app


def test_a_running_total_has_windows_in_it_that_have_gone(world: Callable[[App], World]) -> None:
    one = world(ticks_app())
    planned, _ = Planner(one.spark, one.app, one.folder).plan_all()
    keeps = {name: made.node.keep_us for name, made in planned.items()}  # type: ignore[union-attr]
    assert keeps == {"running.1": None, "running": 3_600_000_000, "top.1": 3_600_000_000, "top": 3_600_000_000}


def two_streams() -> App:
    app = App("ticks")
    for name in ("ticks", "tocks"):
        app.stream(name, Tick, time="at", late_after="1 hour")
        counts = f"SELECT window(_time, '1 minute') AS window, count(*) AS n FROM {name} GROUP BY 1"
        app.sql(f"{name}_counted", key="window", query=counts)
    both = "SELECT window, t.n AS n, o.n AS m FROM ticks_counted t FULL JOIN tocks_counted o USING (window)"
    app.sql("both", key="window", query=both, keep="5 minutes")
    return app


def test_a_slower_input_that_comes_later_brings_back_nothing_that_keep_let_go(
    world: Callable[[App], World],
) -> None:
    played = world(two_streams())
    played.send("ticks", [[Tick(at=0, user="a")], [Tick(at=3_000_000, user="a")]])
    played.run()
    assert [row["n"] for row in played.rows("both")] == [1], "of the first stream alone"
    played.send("tocks", [[Tick(at=10_000, user="a")]])  # in the window that has gone, and far behind
    played.run()
    assert [(row["n"], row["m"]) for row in played.rows("both")] == [(1, None)]
    assert played.verify()["both"].result == "equal"
