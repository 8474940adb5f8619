"""What an SQLite file of the log looks like inside, how it is opened, and what its failures mean.

Tables: `meta` (format, app, term), `streams`, `schemas` (versions of a stream's columns), `commits`, `blocks` (where
each block stands, and its checksum), `payloads` (the bytes of a block: one Arrow IPC record batch message), `garbage`
(payloads that nobody refers to; removed bit by bit).

A block's place and its bytes are apart, so that compaction can swap the places of a whole range in one small
transaction, and so that listing blocks never touches their bytes.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from penstock.errors import (
    CorruptBlockError,
    DiskFullError,
    FolderMismatchError,
    LogUnavailableError,
    PenstockError,
)

FORMAT = 1
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

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS streams (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, epoch TEXT NOT NULL, partitions INTEGER NOT NULL,
    unique_ids INTEGER NOT NULL, counts TEXT NOT NULL, compact_by TEXT NOT NULL, starts TEXT NOT NULL,
    removed_bytes INTEGER NOT NULL DEFAULT 0, dropped INTEGER NOT NULL DEFAULT 0, UNIQUE (name, epoch));
CREATE TABLE IF NOT EXISTS schemas (
    stream INTEGER, version INTEGER, arrow BLOB NOT NULL, PRIMARY KEY (stream, version)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commits (
    stream INTEGER, number INTEGER, ends TEXT NOT NULL, rows INTEGER NOT NULL, total_rows INTEGER NOT NULL,
    bound_us INTEGER, max_us INTEGER, min_us INTEGER, written_us INTEGER NOT NULL, meta TEXT,
    bytes INTEGER NOT NULL, total_bytes INTEGER NOT NULL, PRIMARY KEY (stream, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    stream INTEGER, partition INTEGER, start INTEGER, piece INTEGER, stop INTEGER NOT NULL,
    number INTEGER NOT NULL, version INTEGER NOT NULL, rows INTEGER NOT NULL, merged INTEGER NOT NULL,
    bound_us INTEGER, written_us INTEGER NOT NULL, checksum INTEGER NOT NULL, payload INTEGER NOT NULL,
    PRIMARY KEY (stream, partition, start, piece)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS payloads (id INTEGER PRIMARY KEY, data BLOB NOT NULL, offsets BLOB);
CREATE TABLE IF NOT EXISTS garbage (payload INTEGER PRIMARY KEY);
"""

INSERT_BLOCK = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_HEADER = struct.Struct("<11q")


def checksum(
    stream: int,
    partition: int,
    start: int,
    piece: int,
    stop: int,
    number: int,
    version: int,
    rows: int,
    merged: int,
    bound_us: int | None,
    written_us: int,
    data: Any,
    offsets: Any,
) -> int:
    """Of a block's bytes and its place, so that bytes which turn up elsewhere are found out too."""
    bound = -(2**63) if bound_us is None else bound_us
    header = _HEADER.pack(stream, partition, start, piece, stop, number, version, rows, merged, bound, written_us)
    return zlib.crc32(offsets or b"", zlib.crc32(data, zlib.crc32(header)))


# Opening


def path_of(place: str) -> Path:
    """The file of a place such as `sqlite:///data/edge.db`."""
    return Path(os.fsdecode(unquote_to_bytes(urlsplit(place).path)))


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes durably: WAL, and an fsync in every commit."""
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


class Reading:
    """A connection that only reads, for as long as somebody holds it. Each of Python's own is held by its cache of
    statements too, and would stay open until the garbage collector comes by."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.pid = os.getpid()
        self.execute, self.cursor, self.close = connection.execute, connection.cursor, connection.close

    def __del__(self) -> None:
        if self.pid == os.getpid():  # the connection of another process is not ours to close
            self.close()


def open_reader(path: Path) -> Reading | None:
    """A connection that only reads, or None while there is no log at this path."""
    if not path.exists():  # SQLite takes ten times as long to say so, and followers ask every few milliseconds
        return None
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        if path.exists():
            raise translated(error, path) from error
        return None
    try:
        stored = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    except sqlite3.OperationalError as error:
        connection.close()
        if "no such table" in str(error):
            return None
        raise translated(error, path) from error
    except sqlite3.DatabaseError as error:
        connection.close()
        raise translated(error, path) from error
    if stored.get("format", FORMAT) > FORMAT:
        connection.close()
        raise _newer(path)
    connection.execute(f"PRAGMA mmap_size = {MMAP_BYTES}").fetchall()
    return Reading(connection)


def owner_of(path: Path) -> str | None:
    """The app whose log this is; None while there is none."""
    reader = open_reader(path)
    if reader is None:
        return None
    with failures(path), closing(reader):
        stored = reader.execute("SELECT value FROM meta WHERE key = 'app'").fetchone()
    return None if stored is None else str(stored[0])


def prepare(connection: sqlite3.Connection, path: Path, app: str) -> int:
    """Make the tables if need be, see that the file is this app's, and raise the term. Returns the new term."""
    with failures(path), transaction(connection):
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        stored = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        _check_owner(stored, path, app)
        term = int(stored.get("term", 0)) + 1
        facts = {"format": FORMAT, "app": app, "term": term}
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(facts.items()))
    _sync_folder(path.parent)
    return term


def _check_owner(stored: dict[str, Any], path: Path, app: str) -> None:
    if stored.get("format", FORMAT) > FORMAT:
        raise _newer(path)
    if stored.get("app", app) != app:
        raise FolderMismatchError(
            f"'{path}' belongs to the app '{stored['app']}', not to '{app}'",
            hint="give each app its own --data folder",
        )


def _newer(path: Path) -> FolderMismatchError:
    return FolderMismatchError(
        f"'{path}' was written by a newer Penstock", hint="run the version that wrote it, or a newer one"
    )


def _sync_folder(folder: Path) -> None:
    """A new file survives a power cut only if its folder was synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cut_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Give back the room of a WAL that readers let grow, unless one of them is at it just now."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > WAL_BYTES:
        with failures(path):
            connection.execute("PRAGMA busy_timeout = 0").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}").fetchall()


# Transactions and failures


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction: all of it or, when anything raises, nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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
