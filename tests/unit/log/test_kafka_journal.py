"""Plays several writers over one journal that stop, wake, repeat, time out and arrive late; all readers must agree."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.clock import SystemClock
from penstock.errors import FolderMismatchError, LogUnavailableError, PenstockError, StaleTermError
from penstock.log.index.reader import IndexedReader
from penstock.log.index.writer import IndexedLog
from penstock.log.logs import kafka
from penstock.log.logs.kafka import JournalIndexWriter, TopicPayloads
from penstock.log.logs.kafka_cluster import DoubtError, TopicRecord
from penstock.log.logs.kafka_index import JournalIndex, KafkaPlace, LogJournal
from penstock.log.logs.kafka_journal import Record, State, decode, encode

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class PlayedCluster:
    """A topic whose records may be reported as lost and yet be there, or come to be there much later."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.records: list[bytes] = []
        self._flying: list[bytes] = []
        self.calm = False

    def write(self, records: Sequence[tuple[str, int, bytes | None, Any]], within_s: float | None = None) -> list[int]:
        ((_, _, _, value),) = records
        self._land()
        fate = "there" if self.calm else self._chance.choice(["there", "there", "late", "lost", "unknown", "twice"])
        if fate in ("late", "twice"):
            self._flying.append(value)
        if fate in ("there", "unknown", "twice"):
            self.records.append(value)
        if fate in ("late", "lost", "unknown"):
            raise DoubtError(fate)
        return [len(self.records) - 1]

    def _land(self) -> None:
        while self._flying and not self.calm and self._chance.random() < 0.4:
            self.records.append(self._flying.pop(self._chance.randrange(len(self._flying))))

    def land_all(self) -> None:
        self.records += self._flying
        self._flying.clear()

    def end(self, topic: str, partition: int = 0) -> int:
        self._land()
        return len(self.records)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[TopicRecord]:
        for offset in range(start, min(end, len(self.records))):
            yield TopicRecord(offset, None, self.records[offset])

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        return 0, self.end(topic)

    def get(self, topic: str, partition: int, offset: int) -> TopicRecord | None:
        """No snapshot."""
        return None

    def id(self) -> str:
        return "played"

    def make_topic(self, name: str, partitions: int) -> None:
        """It is there."""

    def close(self) -> None:
        """There is nothing to close."""


class World:
    """One journal, and machines that each have an index of their own."""

    def __init__(self, folder: Path, chance: Random) -> None:
        self._folder = folder
        self.cluster = PlayedCluster(chance)
        self._numbers = itertools.count()

    def _journal(self) -> LogJournal:
        index = self._folder / f"{next(self._numbers)}.db"
        journal = LogJournal(KafkaPlace("played:1", "model", "edge", index))
        journal.cluster = journal.beats = self.cluster  # type: ignore[assignment]
        return journal

    def writer(self) -> IndexedLog:
        database = JournalIndexWriter(self._journal(), SystemClock())
        where = database.journal.where
        return IndexedLog(
            "kafka://played:1/model/edge", database, TopicPayloads(where, database), "model", SystemClock()
        )

    def reader(self) -> IndexedReader:
        database = JournalIndex(self._journal())
        where = database.journal.where
        return IndexedReader("kafka://played:1/model/edge", database, TopicPayloads(where, database))


def play(folder: Path, chance: Random, steps: int = 30) -> None:
    world = World(folder, chance)
    writers: list[IndexedLog] = []
    early = world.reader()
    taken: dict[str, int] = {}
    refused: set[str] = set()
    for number in range(steps):
        if not writers or chance.random() < 0.15:
            try:
                writers.append(world.writer())
            except (LogUnavailableError, StaleTermError):
                continue
        log, key = chance.choice(writers), f"k{number}"
        try:
            log.append([], {key: number})
            taken[key] = number
        except (LogUnavailableError, StaleTermError):
            refused.add(key)
        if chance.random() < 0.3:
            database = chance.choice(writers).database
            assert isinstance(database, JournalIndexWriter)
            database.beat()
        if chance.random() < 0.1:
            early.memory()
    world.cluster.calm = True
    world.cluster.land_all()
    if writers:
        taken |= _goes_on(writers[-1])
    for reader in (world.reader(), early):
        found = dict(reader.memory())
        assert found == taken, f"missing {taken.keys() - found.keys()}, refused and there {refused & found.keys()}"
    for opened in (*writers, early):
        opened.close()


def _goes_on(log: IndexedLog) -> dict[str, int]:
    """The newest writer writes again as soon as Kafka is well, unless a claim that came late has replaced it."""
    with suppress(StaleTermError):
        log.append([], {"after": 1})
        return {"after": 1}
    return {}


@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_all_readers_find_what_was_acknowledged_and_nothing_else(chance: Random) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka.time, "sleep", lambda seconds: None)
        play(Path(folder), chance)


BROKEN = {
    "no reading back": (
        JournalIndexWriter,
        "_found_out",
        lambda self, state, record, last: (state.behind(last, record), state.behind(last, record)),
    ),
    "no claim in doubt": (JournalIndexWriter, "_claim_in_doubt", lambda self, state: self.journal.end() - 1),
    "numbers not checked": (
        State,
        "counts",
        lambda self, record: record.claim > self.claim if record.number == 0 else record.claim == self.claim,
    ),
    "claims not compared": (State, "counts", lambda self, record: True),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_every_part_of_the_protocol_is_needed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, instead = BROKEN[broken]
    monkeypatch.setattr(owner, name, instead)
    monkeypatch.setattr(kafka.time, "sleep", lambda seconds: None)
    assert any(_fails(tmp_path / str(seed), Random(seed)) for seed in range(200))


def _fails(folder: Path, chance: Random) -> bool:
    folder.mkdir()
    try:
        play(folder, chance)
    except (AssertionError, PenstockError, sqlite3.Error):  # a reader differs, or cannot apply what it finds
        return True
    return False


def test_what_is_no_record_of_ours_is_void() -> None:
    state = State(5, 2, "a", 7)
    for stranger in (b"", b"hello", b"\x81\xa1x\x01", encode(Record(1, 8, "a")), encode(Record(2, 8, "b"))):
        assert state.behind(5, decode(stranger)) == State(6, 2, "a", 7, 1)
    assert state.behind(5, decode(encode(Record(2, 8, "a")))) == State(6, 2, "a", 8, signs=1)
    assert state.behind(5, decode(encode(Record(3, 0, "b")))) == State(6, 3, "b", 0, signs=1)


def test_a_beat_changes_nothing_but_says_that_its_writer_lives() -> None:
    state = State(5, 2, "a", 7)
    assert state.behind(5, Record(2, 7, "a", beat=True)) == State(6, 2, "a", 7, signs=1)
    assert state.behind(5, Record(2, 7, "a", beat=True, left=True)) == State(6, 2, "a", 7, signs=1, left=True)
    assert state.behind(5, Record(1, 7, "a", beat=True)) == State(6, 2, "a", 7, 1), "of an older claim"
    assert state.behind(5, Record(2, 8, "a", beat=True)).number == 7, "no number is used up"
    assert not state.counts(Record(2, 8, "a", beat=True))


def test_a_record_of_a_newer_penstock_is_no_stranger_to_be_passed_over() -> None:
    newer = msgspec.msgpack.encode({"claim": 3, "writer": "w", "number": "one, in words", "format": 2})
    with pytest.raises(FolderMismatchError, match="written by a newer Penstock"):
        decode(newer)
    assert decode(b"what a stranger wrote") is None
    assert decode(msgspec.msgpack.encode({"format": 2, "of": "somebody else"})) is None
