"""A topic that other programs read: written in Kafka's transactions, and continued where its last record says.

What was published last stands in the topic itself, in a header of each record, and so is as durable and as atomic as
what was published. Whoever opens a topic fences the one before it, which can then publish no more, and reads that.

1. `publish` is one transaction: a reader with `read_committed` sees all of it or nothing.
2. When a call raises `TopicError`, whether the transaction was committed is not known. Open the topic again: the last
   record tells.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.errors import TopicError
from penstock.log.kafka_settings import RECORD_BYTES
from penstock.log.logs.kafka_cluster import Cluster
from penstock.log.topic import POSITION, TopicRow

_OPEN_S = 30.0
_PUBLISH_S = 30.0
_LOOK_BACK = 8
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class PublishedTopic:
    """One topic, which this process alone writes. Used by one thread."""

    def __init__(
        self, cluster: Cluster, name: str, partitions: int, *, compacted: bool, retention_ms: int = -1
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._partitions = partitions
        self._settings = {"retention.ms": str(retention_ms), "cleanup.policy": "compact" if compacted else "delete"}
        self._producer: Any = None

    def open(self) -> None:
        """Make the topic if it is not there, and become the only one who publishes."""
        self.close()
        self._cluster.make_topic(self.name, self._partitions, self._settings)
        there = self._cluster.partitions(self.name)
        if there != self._partitions:
            raise TopicError(
                f"the topic '{self.name}' has {there} partitions, and what it is made from {self._partitions}",
                hint="remove the topic, or give it another name: topic=",
            )
        identity = {"transactional.id": f"penstock.{self.name}", "message.max.bytes": RECORD_BYTES, "linger.ms": 5}
        producer = self._cluster.client(Producer, identity)
        try:
            producer.init_transactions(_OPEN_S)
        except KafkaException as error:
            raise _failed(self.name, error) from error
        self._producer = producer

    def close(self) -> None:
        """What is in a transaction that was not committed is aborted by whoever opens the topic next."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def publish(self, rows: Sequence[TopicRow]) -> None:
        assert self._producer is not None
        failures: list[KafkaError] = []

        def told(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)

        try:
            self._producer.begin_transaction()
            for row in rows:
                self._produce(row, told)
            self._producer.commit_transaction(_PUBLISH_S)
        except (KafkaException, BufferError) as error:
            raise _failed(self.name, error) from error
        if failures:
            raise _failed(self.name, KafkaException(failures[0]))

    def _produce(self, row: TopicRow, told: Any) -> None:
        deadline = time.monotonic() + _PUBLISH_S
        while True:
            try:
                self._producer.produce(
                    self.name,
                    row.value,
                    row.key,
                    partition=row.partition,
                    headers=[*row.headers, (POSITION, row.position)],
                    on_delivery=told,
                )
                self._producer.poll(0)
                return
            except BufferError:  # librdkafka's queue is full
                if time.monotonic() > deadline:
                    raise
                self._producer.poll(0.1)

    # Reading what was published

    def last_positions(self) -> list[str]:
        """Of each partition that holds records, the position in the last one."""
        found = []
        with _reading(self._cluster) as consumer:
            for partition in range(self._partitions):
                last = self._last(consumer, partition)
                if last is not None:
                    found.append(dict(last.headers() or ())[POSITION].decode())
        return found

    def was_written(self) -> bool:
        """Whether it ever had a record, also if none is left."""
        with _reading(self._cluster) as consumer:
            return any(self._bounds(consumer, p)[1] > 0 for p in range(self._partitions))

    def content(self) -> dict[bytes, bytes]:
        """The newest value of each key of a compacted topic."""
        rows: dict[bytes, bytes] = {}
        with _reading(self._cluster) as consumer:
            for message in self._records(consumer, 0, *self._bounds(consumer, 0)):
                if message.value() is None:
                    rows.pop(message.key(), None)
                else:
                    rows[message.key()] = message.value()
        return rows

    def _last(self, consumer: Any, partition: int) -> Any:
        """Records of transactions stand between marks, which are counted and not given."""
        low, high = self._bounds(consumer, partition)
        back = _LOOK_BACK
        while high > low:
            start = max(low, high - back)
            records = list(self._records(consumer, partition, start, high))
            if records or start == low:
                return records[-1] if records else None
            back *= _LOOK_BACK
        return None

    def _bounds(self, consumer: Any, partition: int) -> tuple[int, int]:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=_OPEN_S)
        except KafkaException as error:
            raise _failed(self.name, error) from error
        return int(low), int(high)

    def _records(self, consumer: Any, partition: int, start: int, end: int) -> Iterator[Any]:
        if start >= end:
            return
        consumer.assign([TopicPartition(self.name, partition, start)])
        deadline = time.monotonic() + _OPEN_S
        while True:
            message = consumer.poll(0.5)
            if message is None:
                if time.monotonic() > deadline:
                    raise TopicError(f"the topic '{self.name}' cannot be read", hint="see whether Kafka runs")
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            if error is not None:
                raise _failed(self.name, KafkaException(error))
            deadline = time.monotonic() + _OPEN_S
            yield message


@contextmanager
def _reading(cluster: Cluster) -> Iterator[Any]:
    """A consumer for one look at committed records."""
    consumer = cluster.client(
        Consumer,
        {
            "group.id": "penstock",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "topic.metadata.propagation.max.ms": 0,
        },
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _failed(topic: str, error: Exception) -> TopicError:
    inner = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
    if inner is not None and inner.code() in _FENCED:
        return TopicError(
            f"another process publishes to '{topic}' now", detail=inner.str(), hint="one process writes a log at a time"
        )
    return TopicError(
        f"the topic '{topic}' cannot be written to",
        detail=inner.str() if inner else str(error),
        hint="see whether Kafka runs, and whether this user may write to the topic and use transactions",
    )
