"""What an index is: the SQLite tables that know everything of a log but its events, and every statement on them.

- `meta`: format, app, term
- `streams` and `schemas`: the versions of their columns
- `commits`
- `blocks`: where each stands, its checksum, and the number of its *payload*, which is its bytes: one Arrow message
- `payloads`: the bytes of those blocks that the index holds itself
- `places`: where the bytes of the others lie
- `garbage`: payloads that nobody refers to, removed bit by bit

What says where a block stands and its bytes are apart, so that compaction can swap a whole range in one small
transaction, so that listing blocks never touches their bytes, and so that the bytes may lie elsewhere.

The tables lie in a `Database`: a file (`file.py`) or the memory of a process (`logs/memory.py`). `Index` asks, `Tables`
changes: by data alone, so that whoever has only heard of a commit can apply it as its writer does.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec
import pyarrow as pa

from penstock.errors import FolderMismatchError, PenstockError, StaleTermError
from penstock.log.log import Bounds, Commit, LogHealth, Stream, StreamSpec, Writer

T = TypeVar("T")
Values = Sequence[Any] | Mapping[str, Any]

FORMAT = 2
"""1: commits did not say how far their stream is complete."""

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
    bytes INTEGER NOT NULL, total_bytes INTEGER NOT NULL, earliest_us INTEGER, complete_us INTEGER,
    PRIMARY KEY (stream, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    stream INTEGER, partition INTEGER, start INTEGER, piece INTEGER, stop INTEGER NOT NULL,
    number INTEGER NOT NULL, version INTEGER NOT NULL, rows INTEGER NOT NULL, merged INTEGER NOT NULL,
    bound_us INTEGER, written_us INTEGER NOT NULL, checksum INTEGER NOT NULL, payload INTEGER NOT NULL,
    PRIMARY KEY (stream, partition, start, piece)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS payloads (id INTEGER PRIMARY KEY, data BLOB NOT NULL, offsets BLOB);
CREATE TABLE IF NOT EXISTS places (
    payload INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS garbage (payload INTEGER PRIMARY KEY);
"""


COMPLETENESS = ("earliest_us", "complete_us")
"""Columns of `commits` that a file of format 1 does not have."""
OLDER = "CREATE TEMP VIEW commits AS SELECT *, NULL AS earliest_us, NULL AS complete_us FROM main.commits"
"""For who may only read such a file. When its writer adds the columns, `*` has them, and the first of a name counts."""


class Stored(NamedTuple):
    """A block as the index has it."""

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
    payload: int
    data: bytes | None = None
    """None: the index does not hold it; `Payloads.get` does."""
    offsets: bytes | None = None
    """Of each row, where compaction has left gaps."""
    earliest_us: int | None = None
    """Of its commit."""


_HEADER = struct.Struct("<11q")


def checksum(facts: Sequence[Any], data: Any, offsets: Any) -> int:
    """Of a block's bytes and of what is known of it (the fields of `Stored` before the checksum), so that bytes which
    turn up elsewhere are found out too."""
    bound = -(2**63) if facts[9] is None else facts[9]
    header = _HEADER.pack(*facts[:9], bound, facts[10])
    return zlib.crc32(offsets or b"", zlib.crc32(data, zlib.crc32(header)))


class BlockPlace(NamedTuple):
    """Where the bytes of a payload lie, if not in the index."""

    payload: int
    topic: str
    partition: int
    position: int


class Payloads(Protocol):
    """Where the bytes of blocks lie, by number."""

    def put(self, stream: Stream, partition: int, data: pa.Buffer, offsets: bytes | None) -> int:
        """Keep the bytes of a block; gives their number. Inside a transaction of the index, and undone with it."""

    def get(self, block: Stored) -> tuple[Any, bytes | None] | None:
        """The bytes and offsets of a block that the index does not hold itself; None: they are gone."""

    def remove(self, numbers: Sequence[int]) -> None:
        """Inside a transaction of the index, and undone with it."""


@runtime_checkable
class ElsewherePayloads(Payloads, Protocol):
    """Those that any process can read that knows where they lie."""

    def fetch(self, *place: Any) -> tuple[Any, bytes | None] | None:
        """The bytes and offsets at a place, as `Index.places` gives it; None: they are gone."""


class Look(Protocol):
    """The tables as of one moment, or as they are at each question."""

    def rows(self, sql: str, values: Values = ()) -> list[Any]:
        """The whole answer at once, so that no statement stays open and pins an old state; nothing where there is no
        index yet."""

    def some(self, sql: str, values: Values, take: Callable[[Iterable[Any]], list[T]]) -> list[T]:
        """The same, but what is behind the rows that `take` has taken is never read."""


class Database(Look, Protocol):
    """Where the tables lie. Any thread may ask, at any time."""

    @property
    def name(self) -> str:
        """For messages to people."""

    def revision(self) -> int:
        """A number that differs when anything was committed since the last call in this thread."""

    def at_one_moment(self, work: Callable[[Look], Iterator[T]]) -> Iterator[T]:
        """What `work` gives for the tables as they are when the first of it is asked for."""

    def writer(self) -> Writer | None:
        """See `LogReader.writer`."""

    def see_all(self) -> None:
        """See `LogReader.see_all`."""

    def health(self) -> LogHealth:
        """See `LogReader.health`."""

    def close(self) -> None: ...


class WritableDatabase(Database, Protocol):
    """The same for the one writer: called from one thread at a time."""

    answer_s: float
    """See `Log.answer_s`."""

    @property
    def problem(self) -> PenstockError | None:
        """See `Log.problem`."""

    def check_turn(self) -> None:
        """See `Log.check_turn`."""

    def abandon(self) -> None:
        """See `Log.abandon`."""

    def claim(self, app: str) -> int:
        """Become the writer of this app's index, which is made if need be: gives the new term."""

    def transaction(self, term: int | None = None) -> AbstractContextManager[Tables]:
        """A write transaction: all of it, durable when it ends, or nothing when it raises. Raises `StaleTermError` when
        the term is not this one any more."""

    def tidy(self) -> None:
        """Give back room that readers have made the database take."""


# Questions

_COMMIT = "number, ends, rows, total_rows, bound_us, max_us, min_us, written_us, meta, bytes, earliest_us, complete_us"
_BLOCK = (
    "b.stream, b.partition, b.start, b.piece, b.stop, b.number, b.version, b.rows, b.merged, b.bound_us,"
    " b.written_us, b.checksum, b.payload, p.data, p.offsets, c.earliest_us"
)
_BLOCKS = (
    "blocks b LEFT JOIN payloads p ON p.id = b.payload"
    " LEFT JOIN commits c ON c.stream = b.stream AND c.number = b.number"
)
_FIRST_PAGE = f"""
SELECT {_BLOCK} FROM {_BLOCKS}
WHERE b.stream = :stream AND b.partition = :partition AND b.start < :end AND b.start >= coalesce(
    (SELECT max(start) FROM blocks WHERE stream = :stream AND partition = :partition AND start <= :at), :at)
ORDER BY b.start, b.piece LIMIT :limit"""
_NEXT_PAGE = f"""
SELECT {_BLOCK} FROM {_BLOCKS}
WHERE b.stream = :stream AND b.partition = :partition AND (b.start, b.piece) > (:start, :piece) AND b.start < :end
ORDER BY b.start, b.piece LIMIT :limit"""

_STREAMS = """
SELECT id, name, epoch, partitions, unique_ids, counts, compact_by, version, arrow
FROM streams JOIN schemas ON stream = id AND version = (SELECT max(version) FROM schemas WHERE stream = id)
WHERE dropped = 0"""

_IDENT = "SELECT id FROM streams WHERE name = ? AND epoch = ? AND dropped = 0"

_BOUNDS = """
SELECT s.id, s.starts, s.removed_bytes, (SELECT min(number) FROM commits WHERE stream = s.id), c.number, c.ends,
       c.total_rows, c.total_bytes, c.max_us, c.complete_us
FROM streams s LEFT JOIN commits c ON c.stream = s.id
     AND c.number = (SELECT max(number) FROM commits WHERE stream = s.id)
WHERE s.name = ? AND s.epoch = ? AND s.dropped = 0"""


_ASKED_AT_ONCE = 500
"""Values in one question: SQLite takes 999."""


class Index:
    """Asks the tables. Streams go by their name and epoch, or by the number under which the index knows them."""

    def __init__(self, look: Look) -> None:
        self._rows = look.rows
        self._some = look.some

    def meta(self) -> dict[str, Any]:
        return dict(self._rows("SELECT key, value FROM meta"))

    def streams(self, name: str | None = None, epoch: str | None = None) -> list[Any]:
        """All, oldest first; or the one of that name (and epoch) that was made last."""
        if name is None:
            return self._rows(_STREAMS + " ORDER BY id")
        named = " AND name = ?" if epoch is None else " AND name = ? AND epoch = ?"
        values = (name,) if epoch is None else (name, epoch)
        return self._rows(f"{_STREAMS}{named} ORDER BY id DESC LIMIT 1", values)

    def ident(self, stream: Stream) -> int | None:
        rows = self._rows(_IDENT, (stream.name, stream.epoch))
        return int(rows[0][0]) if rows else None

    def bounds(self, stream: Stream) -> tuple[int, Bounds] | None:
        """The stream's number, and where it begins and ends; None: there is none."""
        rows = self._rows(_BOUNDS, (stream.name, stream.epoch))
        if not rows:
            return None
        ident, starts, removed, first, last, ends, total_rows, total_bytes, max_us, complete_us = rows[0]
        begin = tuple(msgspec.json.decode(starts))
        if last is None:
            return ident, Bounds(begin, begin, 0, 0, 0, 0, None)
        behind = tuple(msgspec.json.decode(ends))
        return ident, Bounds(begin, behind, first, last + 1, total_rows, total_bytes - removed, max_us, complete_us)

    def schemas(self, ident: int) -> list[tuple[int, bytes]]:
        return self._rows("SELECT version, arrow FROM schemas WHERE stream = ? ORDER BY version", (ident,))

    def schema(self, ident: int, version: int) -> bytes | None:
        rows = self._rows("SELECT arrow FROM schemas WHERE stream = ? AND version = ?", (ident, version))
        return rows[0][0] if rows else None

    def newest_version(self, ident: int) -> int:
        return int(self._rows("SELECT max(version) FROM schemas WHERE stream = ?", (ident,))[0][0])

    def oldest_version_held(self, ident: int) -> int | None:
        """The oldest version under which a block that is there was stored."""
        rows = self._rows("SELECT min(version) FROM blocks WHERE stream = ?", (ident,))
        return rows[0][0] if rows else None

    def commits(self, stream: Stream, start: int, end: int | None, limit: int | None) -> list[Commit]:
        rows = self._rows(
            f"SELECT {_COMMIT} FROM commits WHERE stream = ({_IDENT}) AND number >= ? AND number < ?"
            " ORDER BY number LIMIT ?",
            (stream.name, stream.epoch, start, 2**62 if end is None else end, -1 if limit is None else limit),
        )
        return [_commit(row) for row in rows]

    def last_commit(self, ident: int, below: int | None) -> Commit | None:
        rows = self._rows(
            f"SELECT {_COMMIT} FROM commits WHERE stream = ? AND number < ? ORDER BY number DESC LIMIT 1",
            (ident, 2**62 if below is None else below),
        )
        return _commit(rows[0]) if rows else None

    def total_bytes(self, ident: int, number: int) -> int:
        """Bytes of the stream up to and with a commit; 0 where there is none."""
        rows = self._rows("SELECT total_bytes FROM commits WHERE stream = ? AND number = ?", (ident, number))
        return int(rows[0][0]) if rows else 0

    def first_blocks(self, ident: int, partition: int, at: int, end: int, limit: int, size: int) -> list[Stored]:
        """From the block that holds the offset `at`, or the first behind it, until they are so many or so large."""
        values = {"stream": ident, "partition": partition, "at": at, "end": end, "limit": limit}
        return self._some(_FIRST_PAGE, values, lambda rows: _up_to(rows, size))

    def blocks_behind(self, last: Stored, end: int, limit: int, size: int) -> list[Stored]:
        values = {"stream": last.stream, "partition": last.partition, "start": last.start, "piece": last.piece}
        return self._some(_NEXT_PAGE, {**values, "end": end, "limit": limit}, lambda rows: _up_to(rows, size))

    def holds(self, block: Stored) -> bool:
        """Whether a block still stands where it stood, with the same bytes."""
        sql = "SELECT 1 FROM blocks WHERE stream = ? AND partition = ? AND start = ? AND piece = ? AND payload = ?"
        return bool(self._rows(sql, (*block[:4], block.payload)))

    def is_merged(self, ident: int, commit: Commit) -> bool:
        """Whether a commit is one that compaction has made."""
        sql = "SELECT max(merged) FROM blocks WHERE stream = ? AND partition = ? AND start < ? AND number = ?"
        each = [(ident, partition, end, commit.number) for partition, end in enumerate(commit.ends)]
        return any(self._rows(sql, values)[0][0] for values in each)

    def hidden(self) -> list[int]:
        """Streams whose removal a crash has interrupted, or that is under way."""
        return [row[0] for row in self._rows("SELECT id FROM streams WHERE dropped = 1")]

    def blocks(self, ident: int, limit: int) -> list[Any]:
        """Of blocks in no order: payload, bytes as far as the index holds them, rows, partition, start and piece."""
        sql = (
            "SELECT payload, length(data), rows, partition, start, piece"
            " FROM blocks LEFT JOIN payloads ON id = payload WHERE stream = ? LIMIT ?"
        )
        return self._rows(sql, (ident, limit))

    def commit_behind(self, ident: int, oldest: int) -> int | None:
        """The number of the commit behind so many of a stream's oldest."""
        sql = "SELECT number FROM commits WHERE stream = ? ORDER BY number LIMIT 1 OFFSET ?"
        rows = self._rows(sql, (ident, oldest))
        return rows[0][0] if rows else None

    def place(self, payload: int) -> BlockPlace | None:
        """Where the bytes of a payload lie; None: they are gone, or in the index itself."""
        rows = self._rows("SELECT payload, topic, partition, position FROM places WHERE payload = ?", (payload,))
        return BlockPlace._make(rows[0]) if rows else None

    def places(self, payloads: Sequence[int]) -> dict[int, BlockPlace]:
        """The same for many, by number; without those that are gone, or in the index itself."""
        found: dict[int, BlockPlace] = {}
        for at in range(0, len(payloads), _ASKED_AT_ONCE):
            some = payloads[at : at + _ASKED_AT_ONCE]
            asked = ", ".join("?" * len(some))
            rows = self._rows(
                f"SELECT payload, topic, partition, position FROM places WHERE payload IN ({asked})", some
            )
            found |= {row[0]: BlockPlace._make(row) for row in rows}
        return found

    def first_position(self, topic: str, partition: int) -> int | None:
        """The first position of a topic's partition at which something lies that is still wanted."""
        rows = self._rows("SELECT min(position) FROM places WHERE topic = ? AND partition = ?", (topic, partition))
        return rows[0][0] if rows else None

    def garbage(self, limit: int) -> list[Any]:
        """Payloads that nobody refers to, and their bytes as far as the index holds them."""
        return self._rows(
            "SELECT payload, length(data) FROM garbage LEFT JOIN payloads ON id = payload LIMIT ?", (limit,)
        )


def _commit(row: Sequence[Any]) -> Commit:
    number, ends, rows, total_rows, bound_us, max_us, min_us, written_us, meta, *more = row
    behind = tuple(msgspec.json.decode(ends))
    facts = None if meta is None else msgspec.json.decode(meta)
    return Commit(number, behind, rows, total_rows, bound_us, max_us, min_us, written_us, facts, *more)


def _up_to(rows: Iterable[Any], size: int) -> list[Stored]:
    page = []
    for row in rows:
        page.append(stored := Stored._make(row))
        size -= len(stored.data or b"")
        if size <= 0:
            break
    return page


# Changes


class Connection(Protocol):
    """What is needed of Python's."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...


class Tables:
    """The tables within a write transaction."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._execute = connection.execute
        self._each = connection.executemany
        self._name = name

    # Whose log it is

    def claim(self, app: str, copies: bool = False) -> int:
        """Make the tables if need be, see that they are this app's, and raise the term. Gives the new term. `copies`:
        by whoever copies another log into them."""
        self.make()
        stored = dict(self._execute("SELECT key, value FROM meta").fetchall())
        refuse_newer(stored, self._name)
        if stored.get("app", app) != app:
            raise FolderMismatchError(
                f"'{self._name}' belongs to the app '{stored['app']}', not to '{app}'",
                hint="give each app its own --data folder",
            )
        if "copying" in stored and not copies:
            raise FolderMismatchError(
                f"'{self._name}' is a copy of another log that is not finished",
                hint="finish it: the same `penstock log copy` again goes on where it stopped",
            )
        term = int(stored.get("term", 0)) + 1
        facts = {"format": FORMAT, "app": app, "term": term}
        self._each("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(facts.items()))
        return term

    def make(self) -> None:
        """The tables that are not there yet."""
        for statement in _TABLES.split(";"):
            self._execute(statement)
        there = {column[1] for column in self._execute("PRAGMA table_info(commits)").fetchall()}
        for name in COMPLETENESS:
            if name not in there:
                self._execute(f"ALTER TABLE commits ADD COLUMN {name} INTEGER")

    def note(self, key: str, value: Any) -> None:
        """Something that `meta` holds beside whose log it is."""
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def mark_copy(self, source: str, done: bool) -> None:
        """That these tables become a copy of another log, or have become one."""
        self._execute("DELETE FROM meta WHERE key = 'copying'")
        self.note("copied" if done else "copying", source)

    def check_term(self, term: int) -> None:
        stored = self._execute("SELECT value FROM meta WHERE key = 'term'").fetchall()[0][0]
        if stored != term:
            raise StaleTermError(
                f"another writer has taken over '{self._name}'",
                detail=f"this writer's term is {term}, the log's is {stored}",
                hint="stop this process",
            )

    # Streams

    def add_stream(self, spec: StreamSpec, epoch: str, schema: bytes) -> None:
        layout = (spec.partitions, spec.unique, spec.counts, _json(spec.compact_by), _json([0] * spec.partitions))
        made = self._execute(
            "INSERT INTO streams (name, epoch, partitions, unique_ids, counts, compact_by, starts)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (spec.name, epoch, *layout),
        )
        self.add_schema(made.lastrowid, 1, schema)

    def ident(self, name: str, epoch: str) -> int:
        """The number of a stream, as this transaction sees it."""
        return int(self._execute(_IDENT, (name, epoch)).fetchall()[0][0])

    def add_schema(self, ident: int, version: int, schema: bytes) -> None:
        self._execute("INSERT INTO schemas VALUES (?, ?, ?)", (ident, version, schema))

    def change_stream(self, ident: int, *, unique: bool, compact_by: Sequence[str]) -> None:
        self._execute(
            "UPDATE streams SET unique_ids = ?, compact_by = ? WHERE id = ?", (unique, _json(compact_by), ident)
        )

    def hide(self, ident: int) -> None:
        """Take a stream away from readers. Its name and epoch are free again at once."""
        self._execute("UPDATE streams SET dropped = 1, epoch = epoch || '/' || id WHERE id = ?", (ident,))

    def remove_stream(self, ident: int) -> None:
        """What is left of a hidden stream that has no blocks any more."""
        self._execute("DELETE FROM commits WHERE stream = ?", (ident,))
        self._execute("DELETE FROM schemas WHERE stream = ?", (ident,))
        self._execute("DELETE FROM streams WHERE id = ?", (ident,))

    # Commits and blocks

    def add_commit(self, ident: int, commit: Commit, total_bytes: int) -> None:
        times = (commit.bound_us, commit.max_us, commit.min_us, commit.written_us)
        meta = None if commit.meta is None else _json(commit.meta)
        self._execute(
            "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(ident, commit.number, _json(commit.ends), commit.rows, commit.total_rows),
                *(*times, meta, commit.bytes, total_bytes, commit.earliest_us, commit.complete_us),
            ),
        )

    def add_block(self, block: Stored) -> None:
        self._execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", block[:13])

    def remove_below(self, ident: int, ends: Sequence[int]) -> list[int]:
        """Remove the blocks before these offsets; gives the numbers of their payloads."""
        numbers: list[int] = []
        for below in _below(ident, ends):
            numbers += [row[0] for row in self._execute(f"SELECT payload {_BELOW}", below).fetchall()]
            self._execute(f"DELETE {_BELOW}", below)
        return numbers

    def discard_below(self, ident: int, ends: Sequence[int]) -> None:
        """The same, for as many as there are: their payloads become garbage."""
        for below in _below(ident, ends):
            self._execute(f"INSERT INTO garbage SELECT payload {_BELOW}", below)
            self._execute(f"DELETE {_BELOW}", below)

    def remove_blocks(self, ident: int, blocks: Sequence[Sequence[int]]) -> None:
        """By partition, start and piece."""
        sql = "DELETE FROM blocks WHERE stream = ? AND partition = ? AND start = ? AND piece = ?"
        self._each(sql, [(ident, *block) for block in blocks])

    def remove_commits(self, ident: int, before: int) -> None:
        self._execute("DELETE FROM commits WHERE stream = ? AND number < ?", (ident, before))

    def begin_at(self, ident: int, starts: Sequence[int], removed_bytes: int) -> None:
        """The stream begins at these offsets from now on, and so many bytes less are its own."""
        self._execute(
            "UPDATE streams SET starts = ?, removed_bytes = removed_bytes + ? WHERE id = ?",
            (_json(starts), removed_bytes, ident),
        )

    def merge_commits(self, ident: int, number: int, rows: int, bound_us: int | None, size: int) -> None:
        """Let the commit `number` stand for itself and all before it."""
        up_to = (ident, number)
        sums = "SELECT sum(bytes), min(min_us) FROM commits WHERE stream = ? AND number <= ?"
        old_size, min_us = self._execute(sums, up_to).fetchall()[0]
        self.remove_commits(ident, number)
        self._execute(
            "UPDATE commits SET rows = ?, bound_us = ?, min_us = ?, bytes = ? WHERE stream = ? AND number = ?",
            (rows, bound_us, min_us, size, *up_to),
        )
        self._execute("UPDATE streams SET removed_bytes = removed_bytes + ? WHERE id = ?", (old_size - size, ident))

    # Payloads

    def last_payload(self) -> int:
        newest = (
            "SELECT max(coalesce((SELECT max(id) FROM payloads), 0), coalesce((SELECT max(payload) FROM places), 0))"
        )
        return int(self._execute(newest).fetchall()[0][0])

    def add_places(self, places: Sequence[BlockPlace]) -> None:
        self._each("INSERT INTO places VALUES (?, ?, ?, ?)", places)

    def remove_places(self, numbers: Sequence[int]) -> None:
        self._each("DELETE FROM places WHERE payload = ?", [(number,) for number in numbers])

    def add_payload(self, number: int, data: pa.Buffer, offsets: bytes | None) -> None:
        self._execute("INSERT INTO payloads VALUES (?, ?, ?)", (number, data, offsets))

    def remove_payloads(self, numbers: Sequence[int]) -> None:
        self._each("DELETE FROM payloads WHERE id = ?", [(number,) for number in numbers])

    def add_garbage(self, numbers: Sequence[int]) -> None:
        self._each("INSERT INTO garbage VALUES (?)", [(number,) for number in numbers])

    def remove_garbage(self, numbers: Sequence[int]) -> None:
        self._each("DELETE FROM garbage WHERE payload = ?", [(number,) for number in numbers])


_BELOW = "FROM blocks WHERE stream = ? AND partition = ? AND start < ?"


def _below(ident: int, ends: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(ident, partition, end) for partition, end in enumerate(ends)]


def refuse_newer(meta: Mapping[str, Any], name: str) -> None:
    if meta.get("format", FORMAT) > FORMAT:
        raise FolderMismatchError(
            f"'{name}' was written by a newer Penstock", hint="run the version that wrote it, or a newer one"
        )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
