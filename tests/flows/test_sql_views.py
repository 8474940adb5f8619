"""Views as SQL: each kept in the way that its plan allows, and wrong ones told with their line and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from penstock import App, Event
from penstock.config import Folder
from penstock.declaration import Problem
from penstock.flows.plan import Planner
from penstock.run.app_file import load
from tests.docs.pages import ROOT, blocks
from tests.flows.world import World

Make = Callable[[App], World]


class Sale(Event):
    at: int
    country: str
    product: str


class Country(Event):
    code: str
    name: str


def shop(*, places: int = 2) -> App:
    """Folded, cut, regrouped over views and tables, and whole."""
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")
    app.table("countries", Country, key="code")
    app.sql(
        "sold",
        key=["country", "product"],
        query="SELECT country, product, count(*) AS n FROM sales GROUP BY country, product",
    )
    app.sql(
        "top",
        key=["country", "place"],
        query=f"""
            WITH counted AS (SELECT country, product, count(*) AS n FROM sales GROUP BY country, product)
            SELECT country, product, row_number() OVER (PARTITION BY country ORDER BY n DESC, product) AS place
            FROM counted QUALIFY place <= {places}""",
    )
    app.sql(
        "named",
        key=["country", "product"],
        query="SELECT s.*, c.name FROM sold s LEFT JOIN countries c ON s.country = c.code",
    )
    app.sql(
        "ranks", key="product", query="SELECT product, rank() OVER (ORDER BY sum(n), product) r FROM sold GROUP BY 1"
    )
    return app


def test_a_query_is_kept_in_the_way_that_its_plan_allows(spark: SparkSession, tmp_path: Path) -> None:
    planned, problems = Planner(spark, shop().declared(), Folder(tmp_path)).plan_all()
    assert [p for p in problems if p.level == "error"] == []
    assert {name: made.how for name, made in planned.items()} == {
        "sold": "folded", "top.1": "folded", "top": "regrouped", "named": "regrouped", "ranks": "whole",
    }  # fmt: skip
    again, _ = Planner(spark, shop().declared(), Folder(tmp_path)).plan_all()
    other, _ = Planner(spark, shop(places=1).declared(), Folder(tmp_path)).plan_all()
    changed = [name for name in planned if planned[name].fingerprint != other[name].fingerprint]
    assert changed == ["top"], "another text is another view, and of the cut one its upper part alone"
    assert [n for n in planned if planned[n].fingerprint != again[n].fingerprint] == []


def test_views_as_sql_follow_their_inputs_and_equal_their_queries(world: Make) -> None:
    played = world(shop())
    played.change("countries", [[{"code": "NL", "name": "Netherlands"}]])
    played.send("sales", [[Sale(at=1_000_000, country="NL", product=p) for p in "aabccc"]])
    played.run()
    assert {(r["place"], r["product"]) for r in played.rows("top")} == {(1, "c"), (2, "a")}
    played.change("countries", [[("NL",)]])
    played.send("sales", [[Sale(at=1_000_001, country="NL", product=p) for p in "bbb"]])
    played.run()
    assert {(r["place"], r["product"]) for r in played.rows("top")} == {(1, "b"), (2, "c")}
    assert {(r["product"], r["n"], r["name"]) for r in played.rows("named")} == {
        ("a", 2, None), ("b", 4, None), ("c", 3, None),
    }  # fmt: skip
    assert {name: report.result for name, report in played.verify().items() if report.result != "equal"} == {}


def problems_of(spark: SparkSession, tmp_path: Path, app: App) -> list[Problem]:
    return [p for p in Planner(spark, app.declared(), Folder(tmp_path)).plan_all()[1] if p.level == "error"]


def test_a_wrong_query_is_told_with_its_line_and_column(spark: SparkSession, tmp_path: Path) -> None:
    app = App("shop")
    app.stream("sales", Sale, time="at", late_after="1 hour")
    app.sql(
        "sold",
        key="country",
        query="""
            SELECT country,
                   count(prodct) AS n
            FROM sales GROUP BY country""",
    )
    app.sql("cut_off", key="country", query="SELECT country FROM sales WHERE a >")
    first, second = problems_of(spark, tmp_path, app)
    lines = Path(__file__).read_text().splitlines()
    assert first.place is not None
    assert lines[first.place.line - 1][(first.place.column or 0) - 1 :].startswith("prodct")
    assert first.code == "bad_plan"
    assert "`prodct` cannot be resolved. Did you mean one of the following? [`product`" in first.message
    assert "SQLSTATE" not in first.message
    assert second.place is not None
    assert lines[second.place.line - 1][: second.place.column].endswith('sales WHERE a >"')
    assert "Syntax error at or near end of input" in second.message


def test_the_example_of_the_docs_is_kept_as_it_says(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(blocks(ROOT / "docs/how-to/sql.md", "python")[0].code)
    planned, problems = Planner(spark, load(str(file)).application, Folder(tmp_path)).plan_all()
    assert [p for p in problems if p.level == "error"] == []
    assert {name: made.how for name, made in planned.items()} == {"sold": "folded", "top3": "regrouped"}
    assert planned["top3"].units is not None
    assert planned["top3"].units.columns == ("country",)
