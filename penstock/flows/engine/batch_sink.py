"""Starts a Spark query whose batches reach our sink out of the one plan that Spark has made of each.

`foreachBatch` hands over a DataFrame, which Spark analyses, optimises, plans and describes once more when it is
collected: a third of a small batch's CPU. Here the sink is Spark's own interface `Sink`, implemented in Python.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from penstock import plain
from penstock.flows.engine.scratch import scratch
from penstock.flows.engine.small_batches import BatchSize
from penstock.flows.query import Start, UnrunBatch, closes_us, start_by_foreach_batch, suited

_LENGTH_BYTES = 4


def start_query(start: Start) -> StreamingQuery:
    """Start a query with a sink of our own, or by `foreachBatch` where that does not fit this Spark."""
    if plain.uses("sink"):
        try:
            return _start(start)
        except (Py4JJavaError, Py4JNetworkError):
            raise  # what Spark says of this query it would say by any way
        except Py4JError as error:  # a class, a method or a constructor is not there
            plain.give_up("sink", error)
    return start_by_foreach_batch(start)


def _start(start: Start) -> StreamingQuery:
    """As `DataStreamWriter.start` does it."""
    frame = start.frame
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)
    file = scratch().inside("batches") / f"{start.name}-{secrets.token_hex(4)}"
    handed = Handed(jvm, file)
    _try(jvm, frame, handed)
    sink = BatchSink(start, to_arrow_schema(frame.schema, timezone="UTC"), handed)
    some, streaming = jvm.scala.Option.apply, jvm.org.apache.spark.sql.streaming
    none = jvm.scala.Option.empty()
    queries = spark._jsparkSession.sessionState().streamingQueryManager()
    with suited(spark, start.few):
        query = queries.startQuery(
            some(start.name),
            none,  # the sink's name
            some(str(start.checkpoint)),
            frame._jdf,
            jvm.PythonUtils.toScalaMap({}),  # options
            sink,
            getattr(streaming.OutputMode, start.mode.capitalize())(),
            False,  # no checkpoint that is removed with the query
            True,  # go on from the checkpoint
            streaming.Trigger.ProcessingTime(0),  # the next batch as soon as there is something new
            jvm.org.apache.spark.util.SystemClock(),
            none,  # no table of a catalog
            none,
        )
    return StreamingQuery(query)


def _try(jvm: Any, frame: DataFrame, handed: Handed) -> None:
    """Raise `Py4JError` if something is missing that the first batch would be the first to call."""
    if "toArrowBatchRdd" not in dir(frame._jdf):
        raise Py4JError("Dataset.toArrowBatchRdd does not exist")
    handed.over(jvm.java.util.ArrayList())


class BatchSink:
    """What Spark calls with each batch, from the query's own thread. The names are Spark's and Java's."""

    def __init__(self, start: Start, schema: pa.Schema, handed: Handed) -> None:
        self._schema = schema
        self._take = start.take
        self._handed = handed
        self._size = BatchSize(start.few)

    def addBatch(self, batch: int, data: JavaObject) -> None:
        events = self._take(UnrunBatch(lambda: self._collected(data), lambda: closes_us(data.queryExecution())), batch)
        self._size.follow(data.sparkSession().conf(), events)

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
            return pieces_of(self._file)
        finally:
            self._file.unlink(missing_ok=True)


def pieces_of(file: Path) -> list[pa.Buffer]:
    """Each in memory of its own, which begins where Arrow wants columns to begin."""
    pieces = []
    with file.open("rb") as written:
        while length := written.read(_LENGTH_BYTES):
            pieces.append(piece := pa.allocate_buffer(int.from_bytes(length, "big")))
            if written.readinto(memoryview(piece)) != piece.size:
                raise EOFError(f"{file} ends before the batch does")
    return pieces
