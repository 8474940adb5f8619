"""Three flows over one stream for measuring freshness: the first is the one of `one.py`, the others compete with it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("bench_three")


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


@app.view(key=["window", "kind"], order_by=["-window"], limit=30, keep="1 hour")
def kinds(readings: DataFrame) -> DataFrame:
    """Readings and the highest value by kind, minute by minute."""
    return readings.groupBy(F.window("_time", "1 minute"), "kind").agg(
        F.count("*").alias("readings"), F.max("value").alias("highest")
    )


@app.view(key="region", order_by="-readings", limit=30)
def regions(readings: DataFrame) -> DataFrame:
    """Readings by region, of all time."""
    return readings.groupBy("region").agg(F.count("*").alias("readings"))
