"""The log of one machine: an SQLite file in which every commit is a transaction and every block an Arrow record batch.

1. A commit is one transaction with an fsync: when `append` returns it is durable, when it raises it is not there, and
   what this object knows in memory changes only after the transaction is through.
2. The term is checked inside every transaction, so a writer that was replaced cannot write, not even once.
3. The log is its own index of ids and producers: both are rebuilt from it, and no side table can disagree with it.
4. Removing is logical first, in one small transaction, and physical afterwards, in slices: a crash in between leaves
   garbage, never a stream that is half there.

It serves one machine. Network file systems are refused; many machines are Kafka's job.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.clock import Clock, SystemClock
from penstock.errors import DiskFullError, PositionGoneError, SchemaChangeError, StaleTermError
from penstock.log import control
from penstock.log.control import Memory, Producers
from penstock.log.draft import Draft, Plan, Planner, Tail, draft
from penstock.log.ids import HORIZON, IdIndex
from penstock.log.log import Append, Appended, Stream, StreamSpec
from penstock.log.logs.sqlite_file import checksum, failures, open_writer, prepare, transaction, translated
from penstock.log.logs.sqlite_reader import SqliteReader
from penstock.log.logs.sqlite_removal import INSERT_BLOCK, Removal, survey
from penstock.schema import ID, changes_refused


class SqliteLog(SqliteReader):
    """The writer of one file; it reads as `SqliteReader` does."""

    def __init__(self, path: Path, connection: sqlite3.Connection, term: int, clock: Clock) -> None:
        super().__init__(path)
        self._writer = connection
        self._term = term
        self._clock = clock
        self._tails: dict[tuple[str, str], Tail] = {}
        self._values: dict[str, Any] = {}
        self._producers = Producers()
        self._planner = Planner(self._tail, self._producers)
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        self._payload = self._last_payload()
        self._removal = Removal(self, connection, self._transaction, self._next_payload)

    @classmethod
    def open(cls, path: Path, *, app: str, clock: Clock | None = None) -> SqliteLog:
        """Become the writer of this file: raises its term, so that any other writer's next append fails."""
        connection = open_writer(path)
        try:
            term = prepare(connection, path, app)
            log = cls(path, connection, term, clock or SystemClock())
            log._load_control()
            return log
        except BaseException:
            connection.close()
            raise

    @staticmethod
    def reader(path: Path) -> SqliteReader:
        """A reader of this file, which need not exist yet."""
        return SqliteReader(path)

    @property
    def term(self) -> int:
        return self._term

    def close(self) -> None:
        super().close()
        self._writer.close()

    def memory(self) -> Mapping[str, Any]:
        return Memory(self._values)

    # Making streams

    def create(self, spec: StreamSpec) -> Stream:
        _refuse_dictionaries(spec.schema)
        there = self.find(spec.name, spec.epoch)
        if there is None:
            return self._make(spec)
        _refuse_layout(there, spec)
        if not there.schema.equals(spec.schema, check_metadata=True):
            self._add_schema(there, spec.schema)
        if (there.unique, there.compact_by) != (spec.unique, spec.compact_by):
            with self._transaction():
                self._writer.execute(
                    "UPDATE streams SET unique_ids = ?, compact_by = ? WHERE id = ?",
                    (spec.unique, _json(spec.compact_by), self._ident(there)),
                )
        self._tails.pop((there.name, there.epoch), None)
        found = self.find(spec.name, there.epoch)
        assert found is not None
        return found

    def _make(self, spec: StreamSpec) -> Stream:
        epoch = spec.epoch or secrets.token_hex(6)
        starts = [0] * spec.partitions
        with self._transaction():
            made = self._writer.execute(
                "INSERT INTO streams (name, epoch, partitions, unique_ids, counts, compact_by, starts)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    spec.name,
                    epoch,
                    spec.partitions,
                    spec.unique,
                    spec.counts,
                    _json(spec.compact_by),
                    _json(starts),
                ),
            )
            self._writer.execute("INSERT INTO schemas VALUES (?, 1, ?)", (made.lastrowid, _stored(spec.schema)))
        found = self.find(spec.name, epoch)
        assert found is not None
        return found

    def _add_schema(self, stream: Stream, schema: pa.Schema) -> None:
        """A new version, if all events that the stream still holds can be read under it."""
        ident = self._ident(stream)
        versions = self._rows("SELECT version FROM schemas WHERE stream = ? ORDER BY version", (ident,))
        oldest = self._rows("SELECT min(version) FROM blocks WHERE stream = ?", (ident,))[0][0]
        for (version,) in versions:
            if oldest is not None and version >= oldest:
                _refuse_schema(stream, self._schema(ident, version), schema)
        with self._transaction():
            self._writer.execute("INSERT INTO schemas VALUES (?, ?, ?)", (ident, versions[-1][0] + 1, _stored(schema)))

    # Appending

    def append(
        self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None
    ) -> list[Appended | Exception]:
        now_us = self._clock.now_us()
        plan = self._planner.plan(appends, remember or {}, now_us)
        drafts = list(plan.drafts)
        if plan.memory:
            drafts.append(draft(self._control(), control.rows(plan.memory), None, now_us))
        try:
            if drafts:
                self._write(drafts)
        except BaseException:
            _each_index(plan, IdIndex.discard)
            raise
        for made in drafts:
            self._tails[made.after.stream.name, made.after.stream.epoch] = made.after
        _each_index(plan, IdIndex.commit)
        control.apply(self._values, plan.memory)
        marks = {key: value for key, value in plan.memory.items() if key.startswith(control.PRODUCER)}
        self._producers.apply(marks, now_us)
        return plan.results

    def _write(self, drafts: Sequence[Draft]) -> None:
        payload = self._payload
        with self._transaction():
            for made in drafts:
                payload = self._write_draft(made, payload)
        self._payload = payload

    def _write_draft(self, made: Draft, payload: int) -> int:
        commit, stream = made.commit, made.after.stream
        ident, version = self._places[stream.name, stream.epoch]
        for piece in made.pieces:
            payload += 1
            place = (ident, piece.partition, piece.start, piece.piece, piece.stop, commit.number, version)
            facts = (piece.rows, 0, commit.bound_us, commit.written_us)
            check = checksum(*place, *facts, piece.data, None)
            self._writer.execute("INSERT INTO payloads VALUES (?, ?, NULL)", (payload, piece.data))
            self._writer.execute(INSERT_BLOCK, (*place, *facts, check, payload))
        self._writer.execute(
            _INSERT_COMMIT,
            (
                ident,
                commit.number,
                _json(commit.ends),
                commit.rows,
                commit.total_rows,
                commit.bound_us,
                commit.max_us,
                commit.min_us,
                commit.written_us,
                None if commit.meta is None else _json(commit.meta),
                commit.bytes,
                made.after.total_bytes,
            ),
        )
        return payload

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A write transaction of this term. After a failure the WAL may hold frames of it behind its end, which a
        crash would bring back to life; a small transaction overwrites the first of them."""
        try:
            with transaction(self._writer):
                self._check_term()
                yield
        except sqlite3.Error as error:
            failure = translated(error, self.path)
            if isinstance(failure, DiskFullError):
                with suppress(sqlite3.Error), transaction(self._writer):
                    self._writer.execute("INSERT OR REPLACE INTO meta VALUES ('failed_us', ?)", (self._clock.now_us(),))
            raise failure from error

    def _check_term(self) -> None:
        stored = self._writer.execute("SELECT value FROM meta WHERE key = 'term'").fetchall()[0][0]
        if stored != self._term:
            raise StaleTermError(
                f"another writer has taken over '{self.path.name}'",
                detail=f"this writer's term is {self._term}, the log's is {stored}",
                hint="stop this process",
            )

    # Removing

    def trim(self, stream: Stream, before: int) -> int:
        return sum(self.trimming(stream, before))

    def trimming(self, stream: Stream, before: int) -> Iterator[int]:
        return self._removal.trimming(stream, self._ident(stream), before)

    def compact(self, stream: Stream, before: int) -> int:
        return sum(self.compacting(stream, before))

    def compacting(self, stream: Stream, before: int) -> Iterator[int]:
        found = survey(self, stream, before)
        ident = self._ident(stream)
        return iter(()) if found is None else self._removal.compacting(found, ident, self._version(ident))

    def drop(self, stream: Stream) -> None:
        sum(self.dropping(stream))

    def dropping(self, stream: Stream) -> Iterator[int]:
        ident = self._ident(stream)
        with self._transaction():
            self._writer.execute("UPDATE streams SET dropped = 1 WHERE id = ?", (ident,))
        self._tails.pop((stream.name, stream.epoch), None)
        yield from self._removal.dropping(ident)

    def tidying(self) -> Iterator[int]:
        for ident in self._removal.dropped():
            yield from self._removal.dropping(ident)
        bounds = self.bounds(self._control_stream)
        events = sum(commit.rows for commit in self.commits(self._control_stream, bounds.first_commit))
        if control.wants_compaction(events, len(self._values)):
            yield from self.compacting(self._control_stream, bounds.next_commit)
        yield from self._removal.sweeping()

    def horizon(self, stream: Stream) -> int:
        return HORIZON if stream.unique else 0

    # What the writer knows

    def _tail(self, stream: Stream) -> Tail:
        key = (stream.name, stream.epoch)
        if key not in self._tails:
            self._tails[key] = self._loaded(stream)
        return self._tails[key]

    def _loaded(self, handle: Stream) -> Tail:
        stream = self.find(handle.name, handle.epoch)
        if stream is None:
            raise PositionGoneError(f"there is no stream '{handle.name}' of epoch '{handle.epoch}'")
        ident = self._ident(stream)
        self._places[stream.name, stream.epoch] = (ident, self._version(ident))
        ids = self._load_ids(stream) if stream.unique else None
        rows = self._rows(
            "SELECT ends, number, total_rows, total_bytes, max_us FROM commits WHERE stream = ?"
            " ORDER BY number DESC LIMIT 1",
            (ident,),
        )
        if not rows:
            return Tail(stream, (0,) * stream.partitions, ids=ids)
        ends, number, total_rows, total_bytes, max_us = rows[0]
        return Tail(stream, tuple(msgspec.json.decode(ends)), number + 1, total_rows, total_bytes, max_us, ids)

    def _load_ids(self, stream: Stream) -> IdIndex:
        index = IdIndex()
        bounds = self.bounds(stream)
        for partition in range(stream.partitions):
            for block in self.read(stream, partition, bounds.starts[partition], columns=[ID]):
                index.load(block.batch.column(0), block.written_us)
        return index

    def _load_control(self) -> None:
        stream = self._control_stream = self.create(control.SPEC)
        for block in self.read(stream, 0, self.bounds(stream).starts[0]):
            control.apply(self._values, dict(control.changes(block)))
            self._producers.load(block)

    def _control(self) -> Tail:
        return self._tail(self._control_stream)

    def _version(self, ident: int) -> int:
        return int(self._rows("SELECT max(version) FROM schemas WHERE stream = ?", (ident,))[0][0])

    def _last_payload(self) -> int:
        with failures(self.path):
            return int(self._writer.execute("SELECT coalesce(max(id), 0) FROM payloads").fetchall()[0][0])

    def _next_payload(self) -> int:
        self._payload += 1
        return self._payload


_INSERT_COMMIT = "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _stored(schema: pa.Schema) -> bytes:
    """A schema with its fields' metadata, which holds their defaults."""
    return schema.serialize().to_pybytes()  # type: ignore[no-any-return]


def _each_index(plan: Plan, act: Callable[[IdIndex], None]) -> None:
    for index in plan.staged:
        act(index)


def _refuse_schema(stream: Stream, old: pa.Schema, new: pa.Schema) -> None:
    problems = changes_refused(old, new)
    if problems:
        raise SchemaChangeError(
            f"the stream '{stream.name}' holds events that do not fit its class any more",
            detail="; ".join(problems),
            hint="give new fields a default, keep the types of old ones, or declare a stream of another name",
        )


def _refuse_layout(there: Stream, spec: StreamSpec) -> None:
    if (there.partitions, there.counts) != (spec.partitions, spec.counts):
        raise SchemaChangeError(
            f"the stream '{there.name}' was made with {there.partitions} partitions that count {there.counts}",
            detail=f"now it is declared with {spec.partitions} that count {spec.counts}",
            hint="keep the number of partitions, or declare a stream of another name",
        )


def _refuse_dictionaries(schema: pa.Schema) -> None:
    """A record batch message does not carry the dictionary that its columns point into."""
    for field in schema:
        if pa.types.is_dictionary(field.type):
            raise ValueError(f"'{field.name}' is a dictionary column; use its value type")
