"""A view as SQL: what it reads, where it is wrong, and what is no query."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import App, Event
from penstock.declaration import Place
from penstock.errors import DeclarationError
from penstock.view_query import ViewQuery

HERE = Place(str(Path(__file__)), 1)


def reads(text: str) -> set[str]:
    return set(ViewQuery("v", text, HERE).inputs)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT a FROM orders", "orders"),
        ("SELECT a FROM orders o, users AS u (id, name), taxes", "orders users taxes"),
        ("SELECT * FROM orders LEFT JOIN users ON uid = id, taxes WHERE x IN (1, 2)", "orders users taxes"),
        ("SELECT * FROM (orders JOIN users USING (id)) t", "orders users"),
        ("SELECT a, (SELECT max(x) FROM users u WHERE u.id = o.id), b FROM orders o", "orders users"),
        ("SELECT a FROM orders WHERE id IN (SELECT uid FROM users) GROUP BY a, b ORDER BY a, b", "orders users"),
        ("SELECT a, b FROM orders GROUP BY a, b", "orders"),
        ("SELECT a, b FROM orders ORDER\n BY a, b", "orders"),
        ("WITH c AS (SELECT * FROM orders), d AS (SELECT * FROM c) SELECT * FROM d JOIN C", "orders"),
        ("WITH c (a, b) AS (SELECT a, b FROM orders) SELECT (a), (b), d FROM c, users", "orders users"),
        ("WITH orders AS (SELECT * FROM orders) SELECT * FROM orders", "orders"),
        ("SELECT * FROM (WITH users AS (SELECT 1) SELECT * FROM users) JOIN users", "users"),
        ("SELECT extract(YEAR FROM orders), trim(BOTH 'x' FROM y) FROM sales", "sales"),
        ("SELECT a IS DISTINCT FROM b, c FROM sales", "sales"),
        ("SELECT x, y FROM sales LATERAL VIEW explode(topics) t AS x, y", "sales"),
        ("SELECT * FROM range(10), LATERAL explode(array(1)) t(x), VALUES (1), (2) AS v(y), sales", "sales"),
        ("SELECT * FROM `top-words` -- FROM nothing\n WHERE a = 'FROM b'", "top-words"),
        ("SELECT a FROM orders UNION ALL SELECT b FROM users EXCEPT TABLE taxes", "orders users taxes"),
        ("SELECT window.start, count(*) FROM sales GROUP BY window(_time, '1 minute'), a WITH ROLLUP", "sales"),
        ("FROM sales |> WHERE a > 1 |> AGGREGATE count(*) GROUP BY b, c", "sales"),
        ("SELECT * FROM shop.sales", "shop.sales"),
        ("SELECT sum(x) OVER (PARTITION BY a ORDER BY b) FROM sales, users", "sales users"),
    ],
)
def test_what_stands_behind_from_and_join_is_read(text: str, names: str) -> None:
    assert reads(text) == set(names.split())


@pytest.mark.parametrize(
    "text",
    ["DROP TABLE orders", "INSERT INTO a SELECT 1", "WITH a AS (SELECT 1) DELETE FROM b", "", "FROM a INSERT INTO b"],
)
def test_what_is_no_query_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="is no query"):
        reads(text)


def test_a_text_that_does_not_end_is_refused() -> None:
    with pytest.raises(DeclarationError, match="cannot be read"):
        reads("SELECT 'a FROM b")


def test_a_query_is_a_text() -> None:
    with pytest.raises(DeclarationError, match="is no text"):
        App("shop").sql("v", key="a", query=7)  # type: ignore[arg-type]


class Order(Event):
    country: str


def app_with(query: str) -> App:
    app = App("shop")
    app.stream("orders", Order)
    app.sql("countries", key="country", query=query)
    return app


def test_a_relation_that_is_not_declared_is_named_with_its_line_and_column(tmp_path: Path) -> None:
    app = App("shop")
    app.sql(
        "countries",
        key="country",
        query="""SELECT country
                 FROM ordres""",
    )
    problem = next(p for p in app.declared().problems() if p.code == "unknown_input")
    assert problem.place is not None
    line = Path(__file__).read_text().splitlines()[problem.place.line - 1]
    assert line[(problem.place.column or 0) - 1 :].startswith("ordres")
    assert "'countries' reads 'ordres'" in problem.message


def test_words_of_spark_become_the_line_and_column_of_the_file() -> None:
    query = ViewQuery("v", "SELECT a,\n  b FROM nowhere_else", HERE)
    spark = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `b` cannot be resolved. SQLSTATE: 42703; line 2 pos 2;\nProject"
    )
    place, said = query.explained(RuntimeError(spark))
    assert place == HERE
    assert said == "line 2, column 3 of its query: A column `b` cannot be resolved."


def test_a_view_as_sql_has_what_a_view_has() -> None:
    app = App("shop")
    app.stream("orders", Order)
    view = app.sql(
        "countries", key="country", query="SELECT country, count(*) n FROM orders GROUP BY 1", limit=3, doc="Sold"
    )
    assert (view.name, view.key, view.limit, view.doc, view.inputs) == (
        "countries",
        ("country",),
        3,
        "Sold",
        ("orders",),
    )
    assert ("orders", "countries") in {(edge["from"], edge["to"]) for edge in app.declared().graph()["edges"]}
    assert app.channel("shown", view).target == "countries"


def test_sql_can_read_what_no_parameter_can_name() -> None:
    app = App("shop")
    app.stream("web-orders", Order)
    app.sql("countries", key="country", query="SELECT country, count(*) n FROM `web-orders` GROUP BY 1")
    assert [p for p in app.declared().problems() if p.level == "error"] == []


def test_a_circle_of_queries_is_refused() -> None:
    app = App("shop")
    app.sql("a", key="x", query="SELECT x FROM b")
    app.sql("b", key="x", query="SELECT x FROM a")
    assert {p.code for p in app.declared().problems() if p.level == "error"} == {"cycle"}
