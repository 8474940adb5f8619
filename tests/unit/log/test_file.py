"""An index in a file: how it is opened, shared by threads and processes, kept small, and what its failures mean."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.config import sqlite_place
from penstock.errors import CorruptBlockError, DiskFullError, FolderMismatchError, LogUnavailableError
from penstock.log.index import file
from penstock.log.log import Log, Stream, StreamSpec
from penstock.log.logs.sqlite import path_of
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts.log_events import SCHEMA, eventually, everything, put

UNIQUE = StreamSpec("unique", SCHEMA, unique=True, partitions=2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(open_log(sqlite_place(tmp_path / "log.db"), app="unit")) as log:
        yield log


def connection(log: Any) -> sqlite3.Connection:
    """The writer's own."""
    database: file.IndexFileWriter = log.database
    return database.connection


def test_every_commit_is_synced(log: Log) -> None:
    pragmas = [connection(log).execute(f"PRAGMA {name}").fetchall()[0][0] for name in ("journal_mode", "synchronous")]
    assert pragmas == ["wal", 2]


def test_the_file_of_another_app_is_refused(log: Log) -> None:
    with pytest.raises(FolderMismatchError, match="belongs to the app 'unit'"):
        open_log(log.place, app="other")
    assert log.append([], {"a": 1}) == []


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    open_log(sqlite_place(path), app="a").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    with pytest.raises(FolderMismatchError, match="newer"):
        open_log(sqlite_place(path), app="a")
    with pytest.raises(FolderMismatchError, match="newer"):
        open_reader(sqlite_place(path)).streams()


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(CorruptBlockError):
        open_log(sqlite_place(path), app="a")
    with pytest.raises(CorruptBlockError):
        open_reader(sqlite_place(path)).streams()


def test_an_empty_file_is_no_log_yet(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    assert file.open_reader(path) is None


def test_network_file_systems_are_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path / 'far'} nfs4 rw 0 0\n")
    with pytest.raises(FolderMismatchError, match="nfs4"):
        file.refuse_network(tmp_path / "far" / "away" / "log.db", str(mounts))
    file.refuse_network(tmp_path / "near" / "log.db", str(mounts))
    file.refuse_network(tmp_path / "log.db", str(tmp_path / "no mounts here"))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DiskFullError),
        (sqlite3.SQLITE_IOERR_WRITE, DiskFullError),
        (sqlite3.SQLITE_BUSY, LogUnavailableError),
        (sqlite3.SQLITE_CORRUPT, CorruptBlockError),
    ],
)
def test_failures_have_the_logs_names(code: int, kind: type[Exception]) -> None:
    error = sqlite3.OperationalError("it")
    error.sqlite_errorcode = code
    assert type(file.translated(error, Path("x"))) is kind


def test_the_wal_stays_bounded_while_readers_come_and_go(
    log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(log).execute("PRAGMA wal_autocheckpoint = 50").fetchall()
    connection(log).execute("PRAGMA journal_size_limit = 1000000").fetchall()
    wal = path_of(log.place).with_name("log.db-wal")
    for n in range(200):
        put(log, stream, range(n * 100, n * 100 + 100))
        blocks = log.read(stream, 0, 0)
        next(blocks)
    assert wal.stat().st_size < 2_000_000
    monkeypatch.setattr(file, "WAL_BYTES", 1)
    assert list(log.tidying()) == []
    assert wal.stat().st_size == 0


def test_a_reader_that_stays_is_no_trouble_for_tidying(
    log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "WAL_BYTES", 1)
    put(log, stream, [1])
    reader = file.open_reader(path_of(log.place))
    assert reader is not None
    with closing(reader):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM meta").fetchall()
        put(log, stream, [2])
        assert list(log.tidying()) == []
        put(log, stream, [3])


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


def test_room_that_was_freed_is_used_again(log: Log, stream: Stream) -> None:
    for n in range(60):
        put(log, stream, range(n * 200, n * 200 + 200))
    pages = "PRAGMA page_count"
    before = connection(log).execute(pages).fetchall()[0][0]
    for n in range(60, 200):
        put(log, stream, range(n * 200, n * 200 + 200))
        log.trim(stream, n - 40)
    assert connection(log).execute(pages).fetchall()[0][0] <= before * 1.1
