"""Talks to a Kafka cluster: one record written and known to be there, records read from an offset on, topics made.

Nothing here knows what a log is. Every client belongs to one process: librdkafka's threads do not survive a fork, so
that a forked process makes clients of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import BadLogError, DiskFullError, LogUnavailableError

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic
except ImportError as error:  # pragma: no cover
    raise LogUnavailableError(
        "a log on Kafka needs the package confluent-kafka", hint="pip install 'penstock[kafka]'"
    ) from error

RECORD_BYTES = 16 * 1024**2
WRITE_S = 4.0
"""How long a record may take to be on all replicas that are in sync."""
ASK_S = 5.0
_CACHE_BYTES = 32 * 1024**2
_AT_ONCE = 999
_FOLLOWED = 8
"""Partitions whose reading goes on where it was; another one begins anew, which takes 4 to 10 ms."""
_OURS = {
    "acks": "all",
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
    "isolation.level": "read_uncommitted",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "message.max.bytes": RECORD_BYTES,
}
"""Settings that the protocol rests on; nobody may give others."""
_TOPIC = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(RECORD_BYTES),
    "message.timestamp.type": "CreateTime",
}
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_GONE = _ABSENT | {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})


class TopicRecord(NamedTuple):
    """One record of a topic."""

    offset: int
    key: bytes | None
    value: bytes | None


class DoubtError(Exception):
    """A record was sent, and nobody knows whether it is there, or may yet come to be there."""


class Cluster:
    """What one process has of a cluster. Any thread may use it."""

    def __init__(self, servers: str, settings: Mapping[str, Any] | None = None) -> None:
        self.servers = servers
        self._settings = {**(settings or {}), "bootstrap.servers": servers, "log_level": 0}  # our errors say it
        self._lock = threading.RLock()
        self._pid = 0
        self._forget_clients()

    def _forget_clients(self) -> None:
        self._pid = os.getpid()
        self._producer: Any = None
        self._admin: Any = None
        self._asker: Any = None
        self._readers: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()
        """By partition: a consumer, and the offset that it gives next."""
        self._cache: OrderedDict[tuple[str, int, int], TopicRecord] = OrderedDict()
        self._cached = 0

    def close(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                for consumer, _ in self._readers.values():
                    consumer.close()
                if self._asker is not None:
                    self._asker.close()
            self._forget_clients()

    def _mine(self) -> None:
        if self._pid != os.getpid():
            self._forget_clients()

    # Writing

    def write(self, records: Sequence[tuple[str, int, bytes | None, Any]], within_s: float | None = None) -> list[int]:
        """Append records (topic, partition, key, value), all on their way at once; gives their offsets, when all are on
        the replicas that must have them. Raises `DiskFullError` for one that Kafka refuses for its size, and
        `DoubtError` for whatever else is the matter: some of them may be there, or come to be there later."""
        with self._lock:
            self._mine()
            if self._producer is None:
                times = {"message.timeout.ms": round(WRITE_S * 1000), "linger.ms": 0}
                self._producer = Producer({**self._settings, **_only(_OURS, _PRODUCING), **times})
            producer = self._producer
            offsets = [-1] * len(records)
            failures: list[KafkaError] = []
            waiting = len(records)

            def told(number: int, error: KafkaError | None, message: Any) -> None:
                nonlocal waiting
                waiting -= 1
                if error is not None:
                    failures.append(error)
                else:
                    offsets[number] = message.offset()

            try:
                for number, (topic, partition, key, value) in enumerate(records):
                    report = _reporting(told, number)
                    producer.produce(topic, value, key, partition=partition, on_delivery=report)
            except KafkaException as error:
                failures.append(error.args[0])
            except BufferError as error:
                self._producer = None
                raise DoubtError(str(error)) from error
            deadline = time.monotonic() + (WRITE_S + 1 if within_s is None else within_s)
            while waiting and not failures and time.monotonic() < deadline:
                producer.poll(0.1)
            if failures or waiting:
                self._producer = None  # one that lost a record would number the next ones wrongly
                producer.purge(in_flight=False)
                raise _failed(failures)
            return offsets

    # Reading

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset behind the last record; 0 where there is no such topic."""
        with self._lock:
            self._mine()
            if self._asker is None:
                self._asker = self._consumer()
            try:
                _, end = self._asker.get_watermark_offsets(TopicPartition(topic, partition), timeout=ASK_S)
            except KafkaException as error:
                if error.args[0].code() in _ABSENT:
                    return 0
                raise _away(error) from error
            return int(end)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[TopicRecord]:
        """The records from `start` on, up to `end`."""
        at = start
        while at < end:
            message = self._next(topic, partition, at)
            if message is None or message.offset >= end:
                return
            yield message
            at = message.offset + 1

    def follow(self, topic: str, partition: int, offset: int, wait_s: float) -> list[TopicRecord]:
        """The records from an offset on that are there; the first of them is waited for, also where there is no such
        topic yet. Meanwhile nobody else gets an answer from this object."""
        with self._lock:
            self._mine()
            consumer = self._at(topic, partition, offset)
            first = consumer.poll(wait_s)
            messages = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
            records: list[TopicRecord] = []
            for message in messages:
                error = message.error()
                if error is not None:
                    self._end_reading(topic, partition)
                    if records or error.code() in _ABSENT:
                        return records
                    raise _away(KafkaException(error))
                records.append(TopicRecord(message.offset(), message.key(), message.value()))
            if records:
                self._readers[topic, partition] = (consumer, records[-1].offset + 1)
            return records

    def get(self, topic: str, partition: int, offset: int) -> TopicRecord | None:
        """One record; None: it is not there any more."""
        place = (topic, partition, offset)
        with self._lock:
            self._mine()
            message = self._cache.get(place)
            if message is None:
                message = self._next(topic, partition, offset)
                if message is None or message.offset != offset:
                    return None
                self._keep(place, message)
            return message

    def _keep(self, place: tuple[str, int, int], message: TopicRecord) -> None:
        self._cache[place] = message
        self._cached += len(message.value or b"")
        while self._cached > _CACHE_BYTES:
            _, old = self._cache.popitem(last=False)
            self._cached -= len(old.value or b"")

    def _next(self, topic: str, partition: int, offset: int) -> TopicRecord | None:
        """The first record at an offset or behind it; None: the offset is not in the topic."""
        with self._lock:
            self._mine()
            consumer = self._at(topic, partition, offset)
            deadline = time.monotonic() + ASK_S
            while (message := consumer.poll(0.5)) is None:
                if time.monotonic() > deadline:
                    self._end_reading(topic, partition)
                    raise LogUnavailableError("Kafka does not answer", detail=self.servers, hint="see whether it runs")
            error = message.error()
            if error is not None:
                self._end_reading(topic, partition)
                if error.code() in _GONE:
                    return None
                raise _away(KafkaException(error))
            self._readers[topic, partition] = (consumer, message.offset() + 1)
            return TopicRecord(message.offset(), message.key(), message.value())

    def _at(self, topic: str, partition: int, offset: int) -> Any:
        consumer, at = self._readers.pop((topic, partition), (None, -1))
        if consumer is None:
            if len(self._readers) >= _FOLLOWED:
                _, (oldest, _) = self._readers.popitem(last=False)
                oldest.close()
            consumer = self._consumer()
        if at != offset:
            consumer.assign([TopicPartition(topic, partition, offset)])
        self._readers[topic, partition] = (consumer, offset)
        return consumer

    def _end_reading(self, topic: str, partition: int) -> None:
        consumer, _ = self._readers.pop((topic, partition))
        consumer.close()

    def _consumer(self) -> Any:
        return Consumer({**self._settings, **_only(_OURS, _CONSUMING), **_QUICKLY, "group.id": "penstock"})

    # Topics

    def make_topic(self, name: str, partitions: int) -> None:
        """Make a topic, unless it is there."""
        replicas = min(3, len(self._metadata().brokers))
        settings = {**_TOPIC, "min.insync.replicas": "2" if replicas > 2 else "1"}
        if replicas == 1:
            settings["flush.messages"] = "1"  # nobody else has it: it must be on the disk
        made = self._topics().create_topics([NewTopic(name, partitions, replicas, config=settings)])[name]
        try:
            made.result(30)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_EXCEPTION:
                raise BadLogError(
                    f"'{name}' cannot be the name of a topic", hint="use ASCII letters, digits, - and _ in names"
                ) from error
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _away(error) from error

    def drop_topics(self, names: Sequence[str]) -> None:
        for dropped in self._topics().delete_topics(list(names)).values() if names else ():
            dropped.exception(30)

    def drop_records(self, topic: str, partition: int, before: int) -> None:
        """Remove the records below an offset."""
        where = TopicPartition(topic, partition, before)
        for dropped in self._topics().delete_records([where]).values():
            dropped.exception(30)

    def id(self) -> str:
        """The cluster's own name for itself."""
        return str(self._metadata().cluster_id)

    def _metadata(self) -> Any:
        try:
            return self._topics().list_topics(timeout=ASK_S)
        except KafkaException as error:
            raise _away(error) from error

    def _topics(self) -> Any:
        with self._lock:
            self._mine()
            if self._admin is None:
                self._admin = AdminClient(self._settings)
            return self._admin


_PRODUCING = ("acks", "enable.idempotence", "message.max.bytes")
_QUICKLY = {"fetch.wait.max.ms": 10, "topic.metadata.propagation.max.ms": 0, "fetch.message.max.bytes": 4 * 1024**2}
"""A reader that goes elsewhere waits for the fetch that is parked at the broker."""
_CONSUMING = ("allow.auto.create.topics", "isolation.level", "enable.auto.commit", "auto.offset.reset")


def _only(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: settings[name] for name in names}


def _reporting(told: Any, number: int) -> Any:
    return lambda error, message: told(number, error, message)


def _failed(failures: Sequence[KafkaError]) -> Exception:
    for error in failures:
        if error.code() in _TOO_LARGE:
            return DiskFullError(
                "Kafka takes no record of this size", detail=error.str(), hint="raise max.message.bytes of its topic"
            )
    return DoubtError(failures[0].str() if failures else f"no answer within {WRITE_S:g} s")


def _away(error: KafkaException) -> LogUnavailableError:
    return LogUnavailableError("Kafka cannot be asked now", detail=error.args[0].str(), hint="see whether it runs")
