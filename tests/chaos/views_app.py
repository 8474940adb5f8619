"""The app that is killed: views three deep, and a diamond in which nothing is ever missing."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("views")


class Step(Event):
    n: int
    at: int
    kind: str


steps = app.stream("steps", Step, key="n", id="n", time="at", late_after="30 seconds", partitions=2)


@app.view(key=["kind", "part"])
def evens(steps: DataFrame) -> DataFrame:
    return _counted(steps.where("n % 2 = 0"))


@app.view(key=["kind", "part"])
def odds(steps: DataFrame) -> DataFrame:
    return _counted(steps.where("n % 2 <> 0"))


def _counted(steps: DataFrame) -> DataFrame:
    return steps.groupBy("kind", (F.abs("n") / 100).cast("long").alias("part")).agg(F.count("*").alias("c"))


@app.view(key=["kind", "part"])
def everything(evens: DataFrame, odds: DataFrame) -> DataFrame:
    """Each part of a hundred numbers has as many even ones as odd ones, once all have come."""
    both = evens.withColumnRenamed("c", "even").join(odds.withColumnRenamed("c", "odd"), ["kind", "part"], "left")
    return both.select("kind", "part", "even", F.coalesce("odd", F.lit(0)).alias("odd"))


@app.view(key="kind")
def by_kind(everything: DataFrame) -> DataFrame:
    return everything.groupBy("kind").agg(F.sum("even").alias("even"), F.sum("odd").alias("odd"))


@app.view(key="kind")
def balance(by_kind: DataFrame, evens: DataFrame) -> DataFrame:
    """Counted through two views and directly: the difference is nothing, at every position."""
    direct = evens.groupBy("kind").agg(F.sum("c").alias("direct"))
    joined = by_kind.join(direct, "kind")
    return joined.select("kind", "even", "odd", (F.col("even") - F.col("direct")).alias("missing"))
