"""The emissions example: grams of CO2 in each zone of a city and each minute, by model of car and temperature.

penstock run examples/emissions/app.py          # everything
python examples/emissions/city.py               # cars that pass, thermometers, and a laboratory
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("emissions")

MINUTE = "1 minute"
BAND = 5  # degrees: a factor holds for temperatures from its band up to the next
DEFAULT_GRAMS = 180.0  # of a car that the laboratory has not measured at this temperature


class Passage(Event):
    """A car that was seen in a zone."""

    passage_id: int
    zone: str
    model: str
    at: int  # milliseconds since 1970


class Reading(Event):
    """What a thermometer says."""

    zone: str
    at: int
    celsius: float


class Factor(Event):
    """What a car of a model emits while it crosses a zone, at temperatures from `band` on."""

    model: str
    band: int
    grams: float


passages = app.stream("passages", Passage, key="zone", time="at", id="passage_id", late_after="5 minutes")
readings = app.stream("readings", Reading, key="zone", time="at", late_after="5 minutes")
factors = app.table("factors", Factor, key=["model", "band"])


@app.view(key=["window", "zone", "model"], keep="1 hour")
def traffic(passages: DataFrame) -> DataFrame:
    """Cars of each model, by zone and minute."""
    return passages.groupBy(F.window("_time", MINUTE), "zone", "model").agg(F.count("*").alias("cars"))


@app.view(key=["window", "zone"], keep="1 hour")
def weather(readings: DataFrame) -> DataFrame:
    """The mean temperature, by zone and minute."""
    return readings.groupBy(F.window("_time", MINUTE), "zone").agg(F.round(F.avg("celsius"), 1).alias("celsius"))


@app.view(key=["window", "zone"], order_by=["-window", "-grams"], limit=30)
def co2(traffic: DataFrame, weather: DataFrame, factors: DataFrame) -> DataFrame:
    """What all cars of a zone have emitted in a minute; `unmeasured` says for how many the default was taken."""
    warm = traffic.join(weather, ["window", "zone"], "left")
    banded = warm.withColumn("band", (F.floor(F.col("celsius") / BAND) * BAND).cast("bigint"))
    known = banded.join(factors, ["model", "band"], "left")
    return (
        known.groupBy("window", "zone")
        .agg(
            F.sum("cars").alias("cars"),
            F.round(F.sum(F.col("cars") * F.coalesce("grams", F.lit(DEFAULT_GRAMS))), 1).alias("grams"),
            F.sum(F.when(F.col("grams").isNull(), F.col("cars")).otherwise(0)).alias("unmeasured"),
            F.max("celsius").alias("celsius"),
        )
        .select("window", "zone", "cars", "grams", "unmeasured", "celsius")
    )
