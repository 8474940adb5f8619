"""Keeps a producer's unsent events and the number of its open batch in a folder, so that they outlive the process.

1. A write is one transaction: on return all of it is on the disk (`disk="full"`: fsynced), or it raised and none is.
2. The events of an open batch are stored with its number before the batch is first sent.
3. One process works on a folder at a time. Each start raises the epoch, so that a copy of the folder is fenced off;
   a batch that is still open keeps its own epoch and number until it is answered.
4. One thread writes, so that all who wait for the disk share one fsync.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from typing import Literal

from penstock.client.batch import BatchNumber
from penstock.errors import DiskFullError, FolderHeldError, FolderMismatchError, ProducerClosedError

Disk = Literal["full", "normal"]
FORMAT = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (n INTEGER PRIMARY KEY, line BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS batch (epoch INTEGER, sequence INTEGER, first INTEGER, last INTEGER);
"""


@dataclass(frozen=True, slots=True)
class QueueState:
    """What is remembered beside the events: which are settled, and the batch that is not."""

    settled: int
    """All events up to this one are done with."""
    batch: BatchNumber | None
    epoch: int


@dataclass(frozen=True, slots=True)
class StartState:
    """What a producer starts with."""

    producer: str
    epoch: int
    events: Sequence[tuple[int, bytes]] = ()
    batch: BatchNumber | None = None


@dataclass(slots=True)
class JournalWrite:
    """What one transaction writes; of several states the last holds."""

    events: list[tuple[int, bytes]] = field(default_factory=list)
    state: QueueState | None = None


def next_epoch(epoch: int, now_us: int) -> int:
    """The next epoch: higher than any before, and hardly that of a copy of this folder, because it is the time."""
    return max(epoch + 1, now_us // 1000)


def fresh_start(now_us: int) -> StartState:
    """What a producer without a folder starts with."""
    return StartState(uuid.uuid4().hex, next_epoch(0, now_us))


class Journal:
    """The folder of one producer. Opened by the caller's thread, then used by the storer's alone."""

    def __init__(self, folder: Path, stream: str, disk: Disk, now_us: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _locked(folder)
        self._db = sqlite3.connect(folder / "queue.db", isolation_level=None, check_same_thread=False)
        try:
            self.start = self._open(stream, disk, now_us)
        except sqlite3.Error as error:
            self.close()
            raise FolderMismatchError(
                f"the queue in '{folder}' cannot be read", detail=str(error), hint="choose another folder"
            ) from None
        except BaseException:
            self.close()
            raise

    def write(self, changes: JournalWrite) -> None:
        """Raises `DiskFullError` when the disk does not take it."""
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO events VALUES (?, ?)", changes.events)
            if changes.state is not None:
                self._write(changes.state)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise DiskFullError(
                f"the queue in '{self._folder}' cannot be written", detail=str(error), hint="make room on that disk"
            ) from None

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def _write(self, state: QueueState) -> None:
        self._db.execute("DELETE FROM events WHERE n <= ?", (state.settled,))
        self._db.execute("DELETE FROM batch")
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (state.epoch,))
        if state.batch is not None:
            number = state.batch
            self._db.execute(
                "INSERT INTO batch VALUES (?, ?, ?, ?)", (number.epoch, number.sequence, number.first, number.last)
            )

    def _open(self, stream: str, disk: Disk, now_us: int) -> StartState:
        db = self._db
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {disk.upper()}")
        db.executescript(_TABLES)
        meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        self._check(meta, stream)
        producer = str(meta.get("producer") or uuid.uuid4().hex)
        epoch = next_epoch(int(meta.get("epoch") or 0), now_us)
        news = {"format": FORMAT, "stream": stream, "producer": producer, "epoch": epoch}
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", news.items())
        db.execute("COMMIT")
        row = db.execute("SELECT epoch, sequence, first, last, 1 FROM batch").fetchone()
        events = db.execute("SELECT n, line FROM events ORDER BY n").fetchall()
        return StartState(producer, epoch, events, BatchNumber(*row) if row else None)

    def _check(self, meta: dict[str, object], stream: str) -> None:
        if meta.get("format", FORMAT) != FORMAT:
            raise FolderMismatchError(
                f"the queue in '{self._folder}' was written by a newer version", hint="update penstock"
            )
        if meta.get("stream", stream) != stream:
            raise FolderMismatchError(
                f"the queue in '{self._folder}' belongs to the stream '{meta['stream']}', not to '{stream}'",
                hint="give each stream a folder of its own",
            )


def _locked(folder: Path) -> int:
    """An open file whose lock ends with this process, however it ends."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 20).decode(errors="replace")
        os.close(lock)
        raise FolderHeldError(
            f"another producer works on the folder '{folder}'",
            detail=f"process {holder}" if holder else None,
            hint="end it, or give each producer a folder of its own",
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


Done = Callable[[Exception | None], None]


class Storer:
    """The thread that writes, and its queue: what waits when a transaction ends goes into the next one, in order."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: list[tuple[tuple[int, bytes] | QueueState, Done]] = []
        self._changed = Condition()
        self._closing = False
        self._thread = Thread(target=self._run, name="penstock-storer", daemon=True)
        self._thread.start()

    def store(self, what: tuple[int, bytes] | QueueState, done: Done) -> None:
        """Have an event or a state written; `done` is called by the storer's thread, in the order of the calls."""
        with self._changed:
            if not self._closing:
                self._waiting.append((what, done))
                self._changed.notify()
                return
        done(ProducerClosedError("this producer is closed", hint="make a new one"))

    def close(self) -> None:
        """Write what waits, then let go of the folder."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while group := self._next():
                self._write(group)
        finally:
            self._journal.close()

    def _next(self) -> list[tuple[tuple[int, bytes] | QueueState, Done]]:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            group, self._waiting = self._waiting, []
            return group

    def _write(self, group: list[tuple[tuple[int, bytes] | QueueState, Done]]) -> None:
        changes = JournalWrite()
        for what, _ in group:
            if isinstance(what, QueueState):
                changes.state = what
            else:
                changes.events.append(what)
        failure: Exception | None = None
        try:
            self._journal.write(changes)
        except Exception as error:
            failure = error
        for _, done in group:
            done(failure)
