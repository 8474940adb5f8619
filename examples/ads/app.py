"""The ads example: who saw which ad, estimated in some kilobytes, beside exact counts.

penstock run examples/ads/app.py          # everything
python examples/ads/visitors.py           # people who look at pages with ads on them
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event
from penstock.summaries import distinct, frequency, heavy_hitters, membership, sample

app = App("ads")


class Shown(Event):
    """An ad that a visitor was shown."""

    shown_id: int
    at: int  # milliseconds since 1970
    ad: int
    visitor: str


shown = app.stream("shown", Shown, key="visitor", time="at", id="shown_id", late_after="1 minute")


@app.view(key="window", order_by="-window", limit=10, keep="1 day")
def minutes(shown: DataFrame) -> DataFrame:
    """Each minute: how many visitors, how often which ad, who was there, and some of what was shown."""
    return shown.groupBy(F.window("_time", "1 minute")).agg(
        F.count("*").alias("shown"),
        distinct("visitor").alias("visitors"),
        frequency("ad").alias("ads"),
        membership("visitor", expected=50_000).alias("seen"),
        sample("ad", "visitor", n=500).alias("some"),
    )


@app.view(key="window", order_by="-window", limit=10, keep="1 day")
def most_shown(shown: DataFrame) -> DataFrame:
    """Each minute: the ten ads that were shown most often."""
    return shown.groupBy(F.window("_time", "1 minute")).agg(heavy_hitters("ad", 10).alias("most"))


@app.view(key=["window", "ad"], order_by=["-window", "-shown"], limit=20, keep="1 day")
def exactly(shown: DataFrame) -> DataFrame:
    """Each minute and ad, counted: what the estimates are compared with."""
    return shown.groupBy(F.window("_time", "1 minute"), "ad").agg(F.count("*").alias("shown"))
