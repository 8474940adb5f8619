"""What only a log on Kafka can meet: a broker that stops and wakes, an index that is lost, writers on two machines."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import BadLogError, LogUnavailableError, StaleTermError
from penstock.log.log import Log, StreamSpec
from penstock.log.logs import kafka as kafka_log
from penstock.log.logs.kafka import LogJournal, open_log, open_reader, parse, place_of
from penstock.log.logs.kafka_cluster import Cluster
from penstock.log.opening import placed, read_placed
from penstock.testing.contracts.log_backends import BACKENDS, KafkaBackend
from penstock.testing.contracts.log_events import SCHEMA, everything, put
from tests.kafka_broker import Broker

DEADLINE_S = 60.0


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


def opened(place: str) -> Log:
    return open_log(place, parse(place).app, SystemClock())


def test_while_the_broker_stands_still_nothing_is_taken_and_then_it_goes_on(
    kafka: Broker, machine: Callable[[str], str]
) -> None:
    with closing(opened(machine("a"))) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1])
        kafka.pause()
        waking = threading.Timer(6, kafka.resume)
        waking.start()
        try:
            with pytest.raises(LogUnavailableError):
                put(log, stream, [2])
            key = _key_taken(log)
        finally:
            waking.join()
        put(log, stream, [3])
        assert everything(log, stream) == [1, 3]
        with closing(open_reader(machine("b"))) as reader:
            assert everything(reader, stream) == [1, 3]
            assert dict(reader.memory()) == dict(log.memory()) == key


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
        assert all(journal.is_written_here() for journal in journals)
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
