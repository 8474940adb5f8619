"""Views that are computed again where they changed; `BENCH_VIEWS` says which of them there are."""

import os

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from penstock import App, Event

app = App("bench_regrouped")
WHICH = os.environ.get("BENCH_VIEWS", "counts")


class Reading(Event):
    id: int
    sensor: str
    kind: str
    region: int
    value: float
    at: int


class User(Event):
    id: int
    name: str


class Order(Event):
    id: int
    user: int
    amount: int


readings = app.stream("readings", Reading, key="sensor", time="at", late_after="1 minute")
app.table("users", User, key="id")
app.table("orders", Order, key="id")


def counted(readings: DataFrame) -> DataFrame:
    return readings.groupBy(F.window("_time", "10 seconds"), "sensor").agg(F.count("*").alias("n"))


if WHICH == "counts":

    @app.view(key=["window", "sensor"])
    def counts(readings: DataFrame) -> DataFrame:
        return counted(readings)


if WHICH == "top3":

    @app.view(key=["window", "place"])
    def top3(readings: DataFrame) -> DataFrame:
        by = Window.partitionBy("window").orderBy(F.desc("n"), "sensor")
        return counted(readings).withColumn("place", F.row_number().over(by)).where("place <= 3")


if WHICH in ("one", "three"):
    app.sql("first", key="user", query="SELECT user, sum(amount) AS amount FROM orders GROUP BY user")

if WHICH == "three":
    app.sql("second", key="user", query="SELECT user, amount, amount % 100 AS rest FROM first")
    app.sql("third", key="rest", query="SELECT rest, sum(amount) AS amount FROM second GROUP BY rest")

if WHICH == "joined":
    joined = "SELECT o.id, o.user, u.name, o.amount FROM orders o JOIN users u ON o.user = u.id"
    app.sql("sold", key="id", query=joined)
