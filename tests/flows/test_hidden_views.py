"""Functions with several aggregations of streams: cut into hidden views that are folded, and the rest above them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.config import Folder
from penstock.flows.plan import Planner
from penstock.log import control_keys
from tests.flows.world import World

Make = Callable[[App], World]


class Sale(Event):
    at: int
    user: int
    product: str


class Click(Event):
    at: int
    product: str


class Product(Event):
    code: str
    name: str


def shop() -> App:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")
    app.stream("clicks", Click, time="at", late_after="1 hour")
    app.table("products", Product, key="code")

    @app.view(key="product")
    def rates(sales: DataFrame, clicks: DataFrame) -> DataFrame:
        """Two aggregations side by side."""
        sold = sales.groupBy("product").agg(F.count("*").alias("sold"))
        clicked = clicks.groupBy("product").agg(F.count("*").alias("clicked"))
        return clicked.join(sold, "product", "left")

    app.sql(
        "steps",
        key="n",
        query="""WITH c AS (SELECT user, count(*) AS n FROM sales GROUP BY user)
                 SELECT a.n, count(*) AS users, max(b.n) AS most FROM c a JOIN c b ON a.n <= b.n GROUP BY a.n""",
    )
    app.sql("buyers", key="product", query="SELECT product, count(DISTINCT user) AS users FROM sales GROUP BY product")
    app.sql(
        "named",
        key="product",
        query="""SELECT s.product, s.n, p.name FROM (SELECT product, count(*) n FROM sales GROUP BY product) s
                 LEFT JOIN products p ON s.product = p.code""",
    )
    return app


def test_each_aggregation_of_a_stream_is_a_hidden_view(spark: SparkSession, tmp_path: Path) -> None:
    planned, problems = Planner(spark, shop().declared(), Folder(tmp_path)).plan_all()
    assert [p for p in problems if p.level == "error"] == []
    assert {name: (made.how, set(made.inputs)) for name, made in planned.items()} == {
        "rates.1": ("folded", {"clicks"}),
        "rates.2": ("folded", {"sales"}),
        "rates": ("regrouped", {"rates.1", "rates.2"}),
        "steps.1": ("folded", {"sales"}),
        "steps": ("whole", {"steps.1"}),
        "buyers.1": ("folded", {"sales"}),
        "buyers": ("regrouped", {"buyers.1"}),
        "named.1": ("folded", {"sales"}),
        "named": ("regrouped", {"named.1", "products"}),
    }


def rows(played: World, name: str, *columns: str) -> set[tuple[Any, ...]]:
    return {tuple(row[c] for c in columns) for row in played.rows(name)}


def test_views_of_several_aggregations_equal_their_functions(world: Make) -> None:
    played = world(shop())
    sold = [(1, "a"), (1, "a"), (2, "a"), (2, "b")]
    played.send("sales", [[Sale(at=1_000_000, user=u, product=p) for u, p in sold]])
    played.send("clicks", [[Click(at=1_000_000, product=p) for p in "aabc"]])
    played.change("products", [[{"code": "a", "name": "Apple"}]])
    played.run()
    assert rows(played, "rates", "product", "clicked", "sold") == {("a", 2, 3), ("b", 1, 1), ("c", 1, None)}
    assert rows(played, "steps", "n", "users", "most") == {(2, 4, 2)}
    assert rows(played, "buyers", "product", "users") == {("a", 2), ("b", 1)}
    played.send("sales", [[Sale(at=1_000_001, user=3, product="c"), Sale(at=1_000_001, user=1, product="b")]])
    played.change("products", [[("a",), {"code": "b", "name": "Banana"}]])
    played.run()
    assert rows(played, "rates", "product", "clicked", "sold") == {("a", 2, 3), ("b", 1, 2), ("c", 1, 1)}
    assert rows(played, "steps", "n", "users", "most") == {(1, 3, 3), (2, 2, 3), (3, 1, 3)}
    assert rows(played, "buyers", "product", "users") == {("a", 2), ("b", 2), ("c", 1)}
    assert rows(played, "named", "product", "n", "name") == {("a", 3, None), ("b", 2, "Banana"), ("c", 1, None)}
    assert {name: report.result for name, report in played.verify().items() if report.result != "equal"} == {}


def test_a_subquery_over_a_stream_is_refused_with_what_to_write_instead(spark: SparkSession, tmp_path: Path) -> None:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")
    app.sql(
        "often",
        key="product",
        query="""WITH c AS (SELECT product, count(*) AS n FROM sales GROUP BY product)
                 SELECT * FROM c WHERE n > (SELECT avg(n) FROM c)""",
    )
    planned, (problem,) = Planner(spark, app.declared(), Folder(tmp_path)).plan_all()
    assert planned == {}
    assert problem.code == "bad_plan"
    assert "a view of its own" in (problem.hint or "")


def test_a_rebuild_of_a_cut_view_rebuilds_its_hidden_views(world: Make) -> None:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")
    app.sql("often", key="product", query="SELECT product, count(*) AS n FROM sales GROUP BY product HAVING n > 1")
    played = world(app)
    played.send("sales", [[Sale(at=1_000_000, user=1, product=p) for p in "aab"]])
    played.run()
    before = {name: played.memory()[f"live/{name}"] for name in ("often", "often.1")}
    with played.door() as log:
        log.append([], {control_keys.rebuild("often"): 1})
    played.run(until=lambda: all(played.memory()[f"live/{name}"] != epoch for name, epoch in before.items()))
    played.run()
    assert rows(played, "often", "product", "n") == {("a", 2)}
    assert {report.result for report in played.verify().values()} == {"equal"}
