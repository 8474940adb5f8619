"""Events joined with tables, views and other events: held as far back as `within=` says, and equal to the function."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.flows.check import check
from penstock.flows.plan import Planner
from penstock.flows.regroup import input_streams
from tests.flows.world import World

Make = Callable[[App], World]
MINUTE = 60_000
T0 = 1_000_000_000


class Sale(Event, kw_only=False):
    at: int
    id: int
    sku: str | None
    amount: int


class Product(Event, kw_only=False):
    sku: str
    name: str
    group: str | None = None


class Search(Event, kw_only=False):
    at: int
    id: int
    url: str


class Click(Event, kw_only=False):
    at: int
    search: int


def shop(within: str | None = "1 hour", late_after: str | None = "2 hours") -> App:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after=late_after, partitions=2, key="id")
    app.table("products", Product, key="sku")

    @app.view(key="id", within=within)
    def named(sales: DataFrame, products: DataFrame) -> DataFrame:
        return sales.join(products, "sku").select("id", "sku", "name", "amount")

    @app.view(key="group", within=within)
    def groups(sales: DataFrame, products: DataFrame) -> DataFrame:
        return sales.join(products, "sku", "left").groupBy("group").agg(F.sum("amount").alias("amount"))

    @app.view(key="id", within=within)
    def unknown(sales: DataFrame, products: DataFrame) -> DataFrame:
        return sales.join(products, "sku", "left_anti").select("id", "sku")

    return app


def keyed(rows: list[dict[str, Any]], *names: str) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in names) for row in rows}


def results(world: World) -> dict[str, str]:
    return {name: report.result for name, report in world.verify().items()}


def test_events_are_joined_with_the_latest_row_of_a_table(world: Make) -> None:
    played = world(shop())
    played.change("products", [[Product(sku="a", name="Apple", group="fruit"), Product(sku="b", name="Beet")]])
    played.send("sales", [[Sale(T0, 1, "a", 10), Sale(T0 + 1, 2, "c", 5), Sale(T0 + 2, 3, None, 1)]])
    played.run()
    assert keyed(played.rows("named"), "id", "name") == {(1, "Apple")}
    assert keyed(played.rows("groups"), "group", "amount") == {("fruit", 10), (None, 6)}
    assert keyed(played.rows("unknown"), "id") == {(2,), (3,)}
    played.change("products", [[Product(sku="a", name="Pear", group="tree"), Product(sku="c", name="C", group="tree")]])
    played.run()
    assert keyed(played.rows("named"), "id", "name") == {(1, "Pear"), (2, "C")}
    assert keyed(played.rows("groups"), "group", "amount") == {("tree", 15), (None, 1)}
    assert keyed(played.rows("unknown"), "id") == {(3,)}
    assert set(results(played).values()) == {"equal"}


def test_an_event_counts_while_it_is_within_reach_of_the_newest(world: Make) -> None:
    played = world(shop())
    played.change("products", [[Product(sku="a", name="Apple", group="fruit")]])
    played.send("sales", [[Sale(T0, 1, "a", 10)], [Sale(T0 + 60 * MINUTE, 2, "a", 5)]])
    played.run()
    assert keyed(played.rows("named"), "id") == {(1,), (2,)}, "just within"
    played.send("sales", [[Sale(T0 + 60 * MINUTE + 1, 3, "a", 1)]])
    played.run()
    assert keyed(played.rows("named"), "id") == {(2,), (3,)}
    assert keyed(played.rows("groups"), "group", "amount") == {("fruit", 6)}
    played.send("sales", [[Sale(T0, 4, "a", 100)]])
    played.run()
    assert keyed(played.rows("named"), "id") == {(2,), (3,)}, "not late, but beyond reach"
    assert set(results(played).values()) == {"equal"}


def test_late_events_stay_out_and_are_in_the_ledger_once(world: Make) -> None:
    played = world(shop(late_after="10 minutes"))
    played.change("products", [[Product(sku="a", name="Apple")]])
    played.send(
        "sales", [[Sale(T0 + 30 * MINUTE, 1, "a", 10)], [Sale(T0, 2, "a", 5), Sale(T0 + 25 * MINUTE, 3, "a", 1)]]
    )
    played.run()
    played.folder.held.unlink()
    played.run()
    assert keyed(played.rows("named"), "id") == {(1,), (3,)}
    late = [(row["flow"], row["event"]) for row in played.events("late")]
    assert sorted(flow for flow, _ in late) == ["groups", "named", "unknown"]
    assert all('"id":2' in event for _, event in late)
    assert set(results(played).values()) == {"equal"}


def searched(within: str = "1 day") -> App:
    app = App("search")
    app.stream("searches", Search, time="at", late_after="1 hour")
    app.stream("clicks", Click, time="at", late_after="1 hour")

    @app.view(key="id", within=within)
    def answered(searches: DataFrame, clicks: DataFrame) -> DataFrame:
        made = searches.select("id", "url", F.col("_time").alias("asked"))
        first = clicks.select(F.col("search").alias("id"), F.col("_time").alias("clicked"))
        near = F.expr("s.id = c.id AND clicked BETWEEN asked AND asked + INTERVAL 10 MINUTES")
        joined = made.alias("s").join(first.alias("c"), near, "left")
        return joined.groupBy("s.id", "url").agg(F.count("clicked").alias("clicks"))

    @app.view(key="url")
    def rates(answered: DataFrame) -> DataFrame:
        clicked = F.avg(F.when(F.col("clicks") > 0, 1.0).otherwise(0.0))
        return answered.groupBy("url").agg(F.count("*").alias("searches"), clicked.alias("rate"))

    @app.view(key="id", within=within)
    def unanswered(searches: DataFrame, clicks: DataFrame) -> DataFrame:
        return searches.join(clicks, searches.id == clicks.search, "left_anti").select("id", "url")

    @app.view(key="id", within=within)
    def clicked(searches: DataFrame, clicks: DataFrame) -> DataFrame:
        return searches.join(clicks, searches.id == clicks.search, "left_semi").select("id", "url")

    return app


def test_what_was_not_clicked_shows_at_once_and_changes(world: Make) -> None:
    played = world(searched())
    played.send("searches", [[Search(T0, 1, "/a"), Search(T0, 2, "/a"), Search(T0, 3, "/b")]])
    played.run()
    assert keyed(played.rows("answered"), "id", "clicks") == {(1, 0), (2, 0), (3, 0)}
    assert keyed(played.rows("unanswered"), "id") == {(1,), (2,), (3,)}
    played.send("clicks", [[Click(T0 + MINUTE, 1), Click(T0 + 11 * MINUTE, 3)]])
    played.run()
    assert keyed(played.rows("answered"), "id", "clicks") == {(1, 1), (2, 0), (3, 0)}
    assert keyed(played.rows("rates"), "url", "searches", "rate") == {("/a", 2, 0.5), ("/b", 1, 0.0)}
    assert keyed(played.rows("unanswered"), "id") == {(2,)}
    assert keyed(played.rows("clicked"), "id") == {(1,), (3,)}
    assert set(results(played).values()) == {"equal"}


@pytest.mark.long
def test_random_events_changes_and_restarts_leave_what_the_batch_query_gives(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_streams, "EVENTS_AT_ONCE", 7)
    played, random = world(shop(late_after="20 minutes")), Random(11)
    now, ids = T0, count()
    for number in range(4):
        for _ in range(5):
            now += random.randrange(6 * MINUTE)
            sku = random.choice("abcd")
            row: Any = (
                (sku,) if random.random() < 0.3 else Product(sku, f"{sku}{number}", random.choice(["x", "y", None]))
            )
            played.change("products", [[row]])
            sales = [
                Sale(now - random.randrange(90 * MINUTE), next(ids), random.choice(["a", "b", "c", "e", None]), n)
                for n in range(random.randrange(1, 9))
            ]
            played.send("sales", [[*sales, Sale(now, next(ids), "a", 1)]])
        if number == 2:
            played.folder.held.unlink()
        played.run()
        assert set(results(played).values()) == {"equal"}, f"round {number}"


def test_two_views_that_look_back_differently_each_hold_their_own(world: Make) -> None:
    app = shop()

    @app.view(key="id", within="10 minutes")
    def recent(sales: DataFrame, products: DataFrame) -> DataFrame:
        return sales.join(products, "sku", "left").select("id", "name")

    played = world(app)
    played.send("sales", [[Sale(T0, 1, "a", 10)], [Sale(T0 + 30 * MINUTE, 2, "a", 5)]])
    played.run()
    assert keyed(played.rows("recent"), "id") == {(2,)}
    assert keyed(played.rows("unknown"), "id") == {(1,), (2,)}
    assert set(results(played).values()) == {"equal"}


def test_a_stream_beside_a_view_of_it_is_read_at_one_position(world: Make) -> None:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")

    @app.view(key="sku")
    def totals(sales: DataFrame) -> DataFrame:
        return sales.groupBy("sku").agg(F.sum("amount").alias("total"))

    @app.view(key="id", within="1 day")
    def shares(sales: DataFrame, totals: DataFrame) -> DataFrame:
        return sales.join(totals, "sku").select("id", "sku", "amount", "total")

    played = world(app)
    for number in range(3):
        played.send("sales", [[Sale(T0 + number, 2 * number + n, "a", 1 + n)] for n in range(2)])
        played.run()
        shown = played.rows("shares")
        assert {row["total"] for row in shown} == {sum(row["amount"] for row in shown)} == {3 * (number + 1)}
    assert set(results(played).values()) == {"equal"}


def test_a_stream_beside_a_table_needs_a_bound_and_a_flow_over_one_is_refused(world: Make) -> None:
    app = shop(within=None)
    played = world(app)
    _, problems = Planner(played.spark, played.app, played.folder).plan_all()
    assert {problem.code for problem in problems} == {"needs_within"}
    assert "'sales'" in problems[0].message
    assert "within=" in (problems[0].hint or "")


def test_a_stream_that_forgets_what_counts_is_refused(world: Make) -> None:
    def codes(retain: str) -> list[str]:
        app = App("shop")
        app.stream("sales", Sale, time="at", retain=retain)
        app.table("products", Product, key="sku")

        @app.view(key="id", within="1 hour")
        def named(sales: DataFrame, products: DataFrame) -> DataFrame:
            return sales.join(products, "sku").select("id", "name")

        return [problem.code for problem in check(app.declared(), None) if problem.level == "error"]

    assert codes("59 minutes") == ["retained_input"]
    assert codes("1 GB") == ["retained_input"]
    assert codes("1 hour") == []


def test_the_bound_is_asked_for_with_the_figures_of_the_folder(world: Make) -> None:
    played = world(shop(within=None))
    played.send("sales", [[Sale(T0, 1, "a", 10)], [Sale(T0, 2, "a", 10)]])
    told = next(problem for problem in check(played.app, played.folder) if problem.code == "needs_within")
    assert "events a day" in told.message
    assert "'sales'" in told.message


def test_a_join_with_a_bound_in_time_says_itself_how_long_events_are_held(world: Make) -> None:
    """What is older than the bound and `late_after` together is not held, and its rows stay."""
    app = App("shop")
    app.stream("searches", Search, time="at", id="id", late_after="5 minutes")
    app.stream("clicks", Click, time="at", late_after="5 minutes")
    app.sql(
        "unclicked",
        key="id",
        query="""SELECT s.id, s.url FROM searches s LEFT ANTI JOIN clicks c
                 ON s.id = c.search AND c._time BETWEEN s._time AND s._time + INTERVAL 10 MINUTES""",
    )
    played = world(app)
    planned, problems = Planner(played.spark, played.app, played.folder).plan_all()
    assert problems == []
    assert (planned["unclicked"].how, planned["unclicked"].bound_us) == ("regrouped", (10 * MINUTE + 1) * 1000)
    played.send("searches", [[Search(T0 + n * MINUTE, n, "/") for n in range(3)]])
    played.send("clicks", [[Click(T0 + MINUTE, 1), Click(T0 + 30 * MINUTE, 0)]])
    played.run()
    assert keyed(played.rows("unclicked"), "id") == {(0,), (2,)}, "at once; a click too late is none"
    played.send("searches", [[Search(T0 + 120 * MINUTE, 9, "/")]])
    played.send("clicks", [[Click(T0 + 121 * MINUTE, 9)]])
    played.run()
    assert keyed(played.rows("unclicked"), "id") == {(0,), (2,)}
    with closing(sqlite3.connect(played.folder.held)) as held:
        assert held.execute('SELECT count(*) FROM "searches@unclicked"').fetchone() == (1,), "the others are final"
    played.folder.held.unlink()
    played.send("searches", [[Search(T0 + 122 * MINUTE, 10, "/")]])
    played.run()
    assert keyed(played.rows("unclicked"), "id") == {(0,), (2,), (10,)}
    assert set(results(played).values()) == {"equal"}


def test_without_a_bound_or_a_unique_event_within_is_asked_for(world: Make) -> None:
    def codes(on: str, unique: str | None = "id", key: str = "id") -> list[str]:
        app = App("shop")
        app.stream("searches", Search, time="at", id=unique, late_after="5 minutes", retain="1 day")
        app.stream("clicks", Click, time="at", late_after="5 minutes")
        app.sql("unclicked", key=key, query=f"SELECT s.{key} FROM searches s LEFT ANTI JOIN clicks c ON {on}")
        return [problem.code for problem in check(app.declared(), None) if problem.level == "error"]

    bounded = "s.id = c.search AND c._time BETWEEN s._time AND s._time + INTERVAL 10 MINUTES"
    assert "needs_within" in codes("s.id = c.search")
    assert "needs_within" in codes("s.id = c.search AND c._time > s._time")
    assert "needs_within" in codes(bounded, unique=None)
    assert "needs_within" in codes(bounded, key="url")
    assert codes(bounded) == ["retained_input"], "rows that are final could not be computed again"
