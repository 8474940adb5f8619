"""The clicks example: which searches lead to a click, the click-through rate of each URL, and searches without one.

penstock run examples/clicks/app.py          # everything
python examples/clicks/surfers.py            # people who search, and click on some of what they find
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event

app = App("clicks")

SOON = "10 MINUTES"  # a click after that is no answer to the search


class Search(Event):
    search_id: int
    at: int  # milliseconds since 1970
    words: str
    urls: list[str]  # what was shown, best first


class Click(Event):
    click_id: int
    at: int
    search_id: int
    url: str


searches = app.stream("searches", Search, key="search_id", time="at", id="search_id", late_after="1 hour")
clicks = app.stream("clicks", Click, key="search_id", time="at", id="click_id", late_after="1 hour")


@app.view(key=["search_id", "url"], within="1 day")
def shown(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    """Each URL that a search has shown, and whether it was clicked soon; not yet, until it is."""
    found = searches.select("search_id", "words", F.explode("urls").alias("url"), F.col("_time").alias("searched"))
    taken = clicks.select("search_id", "url", F.col("_time").alias("clicked"))
    soon = (
        (found.search_id == taken.search_id)
        & (found.url == taken.url)
        & taken.clicked.between(found.searched, found.searched + F.expr(f"INTERVAL {SOON}"))
    )
    both = found.join(taken, soon, "left")
    return both.groupBy(found.search_id, found.url, "words").agg(F.max(F.col("clicked").isNotNull()).alias("clicked"))


@app.view(key="url", order_by="-rate", limit=20)
def rates(shown: DataFrame) -> DataFrame:
    """Of how many times that a URL was shown in the last day it was clicked."""
    clicked = F.count_if("clicked").alias("clicks")
    counted = shown.groupBy("url").agg(F.count("*").alias("shown"), clicked)
    return counted.withColumn("rate", F.round(F.col("clicks") / F.col("shown"), 4))


@app.view(key="search_id", order_by="-searched", limit=20, within="1 day")
def unclicked(searches: DataFrame, clicks: DataFrame) -> DataFrame:
    """Searches of the last day that nobody has clicked on: each shows at once, and leaves with its first click."""
    soon = F.expr(f"s.search_id = c.search_id AND c._time BETWEEN s._time AND s._time + INTERVAL {SOON}")
    alone = searches.alias("s").join(clicks.alias("c"), soon, "left_anti")
    return alone.select("search_id", "words", F.col("_time").alias("searched"))
