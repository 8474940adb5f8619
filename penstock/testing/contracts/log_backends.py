"""Registers the log's backends with what a contract test must be able to do to them, and with what they lack.

A backend runs every test of the contract but those that need something which it says it lacks, with the reason; they
are skipped with that reason, and nothing else is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

from penstock.clock import Clock
from penstock.config import sqlite_place
from penstock.log.index.file import IndexFileWriter
from penstock.log.index.reader import IndexedReader
from penstock.log.log import Log, LogReader
from penstock.log.logs import memory
from penstock.log.logs.sqlite import path_of
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts import sqlite_tearing

APP = "contract"

Capability = Literal["outliving its process", "other processes", "power cuts", "damage", "starving"]
Test = TypeVar("Test", bound=Callable[..., None])


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Marks a test of the contract that a backend without these is excused from."""

    def marked(test: Test) -> Test:
        test.needs = capabilities  # type: ignore[attr-defined]
        return test

    return marked


class LogBackend:
    """How the contract's tests handle one kind of log."""

    lacks: Mapping[Capability, str] = {}
    """What this kind of log cannot do by its nature, and why."""

    def place(self, folder: Path) -> str:
        """The place of a log of a test's own, to which this folder belongs."""
        raise NotImplementedError

    def forget(self, folder: Path) -> None:
        """Nobody opens what belongs to this folder again."""

    def open(self, place: str, clock: Clock | None = None) -> Log:
        """Become the writer."""
        return open_log(place, app=APP, clock=clock)

    def reader(self, place: str) -> LogReader:
        return open_reader(place)

    # What only a test that `needs` it calls

    def damage(self, place: str, what: str) -> None:
        """Change what is stored of the newest block: `byte` (of its events), `place` or `missing`."""
        raise NotImplementedError

    def starved(self, log: Log) -> AbstractContextManager[None]:
        """Within it the log has no room for more than a few kilobytes."""
        raise NotImplementedError

    def hurry(self, log: Log) -> None:
        """From now on it moves what it has written to its last place often, so that a power cut can meet that."""
        raise NotImplementedError

    def copy(self, place: str, into: str) -> None:
        """What would lie at another place if the power failed now, just after an acknowledgement."""
        raise NotImplementedError

    def cut_between(self, before: str, after: str, into: str, chance: Random) -> None:
        """Make a log as a power cut may leave it during the one commit between these two copies."""
        raise NotImplementedError

    def tail_bytes(self, copy: str) -> int:
        """The length of the part that only ever grows, commit by commit, while nothing is moved."""
        raise NotImplementedError

    def cut_tail(self, whole: str, into: str, at: int, chance: Random) -> None:
        """Make a log in which everything behind so many of these bytes is lost."""
        raise NotImplementedError


_NEWEST = "(SELECT max(payload) FROM blocks)"
_MOVED = f"UPDATE blocks SET written_us = written_us + 1 WHERE payload = {_NEWEST}"


class SqliteBackend(LogBackend):
    """`penstock.log.logs.sqlite`."""

    def place(self, folder: Path) -> str:
        return sqlite_place(folder / sqlite_tearing.DB)

    def damage(self, place: str, what: str) -> None:
        with closing(sqlite3.connect(path_of(place))) as connection, connection:
            if what == "byte":
                ((data,),) = connection.execute(f"SELECT data FROM payloads WHERE id = {_NEWEST}").fetchall()
                connection.execute(f"UPDATE payloads SET data = ? WHERE id = {_NEWEST}", (_flipped(data),))
            elif what == "place":
                connection.execute(_MOVED)
            elif what == "missing":
                connection.execute(f"DELETE FROM payloads WHERE id = {_NEWEST}")

    @contextmanager
    def starved(self, log: Log) -> Iterator[None]:
        connection = _connection(log)
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {pages + 1}").fetchall()
        try:
            yield
        finally:
            connection.execute(f"PRAGMA max_page_count = {2**30}").fetchall()

    def hurry(self, log: Log) -> None:
        _connection(log).execute("PRAGMA wal_autocheckpoint = 12").fetchall()

    def copy(self, place: str, into: str) -> None:
        sqlite_tearing.copy(_folder(place), _folder(into))

    def cut_between(self, before: str, after: str, into: str, chance: Random) -> None:
        sqlite_tearing.cut_between(_folder(before), _folder(after), _folder(into), chance)

    def tail_bytes(self, copy: str) -> int:
        return (_folder(copy) / sqlite_tearing.WAL).stat().st_size

    def cut_tail(self, whole: str, into: str, at: int, chance: Random) -> None:
        sqlite_tearing.cut_tail(_folder(whole), _folder(into), at, chance)


def _folder(place: str) -> Path:
    return path_of(place).parent


def _connection(log: Log) -> sqlite3.Connection:
    assert isinstance(log, IndexedReader)
    assert isinstance(log.database, IndexFileWriter)
    return log.database.connection


def _flipped(data: bytes) -> bytes:
    return bytes([*data[:-9], data[-9] ^ 1, *data[-8:]])


class MemoryBackend(LogBackend):
    """`penstock.log.logs.memory`."""

    lacks = {
        "outliving its process": "the log lies in the memory of one process",
        "other processes": "no other process sees this one's memory",
        "power cuts": "nothing is on a disk, so that nothing is left",
    }

    def place(self, folder: Path) -> str:
        return f"memory://{folder}"

    def forget(self, folder: Path) -> None:
        memory.forget(self.place(folder))

    def damage(self, place: str, what: str) -> None:
        stored = memory.memory_of(place)
        newest = max(stored.payloads)
        data, offsets = stored.payloads[newest]
        if what == "byte":
            stored.payloads[newest] = (_flipped(bytes(data)), offsets)
        elif what == "place":
            stored.connection.execute(_MOVED)
        elif what == "missing":
            del stored.payloads[newest]

    @contextmanager
    def starved(self, log: Log) -> Iterator[None]:
        stored = memory.memory_of(log.place)
        stored.room = 4096
        try:
            yield
        finally:
            stored.room = None


class KafkaBackend(LogBackend):
    """`penstock.log.logs.kafka`, on a broker that runs over a folder; the one who runs it says where."""

    lacks = {
        "power cuts": "the broker's disk is not ours to cut: what it has acknowledged is its promise",
    }
    servers = ""
    data = Path()

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def place(self, folder: Path) -> str:
        from penstock.log.logs.kafka import place_of

        number = self._numbers.setdefault(str(folder), len(self._numbers))
        return place_of(self.servers, f"contract-{os.getpid()}-{number}", "edge", folder / "index.db")

    def damage(self, place: str, what: str) -> None:
        from penstock.log.logs.kafka import parse
        from penstock.log.logs.kafka_cluster import Cluster

        with closing(sqlite3.connect(parse(place).index)) as index, index:
            sql = f"SELECT topic, partition, position FROM places WHERE payload = {_NEWEST}"
            ((topic, partition, position),) = index.execute(sql).fetchall()
            if what == "place":
                index.execute(_MOVED)
            elif what == "missing":
                index.execute(f"DELETE FROM places WHERE payload = {_NEWEST}")
        if what == "byte":
            with closing(Cluster(self.servers)) as cluster:
                message = cluster.get(topic, partition, position)
            assert message is not None
            assert message.value is not None
            (segment,) = self.data.glob(f"{topic}-{partition}/*.log")
            stored = segment.read_bytes()
            assert message.value in stored
            segment.write_bytes(stored.replace(message.value, _flipped(message.value)))

    @contextmanager
    def starved(self, log: Log) -> Iterator[None]:
        from penstock.log.kafka_settings import RECORD_BYTES
        from penstock.log.logs.kafka import parse

        where = parse(log.place)
        topics = [where.journal, *(where.topic(stream.name, stream.epoch) for stream in log.streams())]
        self._limit(topics, 4096)
        try:
            yield
        finally:
            self._limit(topics, RECORD_BYTES)

    def _limit(self, topics: Sequence[str], size: int) -> None:
        """Let topics take no larger records from now on; that of the control stream is not there."""
        from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        admin = AdminClient({"bootstrap.servers": self.servers})
        for topic in topics:
            entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
            wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            for changed in admin.incremental_alter_configs([wanted]).values():
                changed.exception(30)


BACKENDS: dict[str, LogBackend] = {"sqlite": SqliteBackend(), "memory": MemoryBackend(), "kafka": KafkaBackend()}
"""By the name of the module in `penstock.log.logs`."""
