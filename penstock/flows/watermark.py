"""How Spark's watermark follows what the log says is complete: the columns and conditions that stand above a relation.

Spark closes windows, sessions and joins by a watermark that it takes from a column of events. Here the column has the
mark that `source.py` puts behind each batch, and nothing else.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import schema as columns_
from penstock.flows.source import COMPLETE, Feed

_DELAY = "spark.watermarkDelayMs"
"""What marks a column as event time for Spark's operators."""
_WATERMARK_EXTRA_US = 1_000
"""Spark drops `time <= watermark`, the log calls late what is `< bound - late_after`: one millisecond between."""


def whole(frame: DataFrame, feed: Feed) -> DataFrame:
    """A relation of what a plan needs, as the function knows it: columns that it names without need are null."""
    there = set(frame.columns)
    if there == set(feed.whole_schema.names):
        return frame
    fields = from_arrow_schema(feed.whole_schema).fields
    shown = {f.name: F.lit(None).cast(f.dataType).alias(f.name) for f in fields if f.name not in there}
    if feed.marks:
        shown[columns_.TIME] = _timed(delay_us(feed.late_after_us or 0))
    return frame.select(*(shown.get(f.name, F.col(f"`{f.name}`")) for f in fields))


def followed(frame: DataFrame) -> DataFrame:
    """A relation with marks as one without, whose watermark follows them.

    The condition that takes marks out is not deterministic for Spark, though it is. Spark would move any other below
    the watermark, and with it what a function filters by: a mark passes no filter, and would never be seen.
    """
    timed = frame.withWatermark(COMPLETE, "0 seconds")
    return timed.where(F.col(COMPLETE).isNull() | (F.spark_partition_id() < 0))


def _timed(delay_us: int) -> Column:
    """The time of events, as the column whose groups the watermark closes."""
    return F.col(columns_.TIME).alias(columns_.TIME, metadata={_DELAY: delay_us // 1000})


def watermarked(frame: DataFrame, late_after_us: int | None) -> DataFrame:
    """For looking at plans: a frame whose `_time` closes groups, as that of one which `followed` gives does."""
    if late_after_us is None:
        return frame
    return frame.withWatermark(columns_.TIME, f"{delay_us(late_after_us) // 1000} milliseconds")


def delay_us(late_after_us: int) -> int:
    """The watermark's delay: whole milliseconds, a little more than the log's rule."""
    return (late_after_us + _WATERMARK_EXTRA_US) // 1000 * 1000
