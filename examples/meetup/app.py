"""The Meetup example: what people around the world sign up for, as one Penstock application.

python examples/meetup/server.py          # the feed, simulated
penstock run examples/meetup/app.py       # everything else
"""

import os

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from penstock import App, Event, Struct

app = App("meetup")


class Venue(Struct):
    venue_id: int
    venue_name: str | None = None
    lat: float | None = None
    lon: float | None = None


class Member(Struct):
    member_id: int
    member_name: str | None = None
    photo: str | None = None


class Occasion(Struct):
    """What Meetup calls an event: the evening that people say yes or no to."""

    event_id: str
    event_name: str | None = None
    event_url: str | None = None
    time: int | None = None


class Topic(Struct):
    urlkey: str
    topic_name: str


class Group(Struct):
    group_id: int
    group_name: str
    group_city: str
    group_country: str
    group_lat: float
    group_lon: float
    group_topics: list[Topic]
    group_urlname: str | None = None
    group_state: str | None = None


class Rsvp(Event):
    rsvp_id: int
    mtime: int  # an integer time is in milliseconds since 1970
    response: str  # yes or no
    member: Member
    event: Occasion
    group: Group
    guests: int = 0
    visibility: str = "public"
    venue: Venue | None = None


# The feed sends some RSVPs twice, and an rsvp_id again when somebody changes their mind: the id tells which.
rsvps = app.stream(
    "rsvps",
    Rsvp,
    key="rsvp_id",
    time="mtime",
    id=["rsvp_id", "mtime", "response"],
    late_after="10 minutes",
)
# After a break the feed is asked for everything since the largest mtime in the log.
app.pull(rsvps, os.environ.get("MEETUP_FEED", "ws://127.0.0.1:8190/2/rsvps"), resume="since_mtime=mtime")


@app.view(key="topic", order_by="-rsvps", limit=20)
def topics(rsvps: DataFrame) -> DataFrame:
    """Topics with the most RSVPs of all time."""
    return (
        rsvps.where("response = 'yes'")
        .select(F.explode("group.group_topics.topic_name").alias("topic"))
        .groupBy("topic")
        .agg(F.count("*").alias("rsvps"))
    )


@app.view(key=["window", "topic"], order_by=["-window", "-rsvps"], limit=10, keep="1 hour")
def trending(rsvps: DataFrame) -> DataFrame:
    """Topics with the most RSVPs, minute by minute."""
    return (
        rsvps.where("response = 'yes'")
        .select("_time", F.explode("group.group_topics.topic_name").alias("topic"))
        .groupBy(F.window("_time", "1 minute"), "topic")
        .agg(F.count("*").alias("rsvps"))
    )


@app.view(key=["window", "place"], order_by=["-window", "place"], limit=10, keep="1 hour")
def top10(trending: DataFrame) -> DataFrame:
    """The ten topics of each minute with the most RSVPs."""
    by = Window.partitionBy("window").orderBy(F.desc("rsvps"), "topic")
    return trending.withColumn("place", F.row_number().over(by)).where("place <= 10")


@app.view(key="country", order_by="-rsvps")
def countries(rsvps: DataFrame) -> DataFrame:
    """RSVPs, and the guests that they bring, by the country of the group."""
    return (
        rsvps.where("response = 'yes'")
        .groupBy(F.col("group.group_country").alias("country"))
        .agg(F.count("*").alias("rsvps"), F.sum("guests").alias("guests"))
    )
