"""Views that are kept by adding: what a change costs, and that sums survive restarts, damage and failures."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.flows import check
from penstock.flows.plan import Planner
from penstock.flows.regroup.held import Table
from tests.flows.world import World

Make = Callable[[App], World]


class Order(Event):
    id: int
    country: str
    amount: int | None = None


def shop() -> App:
    app = App("shop")
    app.table("orders", Order, key="id")

    @app.view(key="what", how="added")
    def everything(orders: DataFrame) -> DataFrame:
        return orders.agg(F.lit("all").alias("what"), F.count("*").alias("n"), F.sum("amount").alias("amount"))

    @app.view(key="country", where="n < 100")
    def countries(orders: DataFrame) -> DataFrame:
        price = F.col("amount").cast("decimal(9,2)") / 3
        sums = (F.count("*").alias("n"), F.sum("amount").alias("s"), F.avg(price).alias("a"))
        return orders.groupBy("country").agg(*sums)

    @app.view(key="n")
    def sizes(countries: DataFrame) -> DataFrame:
        return countries.groupBy("n").agg(F.count("*").alias("countries"))

    return app


def rows_of(world: World, view: str) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in world.rows(view)}


def equal(world: World) -> bool:
    return {name: report.result for name, report in world.verify().items() if report.result != "equal"} == {}


def test_a_change_is_added_without_a_look_at_the_rows_of_its_group(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = world(shop())
    played.change("orders", [[Order(id=n, country="NL" if n else "DE", amount=n or None) for n in range(5)]])
    played.run()
    assert rows_of(played, "everything") == {("all", 5, 10)}
    assert rows_of(played, "countries") == {("NL", 4, 10, Decimal("0.8333332500")), ("DE", 1, None, None)}
    with monkeypatch.context() as patched:
        for method in ("pieces", "everything", "by_value"):
            unread = getattr(Table, method)
            patched.setattr(Table, method, lambda self, *a, f=unread: f(self, *a) if _is_own(self) else _refuse(self))
        played.change("orders", [[Order(id=1, country="DE", amount=7), (2,)], [(0,)], [Order(id=9, country="FR")]])
        played.run()  # another process would know as much: sums are held
    assert rows_of(played, "everything") == {("all", 4, 14)}
    assert {row[:3] for row in rows_of(played, "countries")} == {("NL", 2, 7), ("DE", 1, 7), ("FR", 1, None)}
    assert rows_of(played, "sizes") == {(2, 1), (1, 2)}
    played.folder.held.unlink()
    played.change("orders", [[(1,)], [(3,), (4,)]])
    played.run()
    assert rows_of(played, "everything") == {("all", 1, None)}
    assert {row[:3] for row in rows_of(played, "countries")} == {("FR", 1, None)}
    played.change("orders", [[(9,)]])
    played.run()
    assert rows_of(played, "everything") == {("all", 0, None)}
    assert rows_of(played, "countries") == rows_of(played, "sizes") == set()
    assert equal(played)


def _is_own(table: Table) -> bool:
    return table.shape.name != "orders"


def _refuse(table: Table) -> Any:
    raise AssertionError(f"the rows of '{table.shape.name}' were read")


def test_check_says_what_is_added_and_to_what(world: Make) -> None:
    played = world(shop())
    planned, problems = Planner(played.spark, played.app, played.folder).plan_all()
    assert problems == []
    assert {name: made.how for name, made in planned.items()} == dict.fromkeys(planned, "added")
    assert "added to the sums of its country" in check.price(planned["countries"])
    assert "its one row" in check.price(planned["everything"])


def test_what_cannot_be_added_says_so_where_it_must_be(world: Make) -> None:
    app = App("shop")
    app.table("orders", Order, key="id")

    @app.view(key="country", how="added")
    def most(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(F.max("amount").alias("most"))

    @app.view(key="country", how="regrouped")
    def again(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").count()

    played = world(app)
    planned, problems = Planner(played.spark, played.app, played.folder).plan_all()
    assert [(problem.code, "most" in problem.message) for problem in problems] == [("other_way", True)]
    assert planned["again"].how == "regrouped"


def test_the_first_rows_of_an_order_and_units_that_are_not_shown(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both survive a restart and a lost `held.db`; of the first rows, so many are read."""
    app = App("shop")
    app.table("orders", Order, key="id")
    app.sql("largest", key="id", whole=2, query="SELECT * FROM orders ORDER BY amount DESC, id LIMIT 3")
    place = "row_number() OVER (PARTITION BY country ORDER BY id) AS place"
    app.sql("places", key="id", how="regrouped", query=f"SELECT id, {place} FROM orders")
    played = world(app)
    played.change("orders", [[Order(id=n, country="NL" if n % 2 else "DE", amount=n % 7) for n in range(20)]])
    played.run()
    assert {row[0] for row in rows_of(played, "largest")} == {6, 13, 5}
    played.change("orders", [[Order(id=1, country="DE", amount=9), (13,)]])
    played.run()
    assert {row[0] for row in rows_of(played, "largest")} == {1, 6, 5}
    assert {row for row in rows_of(played, "places") if row[0] < 5} == {(0, 1), (1, 2), (2, 3), (3, 1), (4, 4)}
    before = played.stream("places")
    assert before is not None
    changes = played._flows.bounds(before).ends
    played.folder.held.unlink()
    played.run()
    after = [block.batch.num_rows for block in played._flows.read(before, 0, changes[0])]
    assert sum(after) == 0, "only differences are written"
    assert equal(played)
    planned, _ = Planner(played.spark, played.app, played.folder).plan_all()
    assert "first 3 rows of 'orders' by amount, id" in check.price(planned["largest"])
    assert "its country (not shown)" in check.price(planned["places"])
