"""The same stream with a view over it, for runs of the producer harness with Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("counted")


class Step(Event):
    n: int


steps = app.stream("steps", Step)


@app.view(key="all")
def total(steps: DataFrame) -> DataFrame:
    """How many there are."""
    return steps.groupBy(F.lit("all").alias("all")).agg(F.count("*").alias("events"))
