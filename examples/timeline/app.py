"""The timeline example: what the people whom you follow have posted, newest first, for everybody at once.

penstock run examples/timeline/app.py          # everything
python examples/timeline/people.py             # people who post, delete, follow and unfollow
"""

from datetime import datetime

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from penstock import App, Event

app = App("timeline")

SHOWN = 20  # posts on one page


class Follow(Event):
    """Who reads whom."""

    reader: str
    author: str


class Post(Event):
    """What somebody has posted, until it is deleted."""

    post_id: int
    author: str
    at: datetime
    text: str


follows = app.table("follows", Follow, key=["reader", "author"])
posts = app.table("posts", Post, key="post_id")


@app.view(key=["reader", "post_id"], order_by=["reader", "-at"], limit=50)
def timelines(follows: DataFrame, posts: DataFrame) -> DataFrame:
    """The newest posts of those whom each reader follows."""
    newest = Window.partitionBy("reader").orderBy(F.desc("at"), F.desc("post_id"))
    return (
        follows.join(posts, "author")
        .withColumn("place", F.row_number().over(newest))
        .where(f"place <= {SHOWN}")
        .select("reader", "post_id", "author", "at", "text")
    )


@app.view(key="author", order_by="-followers", limit=20)
def popular(follows: DataFrame) -> DataFrame:
    """Who is followed by how many."""
    return follows.groupBy("author").agg(F.count("*").alias("followers"))
