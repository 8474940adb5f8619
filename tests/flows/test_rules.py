"""What is not known takes the safe side: above an aggregation, in the order of rows, in fingerprints and in proofs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader

from penstock import App, Event
from penstock.config import Folder
from penstock.declaration import Problem
from penstock.flows import fingerprint, proof
from penstock.flows.plan import Planned, Planner
from penstock.flows.plan_nodes import NODES
from tests.flows.world import World

Function = Callable[[DataFrame], DataFrame]


class Order(Event):
    order_id: int
    country: str
    amount: float
    at: int


def _app(function: Function, key: str | list[str] = "country", late_after: str | None = None) -> App:
    app = App("shop")
    app.stream("orders", Order, time="at", late_after=late_after)

    @app.view(key=key, how="folded")
    def shown(orders: DataFrame) -> DataFrame:
        return function(orders)

    return app


def _plan(spark: SparkSession, app: App) -> tuple[dict[str, Planned], list[Problem]]:
    with tempfile.TemporaryDirectory() as folder:
        return Planner(spark, app.declared(), Folder(Path(folder))).plan_all()


def _planned(spark: SparkSession, function: Function, late_after: str | None = None) -> Planned:
    planned, problems = _plan(spark, _app(function, late_after=late_after))
    assert problems == []
    return planned["shown"]


def _by_country(orders: DataFrame) -> DataFrame:
    return orders.groupBy("country").agg(F.count("*").alias("n"), F.max("amount").alias("most"))


def _sql(text: str, paid: float = 1.0) -> Function:
    """A query over `orders`, `counted` (by country) and `rates`, a table that the app itself gives."""

    def function(orders: DataFrame) -> DataFrame:
        spark = orders.sparkSession
        rates = spark.createDataFrame([("NL", paid)], "land string, rate double")
        return spark.sql(text, orders=orders, counted=_by_country(orders), rates=rates)

    return function


# Above an aggregation

UNPIVOT: Function = lambda orders: (  # noqa: E731
    _by_country(orders).selectExpr("country", "double(n) n", "most").unpivot("country", ["n", "most"], "what", "value")
)
LATERAL = _sql("SELECT country, n FROM {counted}, LATERAL (SELECT 1 WHERE n < 2)")

ABOVE: dict[str, tuple[Function, str, str]] = {
    "unpivot": (UNPIVOT, "an Expand", "unpivot before"),
    "lateral": (LATERAL, "a LateralJoin", "LATERAL before"),
    "lateral function": (
        _sql("SELECT country, v FROM {counted}, LATERAL explode(sequence(1, n)) t(v)"),
        "a LateralJoin",
        "LATERAL before",
    ),
    "distinct": (_sql("SELECT DISTINCT country FROM {counted}"), "a Distinct", "before the aggregation"),
    "sample": (lambda orders: _by_country(orders).sample(0.5), "a Sample", "hash(id)"),
    "offset": (_sql("SELECT * FROM {counted} OFFSET 1"), "an Offset", "limit="),
    "window": (_sql("SELECT *, rank() OVER (ORDER BY n) FROM {counted}"), "a Window", "max_by"),
    "intersect": (_sql("SELECT country FROM {counted} INTERSECT SELECT land FROM {rates}"), "an Intersect", "columns"),
    "arrow": (
        lambda orders: _by_country(orders).mapInArrow(lambda batches: batches, "country string, n long, most double"),
        "a MapInArrow",
        "arrow_udf",
    ),
}


@pytest.mark.parametrize("case", ABOVE)
def test_what_gives_other_rows_above_an_aggregation_is_refused_by_name(spark: SparkSession, case: str) -> None:
    function, what, hint = ABOVE[case]
    _, problems = _plan(spark, _app(function))
    found = {p.code: p for p in problems}["above_aggregation"]
    assert what in found.message
    assert hint in (found.hint or "")


HARMLESS: dict[str, Function] = {
    "hint": lambda orders: _by_country(orders).hint("broadcast"),
    "observed": lambda orders: _by_country(orders).observe("seen", F.count("*").alias("c")),
    "repartitioned": lambda orders: _by_country(orders).repartitionById(2, F.lit(1)),
    "piped": _sql("FROM {counted} |> EXTEND n * 2 AS twice |> DROP most"),
    "named": _sql("WITH c AS (SELECT * FROM {counted}) SELECT * FROM c LIMIT ALL"),
    "one value for all": _sql("SELECT country, n * (SELECT max(rate) FROM {rates}) AS paid FROM {counted}"),
    "one value for each": _sql("SELECT *, (SELECT max(rate) FROM {rates} WHERE land = country) AS r FROM {counted}"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_computes_only_columns_above_an_aggregation_is_exact(spark: SparkSession, case: str) -> None:
    assert _planned(spark, HARMLESS[case]).proof == "exact"


def _mean(rates: pd.Series) -> float:
    return float(rates.mean())


def test_a_python_aggregate_over_a_table_of_the_app_is_no_aggregate_over_events(spark: SparkSession) -> None:
    def joined(orders: DataFrame) -> DataFrame:
        rates = orders.sparkSession.createDataFrame([("NL", 1.0)], "land string, rate double")
        means = rates.groupBy("land").agg(F.pandas_udf(_mean, "double")("rate").alias("mean"))
        return orders.join(means, F.col("country") == F.col("land")).select("country", "mean")

    assert _planned(spark, joined).mode == "update"


def test_a_node_that_is_not_known_is_refused_with_a_general_hint(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(NODES, "ResolvedHint")
    _, problems = _plan(spark, _app(HARMLESS["hint"]))
    (found,) = problems
    assert found.code == "above_aggregation"
    assert "a ResolvedHint" in found.message
    assert "only columns" in (found.hint or "")


def test_a_key_is_compared_with_the_groups_below_a_hint(spark: SparkSession) -> None:
    _, problems = _plan(
        spark, _app(lambda orders: orders.groupBy("country", "at").count().drop("at").hint("broadcast"))
    )
    assert [p.code for p in problems] == ["key_of_groups"]


@pytest.mark.parametrize(
    ("kind", "function", "key", "stale"),
    [
        ("Expand", UNPIVOT, ["country", "value"], {"country": "NL", "what": "n", "value": 1.0}),
        ("LateralJoin", LATERAL, "country", {"country": "NL", "n": 1}),
    ],
)
def test_if_it_were_let_through_rows_would_stay_that_are_no_more(
    kind: str,
    function: Function,
    key: str | list[str],
    stale: dict[str, object],
    world: Callable[[App], World],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(NODES, kind, replace(NODES[kind], rows="same"))
    monkeypatch.setattr("penstock.flows.rules._key_problems", lambda *_: ())
    one = world(_app(function, key))
    for n in range(2):
        one.send("orders", [[Order(order_id=n, country="NL", amount=7.0, at=1_700_000_000_000 + n)]])
        one.run()
    rows = one.rows("shown")
    assert stale in rows
    batch = Planner(one.spark, one.app, one.folder)
    (node,) = one.app.nodes
    orders = one.spark.createDataFrame([("NL", 7.0), ("NL", 7.0)], "country string, amount double")
    assert stale not in [row.asDict() for row in batch.call(node, {"orders": orders}).collect()]


# Order, lateness


def test_a_subquery_that_becomes_a_join_keeps_no_order(spark: SparkSession) -> None:
    assert _planned(spark, _sql("SELECT *, (SELECT max(rate) FROM {rates}) AS r FROM {orders}")).ordered
    assert not _planned(spark, _sql("SELECT * FROM {orders} WHERE country IN (SELECT land FROM {rates})")).ordered


def test_a_node_that_is_not_known_keeps_no_order(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NODES, "Generate")
    assert not _planned(spark, lambda orders: orders.select("country", F.explode(F.array("at", "at")))).ordered


def test_what_is_distinct_by_time_leaves_late_events_out(spark: SparkSession) -> None:
    """Spark's watermark would drop them without a word."""
    assert _planned(spark, _sql("SELECT DISTINCT country, _time FROM {orders}"), "1 minute").drops_late
    assert not _planned(spark, _sql("SELECT DISTINCT country FROM {orders}"), "1 minute").drops_late


# Proofs


class OneRow(DataSourceReader):
    def read(self, partition: object) -> object:
        yield ("NL", 1.0)


class Elsewhere(DataSource):
    def schema(self) -> str:
        return "land string, rate double"

    def reader(self, schema: object) -> DataSourceReader:
        return OneRow()


def _elsewhere(part: str) -> Function:
    def function(orders: DataFrame) -> DataFrame:
        orders.sparkSession.dataSource.register(Elsewhere)
        table = orders.sparkSession.read.format("Elsewhere").option("part", part).load()
        return orders.join(table, F.col("country") == F.col("land")).select("country", "rate")

    return function


UNPROVED: dict[str, tuple[Function, str]] = {
    "a random start vector": (
        lambda orders: orders.select(F.aes_encrypt("country", F.lit("0000111122223333")).alias("country")),
        "aes_encrypt",
    ),
    "another source": (_elsewhere("a"), "a table outside the log"),
    "order in a subquery": (_sql("SELECT *, (SELECT first(rate) FROM {rates}) AS r FROM {orders}"), "aggregate first"),
}


@pytest.mark.parametrize("case", UNPROVED)
def test_what_may_differ_when_it_is_computed_again_is_not_called_exact(spark: SparkSession, case: str) -> None:
    function, why = UNPROVED[case]
    planned = _planned(spark, function)
    assert planned.proof == "unverifiable"
    assert any(why in reason for reason in planned.proof_reasons), planned.proof_reasons


def test_a_function_that_is_not_known_is_not_called_exact(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    upper: Function = lambda orders: orders.select(F.upper("country").alias("country"))  # noqa: E731
    assert _planned(spark, upper).proof == "exact"
    monkeypatch.setattr(proof, "TOLD", proof.TOLD - {"Upper"})
    planned = _planned(spark, upper)
    assert planned.proof == "unverifiable"
    assert planned.proof_reasons == ("upper, of which nothing is known",)


# Fingerprints


def _print(spark: SparkSession, function: Function) -> str:
    return _planned(spark, function).fingerprint


def test_changed_rows_of_a_table_in_a_subquery_are_seen(spark: SparkSession) -> None:
    for text in (
        "SELECT * FROM {orders} WHERE amount IN (SELECT rate FROM {rates})",
        "SELECT country, n * (SELECT max(rate) FROM {rates}) AS paid FROM {counted}",
    ):
        assert _print(spark, _sql(text, 1.0)) == _print(spark, _sql(text, 1.0))
        assert _print(spark, _sql(text, 1.0)) != _print(spark, _sql(text, 2.0))


def test_changed_options_of_a_table_elsewhere_are_seen(spark: SparkSession) -> None:
    assert _print(spark, _elsewhere("a")) == _print(spark, _elsewhere("a"))
    assert _print(spark, _elsewhere("a")) != _print(spark, _elsewhere("b"))


def test_where_something_is_not_known_the_source_of_the_project_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "app.py"
    source.write_text("1")
    monkeypatch.setattr(fingerprint, "project_sources", lambda _: [("", source)])
    upper: Function = lambda orders: orders.select(F.upper("country").alias("country"))  # noqa: E731
    for known in (True, False):
        if not known:
            monkeypatch.setattr(fingerprint, "TOLD", fingerprint.TOLD - {"Upper"})
        before = _print(spark, upper)
        source.write_text(source.read_text() + "2")
        assert (before == _print(spark, upper)) == known


def test_what_spark_counts_on_in_an_observation_is_no_change(spark: SparkSession) -> None:
    assert _print(spark, HARMLESS["observed"]) == _print(spark, HARMLESS["observed"])
