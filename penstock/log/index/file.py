"""An index in an SQLite file: how it is opened, what its failures mean, and where it may lie.

1. A transaction is durable when it ends: WAL, and an fsync in every commit.
2. Every thread that reads has its own connection, and every question sees all that was committed before it.
3. A question is one short look at the file, so that readers never keep the writer's WAL from being cut back.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.errors import CorruptBlockError, DiskFullError, FolderMismatchError, LogUnavailableError, PenstockError
from penstock.log.index.tables import OLDER, Index, Look, Tables, Values, refuse_newer
from penstock.log.log import LogHealth, Writer

T = TypeVar("T")

PAGE_BYTES = 8192
"""Twice SQLite's default: half the frames of the WAL for a block of 100 kB, and still little for a single event."""
CHECKPOINT_PAGES = 2000
"""16 MiB of WAL: a checkpoint of that size takes a few milliseconds inside the commit that meets it."""
WAL_BYTES = 64 * 1024**2
"""What the WAL file is cut back to after readers held it up."""
CACHE_KIB = 8 * 1024
MMAP_BYTES = 1024**3
BUSY_S = 10.0
"""How long a writer waits for another that is just being replaced."""


class Reading:
    """A connection that only reads, for as long as somebody holds it. Each of Python's own is held by its cache of
    statements too, and would stay open until the garbage collector comes by."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.pid = os.getpid()
        self.execute, self.cursor, self.close = connection.execute, connection.cursor, connection.close
        self._path = path

    def __del__(self) -> None:
        if self.pid == os.getpid():  # the connection of another process is not ours to close
            self.close()

    def rows(self, sql: str, values: Values = ()) -> list[Any]:
        try:
            return self.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def some(self, sql: str, values: Values, take: Callable[[Iterable[Any]], list[T]]) -> list[T]:
        with failures(self._path), closing(self.cursor()) as cursor:
            return take(cursor.execute(sql, values))


class IndexFile:
    """The file as any process and thread reads it; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._local = threading.local()

    def rows(self, sql: str, values: Values = ()) -> list[Any]:
        connection = self._connection()
        return [] if connection is None else connection.rows(sql, values)

    def some(self, sql: str, values: Values, take: Callable[[Iterable[Any]], list[T]]) -> list[T]:
        connection = self._connection()
        return [] if connection is None else connection.some(sql, values, take)

    def revision(self) -> int:
        rows = self.rows("PRAGMA data_version")
        return int(rows[0][0]) if rows else -1

    def at_one_moment(self, work: Callable[[Look], Iterator[T]]) -> Iterator[T]:
        look = open_reader(self.path)
        if look is None:
            return
        with closing(look):
            look.execute("BEGIN")
            yield from work(look)

    def writer(self) -> Writer | None:
        """The locks of the folder tell."""
        return None

    def health(self) -> LogHealth:
        return LogHealth("sqlite", term=int(Index(self).meta().get("term", 0)), lag=0)

    def see_all(self) -> None:
        """Every question does."""

    def close(self) -> None:
        """Lets all connections go, which closes them; one that a thread is using at this moment is closed when it has
        done so: SQLite does not survive the other way."""
        self._local = threading.local()

    def _connection(self) -> Reading | None:
        """This thread's own, which goes with it; another one after a fork, because SQLite's do not survive it."""
        mine: Reading | None = getattr(self._local, "mine", None)
        if mine is None or mine.pid != os.getpid():
            mine = open_reader(self.path)
            if mine is not None:
                self._local.mine = mine
        return mine


class IndexFileWriter(IndexFile):
    """The file as its one writer has it."""

    answer_s = 20.0
    """Less than most clients wait, so that they hear what is the matter, and longer than any commit that a disk takes
    which works."""

    problem = None

    def check_turn(self) -> None:
        """Every transaction does."""

    def abandon(self) -> None:
        """A commit on a disk ends by itself."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path)
        self.connection = open_writer(path)
        self._clock = clock
        self.tables = Tables(self.connection, self.name)

    def claim(self, app: str) -> int:
        with self.transaction() as tables:
            term = tables.claim(app)
        _sync_folder(self.path.parent)
        return term

    @contextmanager
    def transaction(self, term: int | None = None) -> Iterator[Tables]:
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            if term is not None:
                self.tables.check_term(term)
            yield self.tables
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            failure = translated(error, self.path)
            if isinstance(failure, DiskFullError):
                self._overwrite_failure()
            raise failure from error

    def _overwrite_failure(self) -> None:
        """The WAL may hold frames of what failed behind its end, which a crash would bring back to life; a small
        transaction overwrites the first of them, and so the rest can never be read."""
        failed = ("failed_us", self._clock.now_us())
        with suppress(sqlite3.Error):
            self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", failed)

    def tidy(self) -> None:
        """Give back the room of a WAL that readers let grow, unless one of them is at it just now."""
        wal = self.path.with_name(self.path.name + "-wal")
        if wal.exists() and wal.stat().st_size > WAL_BYTES:
            with failures(self.path):
                self.connection.execute("PRAGMA busy_timeout = 0").fetchall()
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self.connection.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}").fetchall()

    def close(self) -> None:
        super().close()
        self.connection.close()


# Opening


def open_writer(path: Path) -> sqlite3.Connection:
    refuse_network(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with failures(path):
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}").fetchall()
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        except BaseException:
            connection.close()
            raise
        return connection


def _sync_folder(folder: Path) -> None:
    """A new file, and the WAL beside it, survives a power cut only if its folder was synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_reader(path: Path) -> Reading | None:
    """A connection that only reads, or None while there is no index at this path."""
    if not path.exists():  # SQLite takes ten times as long to say so, and followers ask every few milliseconds
        return None
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        if path.exists():
            raise translated(error, path) from error
        return None
    reading = Reading(connection, path)
    try:
        stored = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error):
            return None
        raise translated(error, path) from error
    refuse_newer(stored, str(path))
    connection.execute(f"PRAGMA mmap_size = {MMAP_BYTES}").fetchall()
    if stored.get("format") == 1:
        connection.execute("PRAGMA temp_store = MEMORY").fetchall()
        connection.execute(OLDER)
    return reading


def owner(path: Path) -> str | None:
    """The app whose index this is; None while there is none."""
    app = Index(IndexFile(path)).meta().get("app")
    return None if app is None else str(app)


# Failures


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """SQLite's errors as the log's."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, path) from error


def translated(error: sqlite3.Error, path: Path) -> PenstockError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    detail = f"{path}: {error}"
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return DiskFullError("the log's disk has no room", detail=detail, hint="free some space; then send again")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptBlockError("the log's file is damaged", detail=detail, hint="restore it from a copy")
    return LogUnavailableError("the log cannot be used now", detail=detail, hint="try again")


# Where the file may lie

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "fuse.sshfs", "9p", "lustre"})


def refuse_network(path: Path, mounts: str = "/proc/mounts") -> None:
    """WAL needs memory shared by all processes, and fsync that means it: network file systems give neither."""
    kind = _file_system(path, mounts)
    if kind in _NETWORK:
        raise FolderMismatchError(
            f"'{path.parent}' is on a network file system ({kind})", hint="put --data on a local disk"
        )


def _file_system(path: Path, mounts: str) -> str | None:
    try:
        lines = [line.split() for line in Path(mounts).read_text().splitlines()]
    except OSError:
        return None
    where = Path(os.path.realpath(path))
    found = [(len(fields[1]), fields[2]) for fields in lines if where.is_relative_to(_unescaped(fields[1]))]
    return max(found)[1] if found else None


def _unescaped(mount: str) -> str:
    return mount.replace("\\040", " ")
