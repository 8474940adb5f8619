"""The sales example: each sale is taxed by the rate that held when it was made, also when that is corrected later.

penstock run examples/sales/app.py          # everything
python examples/sales/tills.py              # tills that sell, and an office that announces and corrects rates
"""

from decimal import Decimal
from typing import Annotated

from msgspec import Meta
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.joins import as_of

app = App("sales")

Money = Annotated[Decimal, Meta(extra={"precision": 18, "scale": 2})]
Percent = Annotated[Decimal, Meta(extra={"precision": 5, "scale": 2})]


class Rate(Event):
    """What a country takes of a price, from a day on."""

    country: str
    since: int  # milliseconds since 1970
    percent: Percent


class Sale(Event):
    sale_id: int
    at: int  # milliseconds since 1970
    country: str
    amount: Money


rates = app.table("rates", Rate, key="country", time="since", versions="180 days")
sales = app.stream("sales", Sale, key="sale_id", time="at", id="sale_id", late_after="7 days")


@app.view(key="sale_id", order_by="-at", limit=50, within="90 days")
def taxed(sales: DataFrame, rates: DataFrame) -> DataFrame:
    """Each sale with the rate of its time, and the tax; without a rate there is none yet."""
    tax = F.round(F.col("amount") * F.col("percent") / 100, 2).cast("decimal(18,2)")
    found = as_of(sales, rates, on="country").withColumn("tax", tax)
    return found.select("sale_id", "at", "country", "amount", "percent", "tax")


@app.view(key=["country", "percent"], order_by=["country", "percent"])
def owed(taxed: DataFrame) -> DataFrame:
    """What is owed to each country, by rate: a rate that is corrected moves its sales from one row to another."""
    sums = [F.count("*").alias("sales"), F.sum("amount").alias("amount"), F.sum("tax").alias("tax")]
    return taxed.where("percent IS NOT NULL").groupBy("country", "percent").agg(*sums)


@app.view(key="country", order_by="country")
def untaxed(taxed: DataFrame) -> DataFrame:
    """Countries whose sales wait for a rate."""
    return taxed.where("percent IS NULL").groupBy("country").agg(F.count("*").alias("sales"))
