"""Starts a Spark query that hands its batches to our sink as Arrow, by `foreachBatch`.

`engine/batch_sink.py` has a way that costs less, and does what this one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock import spark_master
from penstock.flows import plan_tree
from penstock.flows.engine.small_batches import BatchSize, suit


@dataclass(frozen=True)
class UnrunBatch:
    """What Spark has planned and not run yet."""

    collect: Callable[[], pa.Table]
    """Runs the batch, by one action, and gives its rows in order."""
    closes_us: Callable[[], int | None]
    """Up to which end its topmost aggregation gives windows out in append mode; None: it aggregates nothing."""


Take = Callable[[UnrunBatch, int], int]
"""What the sink does with a batch; gives how many events it read."""

_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Start:
    """What a query is started with."""

    frame: DataFrame
    name: str
    mode: str
    checkpoint: Path
    take: Take
    few: bool
    """Its first batch will have few events."""


def start_by_foreach_batch(start: Start) -> StreamingQuery:
    """Start a query that calls `take` for each batch until it is stopped."""
    spark, size = start.frame.sparkSession, BatchSize(start.few)

    def hand_over(rows: DataFrame, number: int) -> None:
        events = start.take(UnrunBatch(rows.toArrow, lambda: _closes_us(spark, start.name)), number)
        size.follow(rows.sparkSession.conf, events)

    writer = start.frame.writeStream.queryName(start.name).outputMode(start.mode)
    with suited(spark, start.few):
        return writer.option("checkpointLocation", str(start.checkpoint)).foreachBatch(hand_over).start()


@contextmanager
def suited(spark: SparkSession, few: bool) -> Iterator[None]:
    """What is started within has the settings for its first batch, and its state in few pieces."""
    usual = spark.conf.get(_PARTITIONS)
    suit(spark.conf, few)
    if spark_master.cluster() is None:  # there, the session's setting is its owner's word
        spark.conf.set(_PARTITIONS, state_partitions(spark.sparkContext.defaultParallelism))
    try:
        yield  # a query takes a copy of the session's settings
    finally:
        suit(spark.conf, few=False)
        spark.conf.set(_PARTITIONS, usual)


def state_partitions(cores: int) -> int:
    """Into how many pieces a new build's state is cut; frozen in its checkpoint. With one, `OneTask.java` spares small
    batches their shuffle, which two cores gain more by than by cutting it in two."""
    return 1 if cores <= 2 else min(cores, 8)


def _closes_us(spark: SparkSession, name: str) -> int | None:
    """Asked while the batch runs, so the query is active and this batch is its last execution."""
    running = next(query for query in spark.streams.active if query.name == name)
    return closes_us(running._jsq.streamingQuery().lastExecution())


def closes_us(execution: Any) -> int | None:
    """Not the query's own watermark: a join below holds it back for as long as it may still find pairs."""
    for node in plan_tree.nodes(execution.executedPlan()):
        if plan_tree.kind(node).endswith("StateStoreSaveExec"):
            mark = node.eventTimeWatermarkForEviction()
            return int(mark.get()) * 1000 if mark.isDefined() else None
    return None
