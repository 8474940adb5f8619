"""One flow for measuring freshness: a windowed count by sensor, in which each probe is a row of its own."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("bench_one")


class Reading(Event):
    sensor: str
    kind: str
    region: int
    value: float
    at: int
    probe: int = 0


readings = app.stream("readings", Reading, key="sensor", time="at", late_after="1 minute")


@app.view(key=["window", "sensor"], order_by=["-probe"], limit=30, keep="2 minutes")
def sensors(readings: DataFrame) -> DataFrame:
    """Readings by sensor, ten seconds at a time."""
    return readings.groupBy(F.window("_time", "10 seconds"), "sensor").agg(
        F.count("*").alias("readings"), F.max("probe").alias("probe")
    )
