"""How the topics of a log are made, and whether those that are there still are so.

A topic keeps what it was given: no retention, no compaction of Kafka's own, records of 16 MiB. From three replicas on,
two must have a record before it is acknowledged; below that every record is fsynced, so that an acknowledgement means
either two machines or a disk.

At each start the topics are compared with this. How many replicas one has is compared only if the environment says how
many they should be (`REPLICATION`): else a cluster that has grown, or lost a machine for an hour, would stop the app.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.errors import BadLogError
from penstock.log.kafka_settings import RECORD_BYTES

REPLICATION = "PENSTOCK_KAFKA_REPLICATION"
MOST_REPLICAS = 3
IN_SYNC = "min.insync.replicas"
FLUSH = "flush.messages"
REPLICAS = "replicas"
_ALWAYS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(RECORD_BYTES),
    "message.timestamp.type": "CreateTime",
}
_AT_LEAST = frozenset({"max.message.bytes", IN_SYNC})
"""More of these does no harm."""


class TopicFacts(NamedTuple):
    """A topic as it is."""

    name: str
    replicas: int
    settings: Mapping[str, str]

    @property
    def replicated(self) -> bool:
        """Whether what is acknowledged is on two machines."""
        return int(self.settings.get(IN_SYNC, "1")) > 1


class TopicDifference(NamedTuple):
    """One thing in which a topic is not what it should be."""

    topic: str
    setting: str
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"'{self.topic}' has {self.setting}={self.found}, and {self.setting}={self.wanted} is needed"


def replicas_of(brokers: int, environment: Mapping[str, str] = os.environ) -> int:
    """How many replicas a new topic gets on so many brokers."""
    asked = asked_replicas(environment)
    if asked is not None and asked > brokers:
        raise BadLogError(
            f"{REPLICATION} is {asked}, and Kafka has {brokers} brokers now",
            hint=f"start more brokers, or set {REPLICATION} to {brokers} or less",
        )
    return asked or min(MOST_REPLICAS, brokers)


def asked_replicas(environment: Mapping[str, str] = os.environ) -> int | None:
    text = environment.get(REPLICATION)
    if text is None or text == "":
        return None
    if not text.isdecimal() or not 0 < int(text) < 100:
        raise BadLogError(f"{REPLICATION} is '{text[:40]}'", hint="set it to a number of replicas, such as 3")
    return int(text)


def settings_of(replicas: int) -> dict[str, str]:
    """What a topic with so many replicas is given.

    >>> settings_of(3)["min.insync.replicas"], settings_of(1)["flush.messages"], "flush.messages" in settings_of(3)
    ('2', '1', False)
    """
    if replicas >= MOST_REPLICAS:
        return {**_ALWAYS, IN_SYNC: "2"}
    return {**_ALWAYS, IN_SYNC: "1", FLUSH: "1"}


def differences(topic: TopicFacts, environment: Mapping[str, str] = os.environ) -> Iterator[TopicDifference]:
    asked = asked_replicas(environment)
    if asked is not None and topic.replicas != asked:
        yield TopicDifference(topic.name, REPLICAS, str(topic.replicas), str(asked))
    for name, wanted in settings_of(topic.replicas).items():
        found = topic.settings.get(name, "")
        if name in _AT_LEAST and found.isdecimal() and int(found) >= int(wanted):
            continue
        if name == FLUSH and topic.replicated:
            continue
        if found != wanted:
            yield TopicDifference(topic.name, name, found, wanted)


def refuse(found: list[TopicDifference], servers: str) -> None:
    """Raise `BadLogError` for topics on these brokers that are not what they should be."""
    if not found:
        return
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    replicas = any(one.setting == REPLICAS for one in found)
    hint = (
        f"move the topic to so many brokers with kafka-reassign-partitions.sh, or set {REPLICATION} to what it has"
        if replicas
        else f"penstock kafka mend APP --log kafka://{servers}"
    )
    raise BadLogError(f"the topic {found[0]}{more}", detail="somebody has changed it since it was made", hint=hint)
