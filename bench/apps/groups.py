"""As many groups as events: what one more event costs a view of so many."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("bench_groups")


class Reading(Event):
    id: int
    sensor: str
    kind: str
    region: int
    value: float
    at: int


readings = app.stream("readings", Reading, key="sensor", time="at", late_after="2 days")


@app.view(key=["window", "id"], order_by=["-window"], limit=30)
def counts(readings: DataFrame) -> DataFrame:
    """Readings by id and day."""
    return readings.groupBy(F.window("_time", "1 day"), "id").agg(F.count("*").alias("readings"))
