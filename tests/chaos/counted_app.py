"""The same stream with a view over it, for runs of the producer harness with Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("counted")


class Step(Event):
    n: int


steps = app.stream("steps", Step)


@app.view(key="part")
def parts(steps: DataFrame) -> DataFrame:
    """How many there are, in four parts."""
    return steps.groupBy((F.col("n") % 4).alias("part")).agg(F.count("*").alias("events"))
