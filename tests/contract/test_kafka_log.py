"""What only a log on Kafka can meet: a broker that stops and wakes, an index that is lost, writers on two machines."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import BadLogError, LogHeldError, LogUnavailableError, OutcomeUnknownError, StaleTermError
from penstock.log.group_commit import GroupCommit
from penstock.log.index.reader import IndexedReader
from penstock.log.log import Append, Log, StreamSpec, Turn
from penstock.log.logs import kafka as kafka_log
from penstock.log.logs import kafka_turn
from penstock.log.logs.kafka import open_log, open_reader, parse, place_of
from penstock.log.logs.kafka_cluster import Cluster
from penstock.log.logs.kafka_index import LogJournal
from penstock.log.opening import placed, read_placed
from penstock.testing.contracts.log_backends import BACKENDS, KafkaBackend
from penstock.testing.contracts.log_events import SCHEMA, events, everything, put
from tests.kafka_broker import Broker

DEADLINE_S = 60.0
SILENT_S = 4.0


@pytest.fixture
def machine(kafka: Broker, tmp_path: Path) -> Callable[[str], str]:
    """The place of one log as a machine of that name knows it: the index is its own."""
    backend = BACKENDS["kafka"]
    assert isinstance(backend, KafkaBackend)
    app = f"machines-{time.time_ns()}"
    return lambda name: place_of(backend.servers, app, "edge", tmp_path / name / "edge.db")


def index_lock(place: str) -> Path:
    """The file that a writer locks for as long as it lives."""
    index = parse(place).index
    return index.with_name(f"{index.name}.writers")


def opened(place: str, turn: Turn = "now") -> Log:
    return open_log(place, parse(place).app, SystemClock(), turn)


def test_while_the_broker_stands_still_nothing_is_taken_and_then_it_goes_on(
    kafka: Broker, machine: Callable[[str], str]
) -> None:
    with closing(opened(machine("a"))) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1])
        kafka.pause()
        waking = threading.Timer(6, kafka.resume)
        try:
            with pytest.raises(LogUnavailableError):
                put(log, stream, [2])
            waking.start()
            key = _key_taken(log)
        finally:
            kafka.resume()
            waking.join()
        put(log, stream, [3])
        assert everything(log, stream) == [1, 3]
        with closing(open_reader(machine("b"))) as reader:
            assert everything(reader, stream) == [1, 3]
            assert dict(reader.memory()) == dict(log.memory()) == key


def test_while_kafka_is_away_everybody_is_told_in_time_and_then_it_goes_on(
    kafka: Broker, machine: Callable[[str], str]
) -> None:
    with closing(opened(machine("a"))) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA, unique=True))
        group = GroupCommit(log, give_up_s=log.answer_s, withdraw=True)
        group.submit([Append(stream, events([1]))]).result(DEADLINE_S)
        kafka.pause()
        try:
            until(lambda: group.problem is not None)  # nobody has asked for anything: a beat has told
            began = time.monotonic()
            asked = [group.submit([], {"key": n}) for n in range(2)]
            for waiting in asked:
                with pytest.raises((LogUnavailableError, OutcomeUnknownError)):
                    waiting.result(DEADLINE_S)
            assert time.monotonic() - began < 6
            assert log.health().away_us is not None
        finally:
            kafka.resume()
        until(lambda: group.problem is None)
        group.submit([Append(stream, events([1, 2]))]).result(DEADLINE_S)
        assert everything(log, stream) == [1, 2]
        group.close()


def _key_taken(log: Log) -> dict[str, int]:
    """What is taken of a commit without a block, whose record of the journal may have arrived or not: it is found out
    before the call returns."""
    try:
        log.append([], {"key": 2})
    except LogUnavailableError:
        return {}
    return {"key": 2}


def test_a_writer_on_another_machine_ends_this_ones_right_to_write(machine: Callable[[str], str]) -> None:
    with closing(opened(machine("a"))) as old:
        stream = old.create(StreamSpec("numbers", SCHEMA))
        put(old, stream, [1])
        with closing(opened(machine("b"))) as new:
            put(new, stream, [2])
            with pytest.raises(StaleTermError):
                put(old, stream, [3])
            with pytest.raises(StaleTermError):
                old.append([], {"key": 3})
            put(new, stream, [4])
            with closing(open_reader(machine("c"))) as reader:
                assert everything(reader, stream) == [1, 2, 4]
                assert dict(reader.memory()) == {}


def test_a_name_that_no_topic_may_have_is_refused(machine: Callable[[str], str]) -> None:
    with closing(opened(machine("a"))) as log, pytest.raises(BadLogError, match="cannot be the name of a topic"):
        log.create(StreamSpec("größen", SCHEMA))


@pytest.mark.parametrize("damage", ["deleted", "torn", "older"])
def test_an_index_that_is_lost_is_made_anew(machine: Callable[[str], str], damage: str) -> None:
    place = machine("a")
    index = parse(place).index
    with closing(opened(place)) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA, unique=True))
        put(log, stream, [1, 2])
    copy = index.read_bytes()
    with closing(opened(place)) as log:
        put(log, stream, [3])
    if damage == "deleted":
        index.unlink()
    else:
        index.write_bytes(copy if damage == "older" else index.read_bytes()[:9000] + b"\xff" * 4000)
    with closing(open_reader(place)) as reader:
        assert everything(reader, stream) == [1, 2, 3]
    with closing(opened(place)) as log:
        put(log, stream, [4])
        assert everything(log, stream) == [1, 2, 3, 4]
        assert log.term == 3


def test_bytes_that_were_removed_go_from_kafka_too(
    machine: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "KEPT_S", 0.0)
    place = machine("a")
    with closing(opened(place)) as log, closing(Cluster(parse(place).servers)) as cluster:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        topic = parse(place).topic(stream.name, stream.epoch)
        for n in range(3):
            put(log, stream, [n])
        log.trim(stream, 2)
        list(log.tidying())
        assert [cluster.get(topic, 0, offset) is None for offset in range(3)] == [True, True, False]
        assert everything(log, stream) == [2]
        log.drop(stream)
        list(log.tidying())
        deadline = time.monotonic() + DEADLINE_S
        while cluster.end(topic):
            assert time.monotonic() < deadline, "the topic stays"
            time.sleep(0.1)


def test_readers_do_not_take_each_other_for_a_writer(machine: Callable[[str], str]) -> None:
    place = machine("a")
    with closing(opened(place)) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        journals = [LogJournal(parse(place)) for _ in range(2)]
        assert all(journal.is_kept_here() for journal in journals)
    with closing(opened(machine("b"))) as elsewhere, ExitStack() as looking:
        put(elsewhere, stream, [1])
        handle = looking.enter_context(index_lock(place).open("rb"))
        fcntl.flock(handle, fcntl.LOCK_SH)  # another reader, in the middle of its look
        with closing(open_reader(place)) as reader:
            assert everything(reader, stream) == [1]


def test_whoever_knows_where_its_blocks_lie_reads_a_range_without_an_index(machine: Callable[[str], str]) -> None:
    with closing(opened(machine("a"))) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        for first in range(0, 30, 3):
            put(log, stream, [first, first + 1, first + 2])
        data = placed(log, stream, 0, 4, 26)
        assert data is not None
        far = replace(stream, place=machine("far"))
        found = list(read_placed(far, data, ["n"]))
        assert [n for block in found for n in block.batch.column("n").to_pylist()] == list(range(4, 26))
        assert [n for block in found for n in block.offsets.to_pylist()] == list(range(4, 26))
        assert [b.commit for b in found] == [b.commit for b in log.read(stream, 0, 4, 26)]
        assert not parse(far.place).index.parent.exists()


def test_a_new_index_begins_at_a_snapshot_and_the_journal_before_the_second_newest_goes(
    machine: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "SNAPSHOT_RECORDS", 10)
    place = machine("a")
    index, journal = parse(place).index, parse(place).journal
    with closing(opened(place)) as log, closing(Cluster(parse(place).servers)) as cluster:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        copy, before = b"", []
        for n in range(40):
            put(log, stream, [n])
            before.append(n)
            if n == 2:
                copy = _copied(index)
            if n % 12 == 11:
                assert _database(log).snapshot()
        assert not _database(log).snapshot(), "too little has happened since"
        assert cluster.bounds(journal)[0] > 10
        assert cluster.bounds(parse(place).snapshots)[0] > 0
        with closing(open_reader(machine("b"))) as reader:
            assert everything(reader, stream) == before
        older = parse(machine("c")).index
        older.parent.mkdir()
        older.write_bytes(copy)
        with closing(open_reader(machine("c"))) as reader:
            assert everything(reader, stream) == before
    with closing(opened(machine("d"))) as log:
        put(log, stream, [40])
        assert everything(log, stream) == [*before, 40]
        assert log.term == 2


def _database(log: Log) -> kafka_log.JournalIndexWriter:
    assert isinstance(log, IndexedReader)
    assert isinstance(log.database, kafka_log.JournalIndexWriter)
    return log.database


def _copied(index: Path) -> bytes:
    with closing(sqlite3.connect(index)) as connection:
        return bytes(connection.serialize())


def test_what_was_removed_goes_also_when_the_writer_was_started_again_meanwhile(
    machine: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "KEPT_S", 1.0)
    place = machine("a")
    with closing(opened(place)) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        for n in range(3):
            put(log, stream, [n])
        log.trim(stream, 2)
    topic = parse(place).topic(stream.name, stream.epoch)
    with closing(opened(place)) as log, closing(Cluster(parse(place).servers)) as cluster:
        until(lambda: cluster.bounds(topic)[0] == 2)
        assert everything(log, stream) == [2]


# Two machines


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_second_writer_elsewhere_is_told_who_writes(machine: Callable[[str], str]) -> None:
    with closing(opened(machine("a"))) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        began = time.monotonic()
        with pytest.raises(LogHeldError, match=f"process {os.getpid()} on {socket.gethostname()}"):
            opened(machine("b"), "free")
        assert time.monotonic() - began < 5, "it beats once a second"
        put(log, stream, [1])
    with closing(opened(machine("b"), "free")) as log:  # it has ended in order: nobody waits
        put(log, stream, [2])
        assert everything(log, stream) == [1, 2]


def test_who_stands_by_takes_over_when_the_writer_is_silent_and_not_before(
    machine: Callable[[str], str],
    writer: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_turn, "SILENT_S", SILENT_S)
    first = writer(machine("a"))
    taken: list[Log] = []
    waiting = threading.Thread(target=lambda: taken.append(opened(machine("b"), "standby")))
    waiting.start()
    time.sleep(SILENT_S + 2)
    assert not taken, "it beats all the time"
    first.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    until(lambda: bool(taken))
    assert time.monotonic() - stopped > SILENT_S - 1
    with closing(taken[0]) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1])
        with closing(open_reader(machine("a"))) as beside:  # the stopped one still has its lock
            until(lambda: beside.find("numbers") is not None)
            assert everything(beside, stream) == [1]
        first.send_signal(signal.SIGCONT)
        said, _ = first.communicate("write\n", timeout=DEADLINE_S)
        assert "StaleTermError" in said, "a zombie takes nothing"


def test_a_writer_of_the_same_folder_does_not_wait_for_a_dead_one(
    machine: Callable[[str], str], writer: Callable[[str], subprocess.Popen[str]]
) -> None:
    first = writer(machine("a"))
    first.kill()
    first.wait()
    began = time.monotonic()
    opened(machine("a"), "free").close()
    assert time.monotonic() - began < 4, "as long as a newcomer would look for beats is 5 s"


def test_an_index_is_kept_for_all_processes_of_a_folder_and_beats_wake_nobody(
    machine: Callable[[str], str],
) -> None:
    with closing(opened(machine("a"))) as log, closing(open_reader(machine("b"), keep=True)) as reader:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        beside = LogJournal(parse(machine("b")))
        until(beside.is_kept_here)
        put(log, stream, [1])
        until(lambda: reader.find("numbers") is not None and everything(reader, stream) == [1])
        writer = reader.writer()
        assert writer is not None
        assert writer.by.startswith(f"process {os.getpid()} on")
        until(lambda: (found := reader.writer()) is not None and found.lives)
        revision, end = reader.revision(), beside.end()
        until(lambda: beside.end() >= end + 2)
        assert reader.revision() == revision
        put(log, stream, [2])
        until(lambda: everything(reader, stream) == [1, 2])
        beside.close()


WRITER = """
import sys
from penstock.clock import SystemClock
from penstock.log.logs.kafka import open_log, parse
log = open_log(sys.argv[1], parse(sys.argv[1]).app, SystemClock())
print("open", flush=True)
sys.stdin.readline()
try:
    log.append([], {"key": 1})
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.fixture
def writer() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that opens a log, and writes to it when it is told."""
    started: list[subprocess.Popen[str]] = []

    def start(place: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", WRITER, place]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        output = started[-1].stdout
        assert output is not None
        assert output.readline() == "open\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
