"""A changed function, constant, static table or class is seen after a restart; an unchanged one is not rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.errors import SchemaChangeError
from penstock.flows.plan import Planner
from penstock.run.app_file import import_file
from tests.flows.world import World


class Sale(Event):
    n: int
    at: int
    amount: int


class SaleWithCountry(Event):
    n: int
    at: int
    amount: int
    country: str = "none"


class SaleWithText(Event):
    n: int
    at: int
    amount: str


def app_with(function: Callable[..., DataFrame], kind: type = Sale, where: str | None = None) -> App:
    app = App("sales")
    app.stream("sales", kind, time="at", id="n")
    app.view(key="bucket", name="buckets", where=where)(function)
    return app


def over(limit: int) -> Callable[..., DataFrame]:
    def buckets(sales: DataFrame) -> DataFrame:
        return (
            sales.where(F.col("amount") > limit).groupBy((F.col("n") % 3).alias("bucket")).agg(F.count("*").alias("c"))
        )

    return buckets


def sales(kind: Any = Sale, start: int = 0) -> list[list[Any]]:
    return [[kind(n=n, at=1_700_000_000_000 + n, amount=n % 10) for n in range(start, start + 30)]]


def _counts(one: World) -> dict[int, int]:
    return {row["bucket"]: row["c"] for row in one.rows("buckets")}


def _epoch(one: World) -> str:
    return str(one.memory()["live/buckets"])


def test_an_unchanged_function_goes_on_where_it_was(world: Callable[[App], World]) -> None:
    one = world(app_with(over(3)))
    one.send("sales", sales())
    one.run()
    before, epoch = _counts(one), _epoch(one)
    one.use(app_with(over(3)))
    one.send("sales", sales(start=30))
    one.run()
    assert _epoch(one) == epoch
    assert sum(_counts(one).values()) == 2 * sum(before.values())
    assert one.verify()["buckets"].result == "equal"


def test_a_changed_constant_rebuilds_the_view_from_the_log(world: Callable[[App], World]) -> None:
    one = world(app_with(over(3)))
    one.send("sales", sales())
    one.run()
    epoch = _epoch(one)
    one.use(app_with(over(7)))
    one.run()
    assert _epoch(one) != epoch
    assert sum(_counts(one).values()) == 6
    assert one.verify()["buckets"].result == "equal"


def _wide(last: int) -> Callable[..., DataFrame]:
    """So many columns that Spark would not print all of them; only the last one knows `last`."""

    def buckets(sales: DataFrame) -> DataFrame:
        columns = [(F.col("amount") + n).alias(f"c{n}") for n in range(60)]
        wide = sales.select("n", *columns, (F.col("amount") * last).alias("changed"))
        sums = [F.sum(name).alias(name) for name in wide.columns if name != "n"]
        return wide.groupBy((F.col("n") % 3).alias("bucket")).agg(*sums)

    return buckets


def test_a_change_in_the_last_of_many_columns_is_seen(spark: SparkSession, world: Callable[[App], World]) -> None:
    folder = world(app_with(_wide(1))).folder
    prints = [
        Planner(spark, app_with(_wide(last)).declared(), folder).plan_all()[0]["buckets"].fingerprint
        for last in (7, 7, 8)
    ]
    assert prints[0] == prints[1]
    assert prints[1] != prints[2]


def test_names_that_spark_makes_by_counting_on_are_no_change(
    spark: SparkSession, world: Callable[[App], World]
) -> None:
    def buckets(sales: DataFrame) -> DataFrame:
        parts = F.aggregate(F.array("n", "amount"), F.lit(0).cast("long"), lambda sofar, part: sofar + part)
        return sales.groupBy(parts.alias("bucket")).agg(F.count_if(F.col("amount") > 3).alias("c"))

    app = app_with(buckets)
    folder = world(app).folder
    prints = {Planner(spark, app.declared(), folder).plan_all()[0]["buckets"].fingerprint for _ in range(2)}
    assert len(prints) == 1


def test_a_changed_where_rebuilds_and_deletes(world: Callable[[App], World]) -> None:
    one = world(app_with(over(3), where="c > 100"))
    one.send("sales", sales())
    one.run()
    assert one.rows("buckets") == []
    one.use(app_with(over(3), where="c > 1"))
    one.run()
    assert len(one.rows("buckets")) == 3


def test_changed_rows_of_a_static_table_rebuild(world: Callable[[App], World]) -> None:
    def named(names: list[tuple[int, str]]) -> Callable[..., DataFrame]:
        def buckets(sales: DataFrame, spark: SparkSession) -> DataFrame:
            table = spark.createDataFrame(names, "b int, name string")
            return sales.join(table, F.col("n") % 3 == F.col("b")).groupBy(F.col("name").alias("bucket")).count()

        return buckets

    one = world(app_with(named([(0, "x"), (1, "y")])))
    one.send("sales", sales())
    one.run()
    one.use(app_with(named([(0, "x"), (1, "z")])))
    one.run()
    assert {row["bucket"] for row in one.rows("buckets")} == {"x", "z"}


def test_a_changed_file_that_a_function_joins_is_another_function(
    spark: SparkSession, world: Callable[[App], World], tmp_path: Path
) -> None:
    file = tmp_path / "names.csv"

    def buckets(sales: DataFrame, spark: SparkSession) -> DataFrame:
        table = spark.read.csv(str(file), schema="b int, name string")
        return sales.join(table, F.col("n") % 3 == F.col("b")).groupBy(F.col("name").alias("bucket")).count()

    app = app_with(buckets)
    folder = world(app).folder
    prints = []
    for content in ("0,x\n", None, "0,xyz\n"):
        if content:
            file.write_text(content)
        prints.append(Planner(spark, app.declared(), folder).plan_all()[0]["buckets"].fingerprint)
    assert prints[0] == prints[1]
    assert prints[1] != prints[2]


def test_a_new_field_reads_as_its_default_and_an_unused_one_rebuilds_nothing(world: Callable[[App], World]) -> None:
    one = world(app_with(over(3)))
    one.send("sales", sales())
    one.run()
    epoch = _epoch(one)
    one.use(app_with(over(3), SaleWithCountry))
    one.send("sales", sales(SaleWithCountry, 30))
    one.run()
    assert _epoch(one) == epoch

    def buckets(sales: DataFrame) -> DataFrame:
        return sales.groupBy(F.col("country").alias("bucket")).agg(F.count("*").alias("c"))

    one.use(app_with(buckets, SaleWithCountry))
    one.run()
    assert {row["bucket"]: row["c"] for row in one.rows("buckets")} == {"none": 60}


def test_an_incompatible_class_is_refused_with_the_way_out(world: Callable[[App], World]) -> None:
    one = world(app_with(over(3)))
    one.send("sales", sales())
    with pytest.raises(SchemaChangeError) as refused:
        one.use(app_with(over(3), SaleWithText))
    assert "'amount' was bigint and is now string" in str(refused.value.detail)
    assert refused.value.hint


def test_another_number_of_partitions_rebuilds_a_flow(world: Callable[[App], World]) -> None:
    def app_of(partitions: int) -> App:
        app = App("sales")
        app.stream("sales", Sale, time="at", id="n")

        @app.flow(key="n", partitions=partitions)
        def large(sales: DataFrame) -> DataFrame:
            return sales.where("amount > 3").select("n", "amount")

        return app

    one = world(app_of(1))
    one.send("sales", sales())
    one.run()
    before = one.stream("large")
    one.use(app_of(2))
    one.run()
    after = one.stream("large")
    assert before is not None
    assert after is not None
    assert (before.partitions, after.partitions) == (1, 2)
    assert before.epoch != after.epoch
    assert one.verify()["large"].result == "equal"


SHOP = """
from pyspark.sql import functions as F
from penstock import App, Event

app = App("sales")


class Sale(Event):
    n: int
    at: int
    amount: int


app.stream("sales", Sale, time="at", id="n")


@F.udf("int")
def bucket(n):
    return n % MODULUS


@app.view(key="bucket", deterministic=True)
def buckets(sales):
    return sales.groupBy(bucket("n").alias("bucket")).agg(F.count("*").alias("c"))
"""


def test_a_constant_inside_a_python_function_rebuilds(world: Callable[[App], World], tmp_path: Path) -> None:
    def shop(modulus: int) -> App:
        path = tmp_path / "shop.py"
        path.write_text(SHOP.replace("MODULUS", str(modulus)))
        made: App = import_file(path).app
        return made

    one = world(shop(2))
    one.send("sales", sales())
    one.run()
    before = _epoch(one)
    one.use(shop(2))
    one.run()
    assert (_epoch(one), _counts(one)) == (before, {0: 15, 1: 15})
    one.use(shop(5))
    one.run()
    assert _epoch(one) != before
    assert _counts(one) == dict.fromkeys(range(5), 6)
