"""Starts a Spark query whose batches reach our sink as Arrow, out of the one plan that Spark has made of each.

`foreachBatch` hands over a DataFrame, which Spark analyses, optimises, plans and describes once more when it is
collected: a third of a small batch's CPU. Here the sink is Spark's own interface `Sink`, implemented in Python.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from penstock.flows import plan_tree, query
from penstock.flows.engine.scratch import scratch
from penstock.flows.query import Batch, Take

_LENGTH_BYTES = 4


class BatchSink:
    """What Spark calls with each batch, from the query's own thread. The names are Spark's and Java's."""

    def __init__(self, schema: pa.Schema, take: Take, handed: Handed, few: bool) -> None:
        """`few`: the session that the query will have interprets already."""
        self._schema = schema
        self._take = take
        self._handed = handed
        self._interprets = few

    def addBatch(self, batch: int, data: JavaObject) -> None:
        events = self._take(Batch(lambda: self._collected(data), lambda: _closes_us(data)), batch)
        self._suit(data, events <= query.FEW_EVENTS)

    def _suit(self, data: JavaObject, few: bool) -> None:
        """Let Spark plan the next batch for as many events as this one had. The session is this query's own."""
        if few != self._interprets:
            query.suit(data.sparkSession().conf(), few)
            self._interprets = few

    def toString(self) -> str:
        return "Penstock"

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return self is other

    def _collected(self, data: JavaObject) -> pa.Table:
        """The job runs within this call, so that what it fails with is raised here."""
        with unwrap_spark_exception():
            found = data.toArrowBatchRdd().toJavaRDD().collect()
        batches = [pa.ipc.read_record_batch(piece, self._schema) for piece in self._handed.over(found)]
        return pa.Table.from_batches(batches, schema=self._schema)

    class Java:
        implements = ("org.apache.spark.sql.execution.streaming.Sink",)


def _closes_us(data: JavaObject) -> int | None:
    """Not the query's own watermark: a join below holds it back for as long as it may still find pairs."""
    for node in plan_tree.nodes(data.queryExecution().executedPlan()):
        if plan_tree.kind(node).endswith("StateStoreSaveExec"):
            mark = node.eventTimeWatermarkForEviction()
            return int(mark.get()) * 1000 if mark.isDefined() else None
    return None


class Handed:
    """Brings what Java has collected here, by a file that is gone when it was read.

    Over py4j's connection bytes travel as text, 10 MB in a CPU-second, and an answer of more than 8 kB is two writes,
    of which the second waits 40 ms for an acknowledgement that the kernel delays. PySpark's own way opens a socket
    each time, and leaves a note of it for ever.
    """

    def __init__(self, jvm: Any, file: Path) -> None:
        self._file = file
        self._opened = jvm.java.io.FileOutputStream
        self._stream = jvm.java.io.DataOutputStream
        self._sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self._write = jvm.org.apache.spark.api.python.PythonRDD.writeIteratorToStream
        """Writes each behind its length."""

    def over(self, found: JavaObject) -> list[pa.Buffer]:
        """The pieces, in order, of a Java list of bytes."""
        try:
            out = self._stream(self._opened(str(self._file)))
            try:
                self._write(self._sequence(found).iterator(), out)
            finally:
                out.close()
            return _pieces(self._file)
        finally:
            self._file.unlink(missing_ok=True)


def _pieces(file: Path) -> list[pa.Buffer]:
    """Each in memory of its own, which begins where Arrow wants columns to begin."""
    pieces = []
    with file.open("rb") as written:
        while length := written.read(_LENGTH_BYTES):
            pieces.append(piece := pa.allocate_buffer(int.from_bytes(length, "big")))
            if written.readinto(memoryview(piece)) != piece.size:
                raise EOFError(f"{file} ends before the batch does")
    return pieces


def start_query(frame: DataFrame, name: str, mode: str, checkpoint: Path, take: Take, *, few: bool) -> StreamingQuery:
    """Start a query, as `DataStreamWriter.start` does, that calls `take` for each batch until it is stopped.

    `few`: its first batch will have few events.
    """
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)
    file = scratch().inside("batches") / f"{name}-{secrets.token_hex(4)}"
    sink = BatchSink(to_arrow_schema(frame.schema, timezone="UTC"), take, Handed(jvm, file), few)
    some, streaming = jvm.scala.Option.apply, jvm.org.apache.spark.sql.streaming
    none = jvm.scala.Option.empty()
    queries = spark._jsparkSession.sessionState().streamingQueryManager()
    usual = spark.conf.get(query.PARTITIONS)
    query.suit(spark.conf, few)
    spark.conf.set(query.PARTITIONS, query.state_partitions(spark.sparkContext.defaultParallelism))
    try:
        started = queries.startQuery(  # it takes a copy of the session's settings
            some(name),
            none,  # the sink's name
            some(str(checkpoint)),
            frame._jdf,
            jvm.PythonUtils.toScalaMap({}),  # options
            sink,
            getattr(streaming.OutputMode, mode.capitalize())(),
            False,  # no checkpoint that is removed with the query
            True,  # go on from the checkpoint
            streaming.Trigger.ProcessingTime(0),  # the next batch as soon as there is something new
            jvm.org.apache.spark.util.SystemClock(),
            none,  # no table of a catalog
            none,
        )
    finally:
        query.suit(spark.conf, few=False)
        spark.conf.set(query.PARTITIONS, usual)
    return StreamingQuery(started)
