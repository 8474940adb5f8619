"""Six narrow columns and a windowed count over them: what is collected, caught up with and loaded in benchmarks."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("bench_narrow")


class Reading(Event):
    id: int
    sensor: str
    kind: str
    region: int
    value: float
    at: int


readings = app.stream("readings", Reading, key="sensor", time="at", late_after="1 minute")
unique = app.stream("unique", Reading, key="sensor", time="at", id="id", late_after="1 minute")


@app.view(key=["window", "sensor"], order_by=["-window"], limit=30)
def counts(readings: DataFrame) -> DataFrame:
    """Readings by sensor, ten seconds at a time."""
    return readings.groupBy(F.window("_time", "10 seconds"), "sensor").agg(F.count("*").alias("readings"))
