"""The app that is killed: a filter, a chain, windows with late events, and two rows whose sum never changes."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("chaos")


class Step(Event):
    n: int
    at: int
    kind: str


steps = app.stream("steps", Step, key="n", id="n", time="at", late_after="30 seconds", partitions=2)


@app.flow(key="kind")
def evens(steps: DataFrame) -> DataFrame:
    """What the first link of the chain lets through."""
    return steps.where("n % 2 = 0").select("_time", "n", "kind")


@app.view(key="kind")
def kinds(evens: DataFrame) -> DataFrame:
    return evens.groupBy("kind").agg(F.count("*").alias("c"), F.sum("n").alias("s"))


@app.view(key=["window", "kind"], keep="10 minutes")
def windows(steps: DataFrame) -> DataFrame:
    return steps.groupBy(F.window("_time", "5 seconds"), "kind").agg(F.count("*").alias("c"))


@app.view(key="side")
def balance(steps: DataFrame) -> DataFrame:
    """Two rows of one event: left and right always make 1000, unless somebody sees half a batch."""
    sides = F.expr("array(struct('left' AS side, n % 1000 AS x), struct('right' AS side, 1000 - n % 1000 AS x))")
    return steps.select(F.explode(sides).alias("s")).select("s.side", "s.x")
