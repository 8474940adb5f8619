"""Reads a Kafka topic: every partition from the offset that our own log has stored, without a group and its commits.

The client's calls block, so they run in a thread of this source's own; it is asked for the next events only when the
last ones have found room, and the client itself holds a bounded amount. A tombstone (no value) is no event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from penstock.clock import Clock
from penstock.collect.pulling.credentials import Credentials, ca_file
from penstock.collect.pulling.pull_source import SourceEvents, SourceLag, SourceRequest, SourceReset
from penstock.errors import MissingPackageError
from penstock.pull_origin import Origin

CONNECT_S = 5.0
POLL_S = 0.2
TOGETHER_EVENTS = 500
HELD_KB = 16 * 1024
PARTITIONS_S = 60.0
"""How often the topic is asked whether it has more partitions by now."""
_log = logging.getLogger("penstock.kafka")


class KafkaSource:
    """The position has a part for each partition, by its number: the offset behind what we have."""

    def __init__(self, origin: Origin, clock: Clock) -> None:
        parts = urlsplit(origin.url)
        self._brokers, self._topic = parts.netloc, parts.path.strip("/")
        self._origin = origin
        self._credentials = Credentials(origin)
        self._clock = clock
        self._lags: dict[int, int] = {}

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        with ThreadPoolExecutor(1, thread_name_prefix="pull-kafka") as thread:
            loop = asyncio.get_running_loop()
            reader = _Reader(self._settings(), self._topic, self._clock)
            try:
                await loop.run_in_executor(thread, reader.assign, request.position)
                yield self._events(reader, thread)
            finally:
                await asyncio.shield(loop.run_in_executor(thread, reader.close))

    def lag(self) -> SourceLag:
        return {"events": float(sum(self._lags.values()))} if self._lags else {}

    async def _events(self, reader: _Reader, thread: ThreadPoolExecutor) -> AsyncIterator[SourceEvents]:
        while True:
            arrived = await asyncio.get_running_loop().run_in_executor(thread, reader.next)
            self._lags = reader.lags
            if arrived is not None:
                yield arrived

    def _settings(self) -> dict[str, Any]:
        given = self._credentials.settings()
        sasl = any(name.startswith("sasl.") for name in given)
        protocol = ("SASL_" if sasl else "") + ("SSL" if self._origin.secure else "PLAINTEXT")
        return {
            "security.protocol": protocol,
            "queued.max.messages.kbytes": HELD_KB,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 1000,
            **({"ssl.ca.location": ca} if (ca := ca_file(self._origin)) else {}),
            **given,
            "bootstrap.servers": self._brokers,
            "group.id": "penstock",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
        }


class _Reader:
    """Around one consumer; called in one thread."""

    def __init__(self, settings: dict[str, Any], topic: str, clock: Clock) -> None:
        self._kafka = _package()
        self._topic, self._clock = topic, clock
        self._error: Any = None
        self._refused: Any = None
        """What the client said last of TLS or a password, which it does not say again when it gives up."""
        self._consumer = self._kafka.Consumer(settings | {"error_cb": self._failed}, logger=_log)
        self._offsets: dict[int, int] = {}
        self._looked_s = clock.monotonic()
        self.lags: dict[int, int] = {}

    def close(self) -> None:
        self._consumer.close()

    def assign(self, position: Any) -> None:
        """Every partition from its stored offset, or from its beginning."""
        for partition in self._partitions():
            low, high = self._consumer.get_watermark_offsets(self._at(partition), timeout=CONNECT_S)
            offset = int(position.get(str(partition), low))
            if not low <= offset <= high:
                raise SourceReset(
                    f"partition {partition} holds the offsets {low} to {high}, and {offset} comes next",
                    {str(partition): low},
                )
            self._offsets[partition] = offset
            self.lags[partition] = high - offset
        self._consumer.assign([self._at(p, offset) for p, offset in self._offsets.items()])

    def next(self) -> SourceEvents | None:
        """What came within a moment."""
        if self._clock.monotonic() - self._looked_s > PARTITIONS_S:
            self._add_partitions()
        arrived = self._consumer.consume(TOGETHER_EVENTS, POLL_S)
        if self._error is not None:
            raise ConnectionError(str(self._error))
        raws: list[bytes] = []
        moved: dict[str, int] = {}
        for one in arrived:
            if one.error() is not None:
                self._refuse(one.error(), one.partition())
            if one.value() is not None:
                raws.append(one.value())
            self._offsets[one.partition()] = moved[str(one.partition())] = one.offset() + 1
        self._measure(moved)
        return SourceEvents(raws, moved) if moved else None

    def _refuse(self, error: Any, partition: int) -> None:
        codes = self._kafka.KafkaError
        if error.code() in (codes.OFFSET_OUT_OF_RANGE, codes._AUTO_OFFSET_RESET):
            low, _ = self._consumer.get_watermark_offsets(self._at(partition), timeout=CONNECT_S)
            raise SourceReset(f"partition {partition} no longer has the next offset: {error}", {str(partition): low})
        raise ConnectionError(str(error))

    def _measure(self, moved: dict[str, int]) -> None:
        for partition, offset in self._offsets.items():
            _, high = self._consumer.get_watermark_offsets(self._at(partition), cached=True)
            if high >= 0:
                self.lags[partition] = max(0, high - offset)

    def _add_partitions(self) -> None:
        self._looked_s = self._clock.monotonic()
        new = [p for p in self._partitions() if p not in self._offsets]
        if new:
            self._offsets |= dict.fromkeys(new, 0)
            self._consumer.assign([self._at(p, offset) for p, offset in self._offsets.items()])

    def _partitions(self) -> list[int]:
        try:
            topic = self._consumer.list_topics(self._topic, timeout=CONNECT_S).topics[self._topic]
        except self._kafka.KafkaException as error:
            self._consumer.poll(0)  # only then are we told what went wrong
            raise ConnectionError(str(self._refused or error)) from None
        if topic.error is not None:
            raise ConnectionError(f"the topic '{self._topic}': {topic.error}")
        return sorted(topic.partitions)

    def _at(self, partition: int, offset: int | None = None) -> Any:
        at = self._kafka.TopicPartition(self._topic, partition)
        if offset is not None:
            at.offset = offset
        return at

    def _failed(self, error: Any) -> None:
        codes = self._kafka.KafkaError
        if error.code() in (codes._SSL, codes._AUTHENTICATION):
            self._refused = error
        if error.fatal() or error.code() in (codes._ALL_BROKERS_DOWN, codes._AUTHENTICATION):
            self._error = error


def _package() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise MissingPackageError(
            "a pull from Kafka needs the package confluent-kafka", hint="pip install 'penstock[kafka]'"
        ) from None
    return confluent_kafka
