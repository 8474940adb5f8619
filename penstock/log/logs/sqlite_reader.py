"""Reads an SQLite log from any process and thread, while its writer writes or when there is none.

1. Every thread has its own connection, and every call sees all that was committed before it.
2. A page of blocks is read in one short look at the file, so that readers never keep the writer's WAL from being
   cut back. The exception is a compacted stream read from its beginning: that is one look, because half of it from
   before a compaction and half from behind would be neither.
3. Merged blocks are given only to a reader that begins at the stream's beginning: whoever stands inside the merged
   range would miss its deletes, and gets `PositionGoneError`.
4. Blocks must follow each other without a gap: one that is missing is an error, never a silent skip.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import CorruptBlockError, PositionGoneError
from penstock.evolution import adapt
from penstock.log.control import Recall
from penstock.log.log import CONTROL, Block, Bounds, Commit, Stream, Version
from penstock.log.logs.sqlite_file import Reading, checksum, failures, open_reader, path_of, translated

_PAGE_BLOCKS = 64
_PAGE_BYTES = 4 * 1024**2
"""A page ends with whichever comes first, so that neither many small blocks nor few large ones fill the memory."""
_FIRST_PAGE_BLOCKS = 8
"""The first page is small: most readers want the newest few blocks."""

_COMMIT = "number, ends, rows, total_rows, bound_us, max_us, min_us, written_us, meta, bytes"
_BLOCK = (
    "b.stream, b.partition, b.start, b.piece, b.stop, b.number, b.version, b.rows, b.merged, b.bound_us,"
    " b.written_us, b.checksum, p.data, p.offsets"
)
_FIRST_PAGE = f"""
SELECT {_BLOCK} FROM blocks b LEFT JOIN payloads p ON p.id = b.payload
WHERE b.stream = :stream AND b.partition = :partition AND b.start < :end AND b.start >= coalesce(
    (SELECT max(start) FROM blocks WHERE stream = :stream AND partition = :partition AND start <= :at), :at)
ORDER BY b.start, b.piece LIMIT :limit"""
_NEXT_PAGE = f"""
SELECT {_BLOCK} FROM blocks b LEFT JOIN payloads p ON p.id = b.payload
WHERE b.stream = :stream AND b.partition = :partition AND (b.start, b.piece) > (:start, :piece) AND b.start < :end
ORDER BY b.start, b.piece LIMIT :limit"""


class Stored(NamedTuple):
    """A block as it lies in the file."""

    stream: int
    partition: int
    start: int
    piece: int
    stop: int
    number: int
    version: int
    rows: int
    merged: int
    bound_us: int | None
    written_us: int
    checksum: int
    data: bytes | None
    offsets: bytes | None


class _Range(NamedTuple):
    """What one call of `read` asks for."""

    stream: Stream
    ident: int
    partition: int
    start: int
    end: int
    target: pa.Schema
    whole: bool


class SqliteReader:
    """A reader of one file."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.path = path_of(place)
        self._local = threading.local()
        self._memory_lock = threading.Lock()
        self._schemas: dict[tuple[int, int], pa.Schema] = {}
        self._recall = Recall()

    # Streams

    def streams(self) -> list[Stream]:
        return [self._stream(row) for row in self._rows(_STREAMS + " ORDER BY id")]

    def find(self, name: str, epoch: str | None = None) -> Stream | None:
        named = " AND name = ?" if epoch is None else " AND name = ? AND epoch = ?"
        values = (name,) if epoch is None else (name, epoch)
        rows = self._rows(f"{_STREAMS}{named} ORDER BY id DESC LIMIT 1", values)
        return self._stream(rows[0]) if rows else None

    def bounds(self, stream: Stream) -> Bounds:
        return self._bounds(stream)

    def _bounds(self, stream: Stream, look: Reading | None = None) -> Bounds:
        rows = self._rows(_BOUNDS, (stream.name, stream.epoch), look)
        if not rows:
            raise _gone(stream)
        starts, removed, first, last, ends, total_rows, total_bytes, max_us = rows[0]
        begin = tuple(msgspec.json.decode(starts))
        if last is None:
            return Bounds(begin, begin, 0, 0, 0, 0, None)
        behind = tuple(msgspec.json.decode(ends))
        return Bounds(begin, behind, first, last + 1, total_rows, total_bytes - removed, max_us)

    def _stream(self, row: Sequence[Any]) -> Stream:
        ident, name, epoch, partitions, unique, counts, compact_by, version, arrow = row
        if (ident, version) not in self._schemas:
            self._schemas[ident, version] = _read_schema(arrow)
        keys = tuple(msgspec.json.decode(compact_by))
        return Stream(name, epoch, partitions, bool(unique), counts, keys, self._schemas[ident, version], self.place)

    def versions(self, stream: Stream) -> list[Version]:
        ident = self.ident(stream)
        oldest = self._rows("SELECT min(version) FROM blocks WHERE stream = ?", (ident,))[0][0]
        rows = self._rows("SELECT version, arrow FROM schemas WHERE stream = ? ORDER BY version", (ident,))
        return [
            Version(number, _read_schema(arrow), made_us(arrow), oldest is not None and number >= oldest)
            for number, arrow in rows
        ]

    def schema(self, stream: Stream, ident: int, version: int) -> pa.Schema:
        """A version of a stream's schema, which never changes."""
        if (ident, version) not in self._schemas:
            rows = self._rows("SELECT arrow FROM schemas WHERE stream = ? AND version = ?", (ident, version))
            if not rows:
                self.ident(stream)  # it was dropped while it was read: that is told
                raise CorruptBlockError(f"a schema of the stream '{stream.name}' is missing", detail=str(self.path))
            self._schemas[ident, version] = _read_schema(rows[0][0])
        return self._schemas[ident, version]

    def ident(self, stream: Stream) -> int:
        """The number under which the file knows a stream; another one when it was dropped and made again."""
        rows = self._rows(_IDENT, (stream.name, stream.epoch))
        if not rows:
            raise _gone(stream)
        return int(rows[0][0])

    # Commits

    def commits(self, stream: Stream, start: int, end: int | None = None, limit: int | None = None) -> list[Commit]:
        rows = self._rows(
            f"SELECT {_COMMIT} FROM commits WHERE stream = ({_IDENT}) AND number >= ? AND number < ?"
            " ORDER BY number LIMIT ?",
            (stream.name, stream.epoch, start, 2**62 if end is None else end, -1 if limit is None else limit),
        )
        if not rows:
            self.ident(stream)  # one that was dropped is told
        return [_commit(row) for row in rows]

    def last_commit(self, stream: Stream, below: int | None = None) -> Commit | None:
        rows = self._rows(
            f"SELECT {_COMMIT} FROM commits WHERE stream = ? AND number < ? ORDER BY number DESC LIMIT 1",
            (self.ident(stream), 2**62 if below is None else below),
        )
        return _commit(rows[0]) if rows else None

    def commit_within(self, stream: Stream, start: int, rows: int) -> int:
        bounds = self.bounds(stream)
        low = max(start, bounds.first_commit)
        first = self.commits(stream, low, limit=1)
        if not first:
            return start
        before = first[0].total_rows - first[0].rows
        if not first[0].rows:
            filled = self.first_where(stream, low, bounds.next_commit, lambda commit: commit.total_rows > before)
            first = self.commits(stream, filled, limit=1) or first
        most = max(before + rows, first[0].total_rows)
        return self.first_where(stream, low + 1, bounds.next_commit, lambda commit: commit.total_rows > most)

    def first_where(self, stream: Stream, low: int, high: int, true: Callable[[Commit], bool]) -> int:
        """The first commit in [low, high) for which `true` holds, if it holds for all later ones too; else `high`.

        Numbers are dense, so the range is halved again and again: no scan over a million commits.
        """
        while low < high:
            middle = (low + high) // 2
            found = self.commits(stream, middle, limit=1)
            if found and not true(found[0]):
                low = middle + 1
            else:
                high = middle
        return low

    # Events

    def read(
        self,
        stream: Stream,
        partition: int,
        start: int,
        end: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Block]:
        bounds = self.bounds(stream)
        begin, behind = bounds.starts[partition], bounds.ends[partition]
        if start < begin:
            raise _gone(stream, f"it begins at {begin} and {start} was asked for")
        last = behind if end is None else min(end, behind)
        wanted = _Range(stream, self.ident(stream), partition, start, last, _target(stream, columns), False)
        if stream.compact_by and start == begin:
            return self._in_one_look(wanted._replace(whole=True), to_the_end=end is None)
        return self._in_pages(wanted)

    def is_merged(self, stream: Stream, commit: Commit) -> bool:
        """Whether a commit is one that compaction has made."""
        merged = "SELECT max(merged) FROM blocks WHERE stream = ? AND partition = ? AND start < ? AND number = ?"
        ident = self.ident(stream)
        places = [(ident, partition, end, commit.number) for partition, end in enumerate(commit.ends)]
        return any(self._rows(merged, place)[0][0] for place in places)

    def read_merged(self, stream: Stream, partition: int, end: int) -> Iterator[Block]:
        """From the beginning, merged blocks too, page by page: for the writer, which alone can merge meanwhile."""
        start = self.bounds(stream).starts[partition]
        return self._in_pages(_Range(stream, self.ident(stream), partition, start, end, stream.schema, True))

    def _in_one_look(self, wanted: _Range, to_the_end: bool) -> Iterator[Block]:
        look = open_reader(self.path)
        if look is None:
            return
        try:
            look.execute("BEGIN")
            if to_the_end:
                wanted = wanted._replace(end=self._bounds(wanted.stream, look).ends[wanted.partition])
            yield from self._in_pages(wanted, look)
        finally:
            look.close()

    def _in_pages(self, wanted: _Range, look: Reading | None = None) -> Iterator[Block]:
        """Page after page, each in a look of its own unless one is given."""
        at, last = wanted.start, None
        in_pieces = wanted.stream.counts == "commits"
        while at < wanted.end or (in_pieces and last is not None):
            page, is_last = self._page(wanted, look, at, last)
            for row in page:
                self._check_place(wanted, row, at, last)
                at, last = row.stop, row
                yield self._block(wanted, row)
            if is_last and at < wanted.end:
                raise self._lost(wanted, at)
            if is_last:
                return

    def _page(self, wanted: _Range, look: Reading | None, at: int, last: Stored | None) -> tuple[list[Stored], bool]:
        """The next blocks, and whether there are no more of this range: a commit is there with all its pieces."""
        values = {"stream": wanted.ident, "partition": wanted.partition, "at": at, "end": wanted.end}
        values["limit"] = _FIRST_PAGE_BLOCKS if last is None else _PAGE_BLOCKS
        if last is not None:
            values |= {"start": last.start, "piece": last.piece}
        connection = look or self._connection()
        if connection is None:
            return [], True
        with failures(self.path), closing(connection.cursor()) as rows:
            page = list(_up_to(rows.execute(_FIRST_PAGE if last is None else _NEXT_PAGE, values), _PAGE_BYTES))
            whole = sum(len(row.data or b"") for row in page) < _PAGE_BYTES
            return page, whole and len(page) < values["limit"]

    def _check_place(self, wanted: _Range, row: Stored, at: int, last: Stored | None) -> None:
        follows = row.start == at or (last is not None and row.start == last.start and row.piece == last.piece + 1)
        if not (row.start <= at < row.stop if last is None else follows):
            raise self._lost(wanted, at)
        if row.merged and not (wanted.whole and wanted.end >= row.stop):
            raise _gone(wanted.stream, f"what stood at {at} was merged with what came later")

    def _lost(self, wanted: _Range, at: int) -> PositionGoneError | CorruptBlockError:
        """Why no block follows at `at`: it was removed while we read, or it is missing."""
        begin = self.bounds(wanted.stream).starts[wanted.partition]
        if at < begin:
            return _gone(wanted.stream, f"it begins at {begin} now and {at} was to be read")
        return CorruptBlockError(
            f"the stream '{wanted.stream.name}' has no block for offset {at} of partition {wanted.partition}",
            detail=str(self.path),
            hint="restore the file from a copy",
        )

    def _block(self, wanted: _Range, row: Stored) -> Block:
        batch = adapt(self.decode(row, wanted.stream), wanted.target)
        start, end = max(row.start, wanted.start), min(row.stop, wanted.end)
        offsets = _offsets(row, wanted.stream)
        if (start, end) != (row.start, row.stop) and wanted.stream.counts == "events":
            batch = batch.slice(start - row.start, end - start)
            offsets = offsets.slice(start - row.start, end - start)
        return Block(row.partition, start, end, row.number, row.bound_us, row.written_us, batch, offsets)

    def decode(self, row: Stored, stream: Stream) -> pa.RecordBatch:
        """A stored block's events under the schema they were written with, once the checksum has been verified."""
        if row.data is None or _checksum(row) != row.checksum:
            raise CorruptBlockError(
                f"a block of the stream '{stream.name}' has another checksum than its bytes",
                detail=f"partition {row.partition}, offsets {row.start} to {row.stop}, in {self.path}",
                hint="the disk returned something else than was written; restore the file from a copy",
            )
        return pa.ipc.read_record_batch(pa.py_buffer(row.data), self.schema(stream, row.stream, row.version))

    # Memory and change

    def memory(self) -> Mapping[str, Any]:
        with self._memory_lock:
            stream = self.find(CONTROL)
            return self._recall.refreshed(self, stream) if stream else {}

    def revision(self) -> int:
        connection = self._connection()
        if connection is None:
            return -1
        try:
            ((version,),) = connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        return int(version)

    # Connections

    def close(self) -> None:
        """Lets all connections go, which closes them; one that a thread is using at this moment is closed when it has
        done so: SQLite does not survive the other way."""
        self._local = threading.local()

    def _rows(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = (), look: Reading | None = None) -> list[Any]:
        """The whole answer at once, so that no statement stays open and pins an old state of the file."""
        connection = look or self._connection()
        if connection is None:
            return []
        with failures(self.path):
            return connection.execute(sql, values).fetchall()

    def _connection(self) -> Reading | None:
        """This thread's own, which goes with it; another one after a fork, because SQLite's do not survive it."""
        mine: Reading | None = getattr(self._local, "mine", None)
        if mine is None or mine.pid != os.getpid():
            mine = open_reader(self.path)
            if mine is not None:
                self._local.mine = mine
        return mine


_STREAMS = """
SELECT id, name, epoch, partitions, unique_ids, counts, compact_by, version, arrow
FROM streams JOIN schemas ON stream = id AND version = (SELECT max(version) FROM schemas WHERE stream = id)
WHERE dropped = 0"""

_IDENT = "SELECT id FROM streams WHERE name = ? AND epoch = ? AND dropped = 0"

_BOUNDS = """
SELECT s.starts, s.removed_bytes, (SELECT min(number) FROM commits WHERE stream = s.id), c.number, c.ends,
       c.total_rows, c.total_bytes, c.max_us
FROM streams s LEFT JOIN commits c ON c.stream = s.id
     AND c.number = (SELECT max(number) FROM commits WHERE stream = s.id)
WHERE s.name = ? AND s.epoch = ? AND s.dropped = 0"""


MADE_US = b"penstock.made_us"
"""Metadata of a stored schema, and of no other: when it was declared."""


def _read_schema(arrow: bytes) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(arrow))
    rest = {key: value for key, value in (schema.metadata or {}).items() if key != MADE_US}
    return schema.with_metadata(rest or None)


def made_us(arrow: bytes) -> int | None:
    noted = (pa.ipc.read_schema(pa.py_buffer(arrow)).metadata or {}).get(MADE_US)
    return None if noted is None else int(noted)


def _target(stream: Stream, columns: Sequence[str] | None) -> pa.Schema:
    return stream.schema if columns is None else pa.schema([stream.schema.field(name) for name in columns])


def _up_to(rows: Iterable[Any], size: int) -> Iterator[Stored]:
    for row in rows:
        stored = Stored._make(row)
        yield stored
        size -= len(stored.data or b"")
        if size <= 0:
            return


def _commit(row: Sequence[Any]) -> Commit:
    number, ends, rows, total_rows, bound_us, max_us, min_us, written_us, meta, size = row
    behind = tuple(msgspec.json.decode(ends))
    facts = None if meta is None else msgspec.json.decode(meta)
    return Commit(number, behind, rows, total_rows, bound_us, max_us, min_us, written_us, facts, size)


def _checksum(row: Stored) -> int:
    return checksum(*row[:11], row.data, row.offsets)


def _offsets(row: Stored, stream: Stream) -> pa.Array:
    if row.offsets is not None:
        buffer = pa.py_buffer(row.offsets)
    elif stream.counts == "commits":
        buffer = pa.py_buffer(np.full(row.rows, row.start, np.int64))
    else:
        buffer = pa.py_buffer(np.arange(row.start, row.stop, dtype=np.int64))
    return pa.Array.from_buffers(pa.int64(), row.rows, [None, buffer])


def _gone(stream: Stream, detail: str | None = None) -> PositionGoneError:
    return PositionGoneError(
        f"the stream '{stream.name}' no longer holds what was asked for",
        detail=detail or f"there is no epoch '{stream.epoch}' of it",
        hint="begin again from its start",
    )
