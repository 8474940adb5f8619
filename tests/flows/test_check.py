"""What `check` refuses and says, each with the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.declaration import Problem
from penstock.flows.check import check
from penstock.summaries import distinct, quantiles, sample


class Order(Event):
    order_id: int
    country: str
    amount: float
    at: int


def _app(late_after: str | None = None) -> App:
    app = App("shop")
    app.stream("orders", Order, time="at", late_after=late_after)
    return app


def _problems(spark: SparkSession, app: App) -> dict[str, Problem]:
    return {p.code: p for p in check(app.declared(), None)}


def _by_country(orders: DataFrame) -> DataFrame:
    return orders.groupBy("country").count()


def _under(orders: DataFrame, constant: Column) -> DataFrame:
    return orders.groupBy(constant.alias("country")).count()


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "filter": (lambda orders: _by_country(orders).where("count > 5"), "above_aggregation", "where="),
    "limit": (lambda orders: _by_country(orders).limit(5), "above_aggregation", "limit="),
    "sort": (lambda orders: _by_country(orders).orderBy("count"), "above_aggregation", "order_by="),
    "generate": (
        lambda orders: (
            orders.groupBy("country").agg(F.collect_list("amount").alias("a")).select("country", F.explode("a"))
        ),
        "above_aggregation",
        "explode before",
    ),
    "filter of a name": (
        lambda orders: orders.sparkSession.sql(
            "WITH c AS (SELECT country, count(*) n FROM {orders} GROUP BY country) SELECT * FROM c WHERE n > 5",
            orders=orders,
        ),
        "above_aggregation",
        "where=",
    ),
    "a stream of its own": (
        lambda orders: orders.sparkSession.readStream.format("rate").load().select(F.lit("NL").alias("country")),
        "unsupported_plan",
        "app.pull",
    ),
    "known rows": (lambda orders: _by_country(orders).dropDuplicates(), "above_aggregation", "before the aggregation"),
    "pandas": (
        lambda orders: _by_country(orders).mapInPandas(_some, "country string, count bigint"),
        "above_aggregation",
        "pandas_udf",
    ),
    "watermark": (lambda orders: _by_country(orders.withWatermark("_time", "1 minute")), "own_watermark", "late_after"),
    "key": (lambda orders: orders.groupBy("amount").count(), "unknown_column", "its columns are amount, count"),
    "not a frame": (lambda orders: 7, "bad_plan", "return a DataFrame"),  # type: ignore[dict-item,return-value]
    "unknown column": (lambda orders: orders.select("nope"), "bad_plan", "DataFrames of its inputs"),
    "runs": (lambda orders: orders.limit(orders.count()), "bad_plan", "builds a plan and runs nothing"),
    "groups of a batch": (
        lambda orders: orders.groupBy("country").applyInPandas(_same, "country string"),
        "per_batch",
        "transformWithState",
    ),
    "distinct": (
        lambda orders: orders.groupBy("country").agg(F.countDistinct("amount")),
        "unsupported_plan",
        "dropDuplicates",
    ),
    "sessions of all": (
        lambda orders: orders.groupBy(F.session_window("_time", "5 minutes").alias("country")).count(),
        "unsupported_plan",
        "such as a user",
    ),
    "no batch": (lambda orders: orders.dropDuplicatesWithinWatermark(["country"]), "unsupported_plan", "id="),
    "pivot": (lambda orders: orders.groupBy("country").pivot("at", [1]).count(), "unsupported_plan", "when("),
    "python aggregate": (
        lambda orders: orders.groupBy("country").agg(F.pandas_udf(_mean, "double")("amount")),
        "unsupported_plan",
        "built-in aggregates",
    ),
    "group not in the key": (
        lambda orders: orders.groupBy("country", "at").count().select("country", "count"),
        "key_of_groups",
        "max(name)",
    ),
    "changing key": (
        lambda orders: orders.groupBy("at").agg((F.count("*") + 1).cast("string").alias("country")),
        "key_of_groups",
        "grouped by",
    ),
    "key of several groups": (
        lambda orders: orders.groupBy("at").count().select((F.col("at") % 7).cast("string").alias("country"), "count"),
        "key_of_groups",
        "compute the key before",
    ),
    "key of several groups of a view": (
        lambda orders: _sql_of(orders.groupBy("at").count(), "SELECT string(at % 7) AS country, count FROM counted"),
        "key_of_groups",
        "compute the key before",
    ),
    "key of two groups": (
        lambda orders: (
            orders.withColumnRenamed("country", "c")
            .groupBy("c")
            .agg(F.count("*").alias("n"), F.coalesce("c", F.lit("?")).alias("country"))
        ),
        "key_of_groups",
        "compute the key before",
    ),
    "united groups": (
        lambda orders: _by_country(orders).union(_by_country(orders.where("amount > 5"))),
        "key_of_groups",
        "unite first",
    ),
    "united groups of one name": (
        lambda orders: (
            _by_country(orders)
            .withColumn("country", F.lit("all"))
            .union(_by_country(orders.withColumn("country", F.lit("all"))))
        ),
        "key_of_groups",
        "F.lit(",
    ),
    "united groups of one number, in two types": (
        lambda orders: _under(orders, F.lit(1)).union(_under(orders, F.lit(1).cast("long"))),
        "key_of_groups",
        "F.lit(",
    ),
    "united groups of one constant, written in two ways": (
        lambda orders: _under(orders, F.lit("ab")).union(_under(orders, F.concat(F.lit("a"), F.lit("b")))),
        "key_of_groups",
        "F.lit(",
    ),
    "united groups that their part of the key does not tell apart": (
        lambda orders: _under(orders, F.lit("all")).union(orders.groupBy("at").count().select(F.lit("each"), "count")),
        "key_of_groups",
        "put it into key=",
    ),
    "column twice": (lambda orders: orders.select("country", "country"), "column_twice", "alias"),
    "no JSON": (
        lambda orders: orders.select("country", F.array(F.create_map(F.struct("at"), "at")).alias("m")),
        "bad_type",
        "strings",
    ),
    "map as key": (
        lambda orders: orders.select(F.create_map("country", "at").alias("country")),
        "bad_type",
        "to_json",
    ),
    "our column": (lambda orders: orders.select("country", F.lit(1).alias("_op")), "name_reserved", "alias"),
}


def _some(orders: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (some[some["count"] > 5] for some in orders)


def _sql_of(counted: DataFrame, text: str) -> DataFrame:
    counted.createOrReplaceTempView("counted")
    return counted.sparkSession.sql(text)


def _same(orders: pd.DataFrame) -> pd.DataFrame:
    return orders


def _mean(amounts: pd.Series) -> float:
    return float(amounts.mean())


GOOD: dict[str, Callable[[DataFrame], DataFrame]] = {
    "united and told apart": lambda orders: (
        _under(orders, F.lit("all"))
        .union(orders.withColumn("country", F.lit("large")).where("amount > 5").groupBy("country").count())
        .unionByName(orders.where("at > 5").agg(F.count("*").alias("count")).withColumn("country", F.lit("new")))
    ),
    "united and told apart by numbers of two types": lambda orders: (
        _under(orders, F.lit(1)).union(_under(orders, F.lit(2**40))).union(_under(orders, F.lit(2)))
    ),
    "united, then grouped": lambda orders: _by_country(orders.union(orders)),
    "computed": lambda orders: orders.groupBy(F.lower("country").alias("country")).count(),
    "joined": lambda orders: (
        orders.groupBy("country", "at").count().select(F.concat_ws("/", "country", "at").alias("country"), "count")
    ),
    "computed and joined": lambda orders: orders.groupBy(F.lower("country")).agg(
        F.concat(F.lower("country"), F.lit("!")).alias("country")
    ),
    "of all": lambda orders: orders.agg(F.count("*").alias("n")).withColumn("country", F.lit("all")),
    "a part of the window": lambda orders: (
        orders.groupBy(F.window("_time", "1 minute")).count().select(F.col("window.end").alias("country"), "count")
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_key_that_says_which_group_it_is_may_be_computed(spark: SparkSession, case: str) -> None:
    app = _app()

    @app.view(key="country")
    def right(orders: DataFrame) -> DataFrame:
        return GOOD[case](orders)

    assert [p for p in check(app.declared(), None) if p.level == "error"] == []


def test_what_a_function_raises_is_told_with_the_line_that_raised_it(spark: SparkSession) -> None:
    app = _app()

    @app.view(key="country")
    def wrong(orders: DataFrame) -> DataFrame:
        counted = _by_country(orders)
        return counted.select("nope")

    found = _problems(spark, app)["bad_plan"]
    assert found.place is not None
    assert found.place.line == wrong.__code__.co_firstlineno + 3
    assert "test_check.py" not in found.message


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_that_would_give_wrong_views_is_refused_with_what_to_do(spark: SparkSession, case: str) -> None:
    function, code, hint = REFUSED[case]
    app = _app()

    @app.view(key="country", how="folded")
    def wrong(orders: DataFrame) -> DataFrame:
        return function(orders)

    found = _problems(spark, app)
    assert code in found, found
    assert hint in (found[code].hint or "")
    assert found[code].place is not None
    assert Path(found[code].place.file).name == Path(__file__).name


def test_an_aggregation_that_never_closes_is_no_flow(spark: SparkSession) -> None:
    app = _app()

    @app.flow
    def wrong(orders: DataFrame) -> DataFrame:
        return _by_country(orders)

    assert "unsupported_plan" in _problems(spark, app)


def test_a_windowed_aggregation_over_a_stream_with_late_after_is_a_flow(spark: SparkSession) -> None:
    app = _app("1 minute")

    @app.flow(time="closed")
    def windows(orders: DataFrame) -> DataFrame:
        counted = orders.groupBy(F.window("_time", "1 minute")).count()
        return counted.select(F.col("window.end").alias("closed"), "count")

    assert [p for p in check(app.declared(), None) if p.level == "error"] == []


def test_a_view_of_what_has_closed_is_provable_by_the_column_that_says_what_closed(spark: SparkSession) -> None:
    for kept, code in (("w", "proof_exact"), ("w.end", "proof_unverifiable")):
        app = _app("1 minute")

        @app.view(key="at")
        def sessions(orders: DataFrame, kept: str = kept) -> DataFrame:
            raise AssertionError

        def closed(orders: DataFrame, kept: str = kept) -> DataFrame:
            counted = orders.groupBy(F.session_window("_time", "1 minute").alias("w"), "country").count()
            return counted.select(F.col(kept).alias("at"), "count")

        object.__setattr__(app._views[0], "parameters", ("orders",))
        object.__setattr__(app._views[0], "function", closed)
        assert code in _problems(spark, app)


PROOFS: dict[str, tuple[Any, str, str]] = {
    "count": (F.count, "proof_exact", ""),
    "sum of floats": (F.sum, "proof_tolerance", "sum"),
    "first": (F.first, "proof_unverifiable", "first"),
    "collect_list": (F.collect_list, "proof_unverifiable", "collect_list"),
    "approximate": (partial(F.percentile_approx, percentage=0.5), "proof_unverifiable", "percentile_approx"),
    "approximately distinct": (F.approx_count_distinct, "proof_exact", "exact"),
    "within a bound": (quantiles, "proof_bounded", "percentile_approx"),
    "sampled": (sample, "proof_exact", "exact"),
    "HLL": (lambda name: distinct(F.col(name).cast("string"), kind="hll"), "proof_exact", "exact"),
    "HLL not merged": (
        lambda name: F.hll_sketch_agg(F.col(name).cast("string")),
        "proof_unverifiable",
        "hll_sketch_agg",
    ),
}


@pytest.mark.parametrize("case", PROOFS)
def test_each_view_is_classed_by_what_verify_can_prove(spark: SparkSession, case: str) -> None:
    function, code, why = PROOFS[case]
    app = _app()

    @app.view(key="country")
    def sums(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").agg(function("amount").alias("a"))

    found = _problems(spark, app)
    assert code in found, found
    assert why in found[code].message


def test_chance_the_time_of_day_and_python_functions_cannot_be_proved(spark: SparkSession) -> None:
    doubled = F.udf(lambda x: x * 2, "double")
    for column, why in (
        (F.rand(), "rand"),
        (F.current_timestamp(), "current_timestamp"),
        (doubled("amount"), "lambda"),
    ):
        app = _app()

        @app.view(key="order_id")
        def odd(orders: DataFrame, column: Any = column) -> DataFrame:
            raise AssertionError

        object.__setattr__(app._views[0], "parameters", ("orders",))
        object.__setattr__(app._views[0], "function", lambda orders, c=column: orders.select("order_id", c.alias("c")))
        found = _problems(spark, app)
        assert why in found["proof_unverifiable"].message


def test_what_no_batch_query_has_is_unverifiable_whatever_the_user_says(spark: SparkSession) -> None:
    app = _app()

    @app.view(key="country", deterministic=True)
    def counted(orders: DataFrame) -> DataFrame:
        return orders.groupBy("country").applyInPandasWithState(
            lambda key, frames, state: frames, "country string", "n long", "update", "NoTimeout"
        )

    assert "no batch query" in _problems(spark, app)["proof_unverifiable"].message


def test_names_inputs_and_cycles_are_checked_without_spark() -> None:
    app = _app()
    app.stream("orders", Order)

    @app.flow
    def a(b: DataFrame) -> DataFrame:
        return b

    @app.flow
    def b(a: DataFrame) -> DataFrame:
        return a

    @app.view(key="x")
    def v(nothing: DataFrame) -> DataFrame:
        return nothing

    @app.flow
    def w(v: DataFrame) -> DataFrame:
        return v

    @app.view(key="x")
    def itself(itself: DataFrame) -> DataFrame:
        return itself

    codes = [p.code for p in app.declared().problems()]
    assert {"name_taken", "cycle", "unknown_input", "view_as_input"} <= set(codes)


def test_a_time_of_the_wrong_type_is_refused() -> None:
    app = App("shop")
    app.stream("orders", Order, time="country", key="nope")
    codes = {p.code for p in app.declared().problems()}
    assert {"bad_time", "unknown_field"} <= codes


def test_a_visible_where_or_channel_that_does_not_fit_the_columns_is_found_with_its_line(spark: SparkSession) -> None:
    app = _app()

    @app.view(key="country", visible_where="nation = :home")
    def countries(orders: DataFrame) -> DataFrame:
        return _by_country(orders)

    @app.flow(visible_where="country = ANY(:homes)")
    def large(orders: DataFrame) -> DataFrame:
        return orders.where("amount > 100")

    app.channel("many", countries, where="count > :least", select=["count"])
    app.channel("far", large, select=["distance"])
    found = [p for p in check(app.declared(), None) if p.level == "error"]
    assert [(p.code, p.place and Path(p.place.file).name) for p in found] == [
        ("bad_filter", Path(__file__).name),
        ("unknown_column", Path(__file__).name),
    ]
    assert "'countries'" in found[0].message
    assert "'nation'" in found[0].message
    assert "'distance'" in found[1].message
