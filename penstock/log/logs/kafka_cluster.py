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

from penstock.errors import BadLogError, DiskFullError, LogRefusedError, LogUnavailableError
from penstock.log.kafka_settings import OURS, ClientSettings
from penstock.log.kafka_topics import TopicFacts, replicas_of, settings_of

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewTopic,
        ResourceType,
    )
except ImportError as error:  # pragma: no cover
    raise LogUnavailableError(
        "a log on Kafka needs the package confluent-kafka", hint="pip install 'penstock[kafka]'"
    ) from error

WRITE_S = 4.0
"""How long a record may take to be on all replicas that are in sync."""
ASK_S = 5.0
ADMIN_S = 20.0
"""For what is asked at a start, or when a stream is made: nobody waits for it whom a busy broker should turn away."""
_CACHE_BYTES = 32 * 1024**2
_AT_ONCE = 999
_FOLLOWED = 8
"""Partitions whose reading goes on where it was; another one begins anew, which takes 4 to 10 ms."""
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_GONE = _ABSENT | {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE})


_UNKNOWN_CLIENT = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.ILLEGAL_SASL_STATE}
)
_NO_RIGHT = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_RIGHTS = (
    "Create, Delete, Describe, DescribeConfigs, Read and Write on the topics that begin with the app's name and a dot"
)


class TopicRecord(NamedTuple):
    """One record of a topic."""

    offset: int
    key: bytes | None
    value: bytes | None


class DoubtError(Exception):
    """A record was sent, and nobody knows whether it is there, or may yet come to be there."""


class Cluster:
    """What one process has of a cluster. Any thread may use it."""

    def __init__(self, servers: str, settings: ClientSettings | None = None) -> None:
        self.servers = servers
        self._given = settings or ClientSettings()
        self._refusal: KafkaError | None = None
        """What the client said last of TLS or a password, which it does not say again when it gives up."""
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
                self._producer = self.client(Producer, {**_only(OURS, _PRODUCING), **times})
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
                raise self._failed(failures)
            return offsets

    # Reading

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset behind the last record; 0 where there is no such topic."""
        return self.bounds(topic, partition)[1]

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The offset of the first record and that behind the last one; 0 where there is no such topic."""
        with self._lock:
            self._mine()
            if self._asker is None:
                self._asker = self._consumer()
            try:
                begin, end = self._asker.get_watermark_offsets(TopicPartition(topic, partition), timeout=ASK_S)
            except KafkaException as error:
                if error.args[0].code() in _ABSENT:
                    return 0, 0
                raise self._away(error, self._asker) from error
            return int(begin), int(end)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[TopicRecord]:
        """The records from `start` on, up to `end`."""
        at = start
        while at < end:
            message = self._next(topic, partition, at)
            if message is None or message.offset >= end:
                return
            yield message
            at = message.offset + 1

    def known_end(self, topic: str, partition: int = 0) -> int:
        """The offset behind the last record, as of the last answer to somebody who reads there; nobody is asked."""
        with self._lock:
            consumer, at = self._readers.get((topic, partition), (None, 0))
            if consumer is None:
                return 0
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
            return max(int(end), at)

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
                    raise self._away(KafkaException(error))
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
                    raise self._silent()
            error = message.error()
            if error is not None:
                self._end_reading(topic, partition)
                if error.code() in _GONE:
                    return None
                raise self._away(KafkaException(error))
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
        return self.client(Consumer, {**_only(OURS, _CONSUMING), **_QUICKLY, "group.id": "penstock"})

    def client(self, kind: Any, more: Mapping[str, Any]) -> Any:
        """A client of a kind. What it says of itself is not printed: our errors say it."""
        ours = {"bootstrap.servers": self.servers, "log_level": 0, "error_cb": self._told, **more}
        try:
            return kind({**self._given.values, **ours})
        except KafkaException as error:
            raise BadLogError(
                "Kafka's client does not take its settings",
                detail=self._given.redact(error.args[0].str()),
                hint="correct the file that PENSTOCK_KAFKA_SETTINGS names",
            ) from None

    def _told(self, error: KafkaError) -> None:
        if error.code() in _UNKNOWN_CLIENT:
            self._refusal = error

    # What went wrong

    def _away(self, error: KafkaException, client: Any = None) -> LogUnavailableError:
        if client is not None:
            client.poll(0)  # only then are we told what was wrong with a password or a certificate
        kafka = error.args[0]
        refusal = kafka if kafka.code() in _UNKNOWN_CLIENT | _NO_RIGHT else self._refusal
        self._refusal = None
        if refusal is not None:
            return self._refused(refusal)
        return LogUnavailableError(
            "Kafka cannot be asked now", detail=f"{self.servers}: {self._said(kafka)}", hint="see whether it runs there"
        )

    def _refused(self, error: KafkaError) -> LogRefusedError:
        detail = f"{self.servers}: {self._said(error)}"
        if error.code() in _NO_RIGHT:
            return LogRefusedError(
                "Kafka gives this client too few rights",
                detail=detail,
                hint=f"it needs the ACLs {_RIGHTS}, and DescribeConfigs on the cluster: kafka-acls.sh --add"
                " --resource-pattern-type prefixed",
            )
        return LogRefusedError(
            "Kafka does not let this client in",
            detail=detail,
            hint="correct the password or the certificates in the file that PENSTOCK_KAFKA_SETTINGS names; kafkas://"
            " speaks TLS, kafka:// does not",
        )

    def _said(self, error: KafkaError) -> str:
        return self._given.redact(error.str())

    def _silent(self) -> LogUnavailableError:
        return LogUnavailableError("Kafka does not answer", detail=self.servers, hint="see whether it runs there")

    def _failed(self, failures: Sequence[KafkaError]) -> Exception:
        for error in failures:
            if error.code() in _TOO_LARGE:
                return DiskFullError(
                    "Kafka takes no record of this size",
                    detail=error.str(),
                    hint="raise max.message.bytes of its topic",
                )
            if error.code() in _NO_RIGHT:
                return self._refused(error)
        return DoubtError(self._said(failures[0]) if failures else f"no answer within {WRITE_S:g} s")

    # Topics

    def partitions(self, name: str) -> int:
        """How many a topic has; 0: there is none."""
        found = self._metadata().topics.get(name)
        return 0 if found is None else len(found.partitions)

    def make_topic(self, name: str, partitions: int, more: Mapping[str, str] | None = None) -> None:
        """Make a topic, unless it is there; `more` settings are those of a topic that others read."""
        there = self._metadata()
        if name in there.topics and there.topics[name].error is None:
            return
        replicas = replicas_of(len(there.brokers))
        wanted = NewTopic(name, partitions, replicas, config={**settings_of(replicas), **(more or {})})
        made = self._topics().create_topics([wanted])[name]
        try:
            made.result(30)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_EXCEPTION:
                raise BadLogError(
                    f"'{name}' cannot be the name of a topic", hint="use ASCII letters, digits, - and _ in names"
                ) from error
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._away(error, self._admin) from error

    def topics(self, names: Sequence[str]) -> list[TopicFacts]:
        """Those of them that there are, as they are."""
        known = self._metadata().topics
        there = [name for name in names if name in known]
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in there]
        found = []
        try:
            for resource, told in (self._topics().describe_configs(asked) if asked else {}).items():
                settings = {name: entry.value for name, entry in told.result(30).items()}
                found.append(TopicFacts(resource.name, len(known[resource.name].partitions[0].replicas), settings))
        except KafkaException as error:
            raise self._away(error, self._admin) from error
        return found

    def set_topic(self, name: str, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
        ]
        wanted = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        try:
            for changed in self._topics().incremental_alter_configs([wanted]).values():
                changed.result(30)
        except KafkaException as error:
            raise self._away(error, self._admin) from error

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
            return self._topics().list_topics(timeout=ADMIN_S)
        except KafkaException as error:
            raise self._away(error, self._admin) from error

    def _topics(self) -> Any:
        with self._lock:
            self._mine()
            if self._admin is None:
                self._admin = self.client(AdminClient, {})
            return self._admin


_PRODUCING = ("acks", "enable.idempotence", "message.max.bytes")
_QUICKLY = {"fetch.wait.max.ms": 10, "topic.metadata.propagation.max.ms": 0, "fetch.message.max.bytes": 4 * 1024**2}
"""A reader that goes elsewhere waits for the fetch that is parked at the broker."""
_CONSUMING = ("allow.auto.create.topics", "isolation.level", "enable.auto.commit", "auto.offset.reset")


def _only(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: settings[name] for name in names}


def _reporting(told: Any, number: int) -> Any:
    return lambda error, message: told(number, error, message)
