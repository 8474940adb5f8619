"""Events joined with the row that a table had at their time, and rows that are corrected later."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.change import DELETE, OP, UPSERT
from penstock.flows.check import check
from penstock.flows.plan import Planner
from penstock.joins import VERSION, WRITTEN, TableVersions, as_of, with_versions
from tests.flows.world import World

Make = Callable[[App], World]
T0 = 1_000_000_000
DAY = 86_400_000


class Sale(Event, kw_only=False):
    at: int
    id: int
    country: str
    amount: int


class Rate(Event, kw_only=False):
    country: str
    since: int
    rate: int


def shop(within: str = "30 days", **options: Any) -> App:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="20 days")
    app.table("rates", Rate, key="country", **({"time": "since", "versions": "30 days"} | options))

    @app.view(key="id", within=within)
    def taxed(sales: DataFrame, rates: DataFrame) -> DataFrame:
        return as_of(sales, rates, on="country").select("id", "country", "amount", "rate")

    @app.view(key="country", within=within)
    def owed(sales: DataFrame, rates: DataFrame) -> DataFrame:
        found = as_of(sales, rates, on="country")
        return found.groupBy("country").agg(F.sum(F.col("amount") * F.col("rate")).alias("tax"))

    @app.view(key="id", within=within)
    def both(sales: DataFrame, rates: DataFrame) -> DataFrame:
        now = rates.select("country", F.col("rate").alias("now"))
        return as_of(sales, rates, on="country").join(now, "country", "left").select("id", "rate", "now")

    return app


def keyed(rows: list[dict[str, Any]], *names: str) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in names) for row in rows}


def results(world: World) -> dict[str, str]:
    return {name: report.result for name, report in world.verify().items()}


def test_an_event_gets_the_row_of_its_time_and_corrections_reach_back(world: Make) -> None:
    played = world(shop())
    played.change("rates", [[Rate("no", T0, 25)], [Rate("no", T0 + 2 * DAY, 12)]])
    played.send("sales", [[Sale(T0 - 1, 1, "no", 1), Sale(T0, 2, "no", 1), Sale(T0 + 2 * DAY, 3, "no", 10)]])
    played.send("sales", [[Sale(T0 + DAY, 4, "no", 100), Sale(T0 + DAY, 5, "se", 1)]])
    played.run()
    assert keyed(played.rows("taxed"), "id", "rate") == {(1, None), (2, 25), (3, 12), (4, 25), (5, None)}
    assert keyed(played.rows("owed"), "country", "tax") == {("no", 25 + 120 + 2500), ("se", None)}
    assert keyed(played.rows("both"), "id", "now") == {(1, 12), (2, 12), (3, 12), (4, 12), (5, None)}
    played.change("rates", [[Rate("no", T0 + 1, 20)]])
    played.run()
    assert keyed(played.rows("taxed"), "id", "rate") == {(1, None), (2, 25), (3, 12), (4, 20), (5, None)}
    assert keyed(played.rows("both"), "id", "now") == {(1, 20), (2, 20), (3, 20), (4, 20), (5, None)}
    played.change("rates", [[Rate("no", T0 + 1, 21)], [Rate("se", T0, 6)]])
    played.run()
    assert keyed(played.rows("taxed"), "id", "rate") == {(1, None), (2, 25), (3, 12), (4, 21), (5, 6)}
    assert set(results(played).values()) == {"equal"}


def test_what_was_there_when_an_event_came(world: Make) -> None:
    app = App("shop")
    app.stream("sales", Sale, time="at")
    app.table("rates", Rate, key="country", versions="30 days")

    @app.view(key="id", within="30 days")
    def taxed(sales: DataFrame, rates: DataFrame) -> DataFrame:
        return as_of(sales, rates, on="country", at="_received").select("id", "rate")

    played = world(app)
    played.change("rates", [[Rate("no", 0, 25)]])
    long_after = 10**13
    played.send("sales", [[Sale(long_after, 1, "no", 1), Sale(long_after, 2, "se", 1)]])
    played.send("sales", [[Sale(long_after - DAY * 20, 3, "no", 1)]])
    played.run()
    assert keyed(played.rows("taxed"), "id", "rate") == {(1, 25), (2, None), (3, 25)}
    played.change("rates", [[("no",)]])
    played.run()
    assert keyed(played.rows("taxed"), "id", "rate") == {(1, None), (2, None), (3, None)}
    assert set(results(played).values()) == {"equal"}


@pytest.mark.long
def test_random_rates_and_sales_leave_what_the_batch_query_gives(world: Make) -> None:
    played, random = world(shop(within="10 days")), Random(3)
    rates: list[Rate] = []
    sales: list[Sale] = []
    now = T0
    for number in range(3):
        for _ in range(6):
            now += random.randrange(2 * DAY)
            rates.append(Rate(random.choice("ab"), now - random.randrange(9) * DAY, random.randrange(100)))
            played.change("rates", [[rates[-1]]])
            sales.append(Sale(now - random.randrange(9) * DAY, len(sales), random.choice("abc"), 1))
            played.send("sales", [[sales[-1]]])
        if number == 1:
            played.folder.held.unlink()
        played.run()
        newest = max(sale.at for sale in sales)
        expected = {(sale.id, _rate(sale, rates)) for sale in sales if sale.at >= newest - 10 * DAY}
        assert keyed(played.rows("taxed"), "id", "rate") == expected
    assert set(results(played).values()) == {"equal"}


def _rate(sale: Sale, rates: list[Rate]) -> int | None:
    known = [(rate.since, place) for place, rate in enumerate(rates) if rate.country == sale.country]
    fit = [version for version in known if version[0] <= sale.at]
    return rates[max(fit)[1]].rate if fit else None


def test_a_delete_ends_what_was_written_before_it_and_nothing_else(spark: SparkSession) -> None:
    """Version 2 was deleted before its time; version 4 was written after the delete, for a time before it."""
    rows = [(1, "no", 10, 1, UPSERT, 0), (2, "no", 30, 2, UPSERT, 5)]
    rows += [(3, "no", None, None, DELETE, 20), (4, "no", 15, 4, UPSERT, 25), (5, "se", 10, 5, UPSERT, 0)]
    rows += [(6, "se", None, None, DELETE, 20)]
    schema = f"{VERSION} int, country string, since int, rate int, {OP} tinyint, {WRITTEN} int"
    versions = spark.createDataFrame(rows, schema)
    known = TableVersions(versions, "rates", ("country",), ("country", "since", "rate"), "`since`")
    times = [("no", 9), ("no", 12), ("no", 16), ("no", 40), ("se", 12), ("se", 20)]
    sales = spark.createDataFrame(times, "country string, _time int")
    found = as_of(sales, with_versions(versions, known), on="country").select("country", "_time", "rate").collect()
    assert sorted(found) == [
        ("no", 9, None), ("no", 12, 1), ("no", 16, 4), ("no", 40, 4), ("se", 12, 5), ("se", 20, None),
    ]  # fmt: skip


def test_a_table_without_versions_or_time_is_refused_with_what_to_declare(world: Make) -> None:
    def hints(**options: Any) -> list[str]:
        played = world(shop(**options))
        _, problems = Planner(played.spark, played.app, played.folder).plan_all()
        return [problem.message for problem in problems if problem.level == "error"]

    assert all("keeps its versions" in message for message in hints(versions=None))
    assert all("from when on" in message for message in hints(time=None))
    assert hints() == []


def test_units_lead_from_versions_to_events(world: Make) -> None:
    played = world(shop())
    planned, _ = Planner(played.spark, played.app, played.folder).plan_all()
    ways = {name: (made.how, made.units.columns if made.units else None) for name, made in planned.items()}
    assert ways == {
        "taxed": ("regrouped", ("id",)), "owed": ("regrouped", ("country",)), "both": ("regrouped", ("id",)),
    }  # fmt: skip


def test_versions_must_reach_as_far_as_events_do() -> None:
    def codes(versions: str) -> list[str]:
        return [p.code for p in check(shop(versions=versions).declared(), None) if p.level == "error"]

    assert set(codes("29 days")) == {"retained_input"}
    assert codes("30 days") == []
