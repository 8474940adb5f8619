from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config import sqlite_place
from penstock.horizon import Horizon
from penstock.log.log import Log, StreamSpec
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts.log_events import SCHEMA, ManualClock, eventually, everything, put

UNIQUE = StreamSpec("unique", SCHEMA, unique=True, partitions=2)


def test_a_disk_that_refuses_to_grow_is_told_and_forgotten_once_there_is_room(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse, in the midst of a write to the WAL; then the process dies at once."""
    script = """
        import os, resource, signal, sys
        from penstock.errors import DiskFullError
        from penstock.log.log import Append
        from penstock.log.opening import open_log
        from penstock.testing.contracts.log_child import SPEC, batch

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = open_log(sys.argv[1], app="unit")
        stream = log.create(SPEC)
        log.append([Append(stream, batch(0, 10))])
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        wal = sys.argv[1].removeprefix("sqlite://") + "-wal"
        size = os.stat(wal).st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, hard))
        for attempt in range(3):
            try:
                log.append([Append(stream, batch(10, 20_000))])
            except DiskFullError:
                print("full")
        log.append([Append(stream, batch(10, 10))])
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.append([Append(stream, batch(20, 20_000))])
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(wal).st_size - 200_000, hard))
        try:
            log.append([Append(stream, batch(100_000, 60_000))])
        except DiskFullError:
            print("full", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "log.db"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), sqlite_place(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["full"] * 4, done.stderr
    with closing(open_log(sqlite_place(path), app="unit")) as log:
        stream = log.find("numbers")
        assert stream is not None
        assert everything(log, stream) == list(range(20_020))


def test_ids_beyond_the_time_kept_are_not_loaded(log: Log, clock: ManualClock) -> None:
    unique = log.create(UNIQUE)
    for n in range(4):
        put(log, unique, range(n * 10, n * 10 + 10))
        clock.us += Horizon.age_us // 3
    with closing(open_log(log.place, app="unit", clock=clock)) as again:
        assert put(again, unique, range(40)).duplicates == tuple(range(10, 40))


def test_ids_beyond_the_horizon_are_not_loaded(log: Log, clock: ManualClock) -> None:
    unique = log.create(UNIQUE)
    for n in range(10):
        put(log, unique, range(n * 10, n * 10 + 10))
    log.trim(unique, 2)
    with closing(open_log(log.place, app="unit", clock=clock)) as again:
        again.create(replace(UNIQUE, horizon=Horizon(ids=55)))
        assert again.horizon(unique) == 55
        assert put(again, unique, range(100)).duplicates == tuple(range(40, 100))


def test_a_new_version_of_the_schema_does_not_load_the_ids_again(log: Log) -> None:
    unique = log.create(UNIQUE)
    put(log, unique, [1])
    before = log._tail(unique).ids
    wider = pa.schema([*SCHEMA, pa.field("x", pa.int64(), metadata={b"default": b"7"})])
    newer = log.create(StreamSpec("unique", wider, unique=True, partitions=2))
    assert log._tail(newer).ids is before
    assert log._tail(newer).stream.schema.equals(wider)


def test_a_stream_may_become_unique_later(log: Log) -> None:
    plain = log.create(StreamSpec("unique", SCHEMA, partitions=2))
    put(log, plain, [1, 1])
    unique = log.create(UNIQUE)
    assert unique.unique
    assert put(log, unique, [1, 2]).duplicates == (0,)


def test_dictionary_columns_are_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="dictionary"):
        log.create(StreamSpec("s", pa.schema([("a", pa.dictionary(pa.int32(), pa.string()))])))


def test_a_reader_is_opened_from_a_stream_that_travelled(log: Log) -> None:
    stream = log.create(UNIQUE)
    put(log, stream, range(5))
    with closing(open_reader(pickle.loads(pickle.dumps(stream)).place)) as reader:
        assert sorted(everything(reader, stream)) == list(range(5))


def test_a_reader_works_on_both_sides_of_a_fork(log: Log) -> None:
    stream = log.create(UNIQUE)
    put(log, stream, range(5))
    with closing(open_reader(log.place)) as reader:
        everything(reader, stream)
        child = os.fork()
        if child == 0:
            os._exit(0 if sorted(everything(reader, stream)) == list(range(5)) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert sorted(everything(reader, stream)) == list(range(5))


def test_connections_are_closed_with_their_threads_and_with_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "edge.db"
    open_log(sqlite_place(path), app="small").close()  # SQLite keeps the files of a process that also writes open
    reader = open_reader(sqlite_place(path))
    gc.disable()
    try:
        for _ in range(10):
            thread = threading.Thread(target=reader.streams)
            thread.start()
            thread.join()
        assert _opened(path) == 0
        assert reader.streams()
        assert _opened(path) == 1
        reader.close()
        assert _opened(path) == 0
        assert reader.streams(), "a reader that was closed opens again when asked"
    finally:
        gc.enable()
    reader.close()


def _opened(path: Path) -> int:
    """How often this process has it open."""
    return sum(os.path.realpath(f"/proc/self/fd/{number}") == str(path) for number in os.listdir("/proc/self/fd"))


def test_blocks_may_be_read_by_another_thread_than_asked_for_them(log: Log) -> None:
    stream = log.create(StreamSpec("numbers", SCHEMA))
    for n in range(50):
        put(log, stream, [n])
    asked: list[object] = []
    thread = threading.Thread(target=lambda: asked.append(log.read(stream, 0, 0)))
    thread.start()
    thread.join()
    (blocks,) = asked
    assert [block.start for block in blocks] == list(range(50))  # type: ignore[attr-defined]


def test_opening_a_reader_is_cheap(log: Log) -> None:
    """Every task of Spark opens one."""
    put(log, log.create(UNIQUE), range(1000))
    took: list[float] = []

    def measure() -> bool:
        began = time.perf_counter()
        with closing(open_reader(log.place)) as reader:
            reader.find("unique")
        took.append(time.perf_counter() - began)
        return min(took) < 0.002

    eventually(measure)


CLOSING = """
import sys, threading, time
import pyarrow as pa
from penstock.log.log import StreamSpec
from penstock.log.opening import open_log, open_reader

log = open_log(sys.argv[1], app="small")
log.create(StreamSpec("s", pa.schema([("n", pa.int64())])))
reader, stop = open_reader(log.place), threading.Event()

def read():
    while not stop.is_set():
        assert reader.find("s")

threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
end = time.monotonic() + 0.5
while time.monotonic() < end:
    reader.close()
stop.set()
for thread in threads:
    thread.join()
"""


def test_a_reader_that_is_closed_while_others_use_it_takes_no_process_with_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSING, sqlite_place(tmp_path / "edge.db")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
