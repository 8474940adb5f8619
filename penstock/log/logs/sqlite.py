"""The log of one machine: an SQLite file in which every commit is a transaction and every block an Arrow batch.

1. A commit is one transaction with an fsync: when `append` returns it is durable, when it raises it is not there, and
   what this object knows in memory changes only after the transaction is through.
2. The term is checked inside every transaction, so a writer that was replaced cannot write, not even once.
3. The log is its own index of ids and producers: both are rebuilt from it, and no side table can disagree with it.
4. Removing is logical first, in one small transaction, and physical afterwards, in slices: a crash in between leaves
   garbage, never a stream that is half there.

It serves one machine. Network file systems are refused; many machines are Kafka's job.
"""

from __future__ import annotations

import heapq
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import DiskFullError, FolderMismatchError, SchemaChangeError, StaleTermError
from penstock.evolution import changes_refused
from penstock.horizon import Horizon
from penstock.log import control
from penstock.log.control import ControlMap, Producers
from penstock.log.draft import Draft, Plan, Planner, Tail
from penstock.log.ids import IdIndex
from penstock.log.log import Append, Appended, KnownIds, Stream, StreamSpec
from penstock.log.logs.sqlite_file import (
    INSERT_BLOCK,
    checksum,
    cut_wal,
    failures,
    open_writer,
    owner_of,
    path_of,
    prepare,
    refuse_network,
    transaction,
    translated,
)
from penstock.log.logs.sqlite_reader import MADE_US, SqliteReader
from penstock.log.logs.sqlite_removal import Removal, survey
from penstock.schema import ID

_IDS_AT_ONCE = 65_536
"""Ids that are taken over together when an index is rebuilt; block by block would take four times as long."""


def open_log(place: str, app: str, clock: Clock) -> SqliteLog:
    path = path_of(place)
    connection = open_writer(path)
    try:
        return SqliteLog(place, connection, prepare(connection, path, app), clock)
    except BaseException:
        connection.close()
        raise


def open_reader(place: str) -> SqliteReader:
    return SqliteReader(place)


def check_place(place: str, app: str) -> None:
    path = path_of(place)
    refuse_network(path)
    owner = owner_of(path)
    if owner not in (None, app):
        raise FolderMismatchError(
            f"the folder '{path.parent}' belongs to the app '{owner}', not to '{app}'",
            hint="pass another folder with --data, or give the app its old name",
        )


class SqliteLog(SqliteReader):
    """The writer of one file; it reads as `SqliteReader` does."""

    def __init__(self, place: str, connection: sqlite3.Connection, term: int, clock: Clock) -> None:
        super().__init__(place)
        self._writer = connection
        self._term = term
        self._clock = clock
        self._tails: dict[tuple[str, str], Tail] = {}
        self._horizons: dict[tuple[str, str], Horizon] = {}
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        self._memory = ControlMap()
        self._producers = Producers()
        self._payload = self._last_payload()
        self._removal = Removal(self, connection, self._transaction, self._next_payload)
        self._control = self.create(control.SPEC)
        self._planner = Planner(self, self._tail, self._control, self._memory, self._producers)
        self._load_control()

    @property
    def term(self) -> int:
        return self._term

    def close(self) -> None:
        super().close()
        self._writer.close()

    def memory(self) -> ControlMap:
        return self._memory

    # Making streams

    def create(self, spec: StreamSpec) -> Stream:
        _refuse_dictionaries(spec.schema)
        there = self.find(spec.name, spec.epoch)
        epoch = self._make(spec) if there is None else self._change(there, spec)
        self._see_to(spec.name, epoch, spec.horizon)
        found = self.find(spec.name, epoch)
        assert found is not None
        return found

    def _make(self, spec: StreamSpec) -> str:
        epoch = spec.epoch or secrets.token_hex(6)
        layout = (spec.partitions, spec.unique, spec.counts, _json(spec.compact_by), _json([0] * spec.partitions))
        with self._transaction():
            made = self._writer.execute(_INSERT_STREAM, (spec.name, epoch, *layout))
            self._writer.execute(_INSERT_SCHEMA, (made.lastrowid, 1, _stored(spec.schema, self._clock)))
        return epoch

    def _change(self, there: Stream, spec: StreamSpec) -> str:
        """What may change of a stream that is there: its schema, and what is done with its events from now on."""
        _refuse_layout(there, spec)
        if not there.schema.equals(spec.schema, check_metadata=True):
            self._add_schema(there, spec.schema)
        if (there.unique, there.compact_by) != (spec.unique, spec.compact_by):
            with self._transaction():
                values = (spec.unique, _json(spec.compact_by), self.ident(there))
                self._writer.execute("UPDATE streams SET unique_ids = ?, compact_by = ? WHERE id = ?", values)
        self._renew(there)
        return there.epoch

    def _see_to(self, name: str, epoch: str, horizon: Horizon) -> None:
        """Ids that were loaded under another horizon are loaded again when they are needed."""
        key = (name, epoch)
        if horizon != self._horizons.get(key, Horizon()):
            self._tails.pop(key, None)
        self._horizons[key] = horizon

    def _renew(self, old: Stream) -> None:
        """Write under the newest schema from now on; the ids, which take long to load, are kept."""
        key = (old.name, old.epoch)
        tail, stream = self._tails.get(key), self.find(*key)
        if tail is None or stream is None or tail.stream == stream:
            return
        ident = self.ident(stream)
        ids = (tail.ids or self._load_ids(stream)) if stream.unique else None
        self._tails[key] = replace(tail, stream=stream, ids=ids)
        self._places[key] = (ident, self._version(ident))

    def _add_schema(self, stream: Stream, schema: pa.Schema) -> None:
        """A new version, if all events that the stream still holds can be read under it."""
        ident = self.ident(stream)
        versions = self.versions(stream)
        for version in versions:
            if version.held:
                _refuse_schema(stream, version.schema, schema)
        with self._transaction():
            self._writer.execute(_INSERT_SCHEMA, (ident, versions[-1].number + 1, _stored(schema, self._clock)))

    # Appending

    def append(
        self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None
    ) -> list[Appended | Exception]:
        now_us = self._clock.now_us()
        try:
            plan = self._written(appends, remember or {}, now_us)
        except BaseException:
            for append in appends:
                if append.undo is not None:
                    append.undo()
            raise
        for made in plan.drafts:
            self._tails[made.after.stream.name, made.after.stream.epoch] = made.after
        plan.commit()
        self._take_over(plan.memory, now_us)
        return plan.results

    def _written(self, appends: Sequence[Append], remember: Mapping[str, Any | None], now_us: int) -> Plan:
        plan = self._planner.plan(appends, remember, now_us)
        try:
            self._write(plan.drafts)
        except BaseException:
            plan.discard()
            raise
        return plan

    def _take_over(self, changed: Mapping[str, Any | None], written_us: int) -> None:
        self._memory.apply(changed)
        self._producers.apply(changed, written_us)

    def _write(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            with failures(self.path):
                self._check_term()
            return
        with self._transaction():
            for made in drafts:
                self._write_draft(made)

    def _write_draft(self, made: Draft) -> None:
        commit, stream = made.commit, made.after.stream
        ident, version = self._places[stream.name, stream.epoch]
        for piece in made.pieces:
            place = (ident, piece.partition, piece.start, piece.piece, piece.stop, commit.number, version)
            facts = (piece.rows, 0, commit.bound_us, commit.written_us)
            payload = self._next_payload()
            self._writer.execute("INSERT INTO payloads VALUES (?, ?, NULL)", (payload, piece.data))
            check = checksum(*place, *facts, piece.data, None)
            self._writer.execute(INSERT_BLOCK, (*place, *facts, check, payload))
        times = (commit.bound_us, commit.max_us, commit.min_us, commit.written_us)
        counts = (commit.rows, commit.total_rows)
        meta = None if commit.meta is None else _json(commit.meta)
        sizes = (commit.bytes, made.after.total_bytes)
        self._writer.execute(
            "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (ident, commit.number, _json(commit.ends), *counts, *times, meta, *sizes),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A write transaction of this term.

        After a failure the WAL may hold frames of it behind its end, which a crash would bring back to life; a small
        transaction overwrites the first of them, and so the rest can never be read.
        """
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
        return self._removal.trimming(stream, self.ident(stream), before)

    def compact(self, stream: Stream, before: int) -> int:
        return sum(self.compacting(stream, before))

    def compacting(self, stream: Stream, before: int) -> Iterator[int]:
        newest = self.find(stream.name, stream.epoch) or stream
        ident = self.ident(newest)
        made_in = self._removal.round(ident)
        found = survey(self, newest, before)
        return iter(()) if found is None else self._removal.compacting(found, ident, self._version(ident), made_in)

    def drop(self, stream: Stream) -> None:
        sum(self.dropping(stream))

    def dropping(self, stream: Stream) -> Iterator[int]:
        ident = self.ident(stream)
        self._removal.hide(ident)
        self._tails.pop((stream.name, stream.epoch), None)
        self._places.pop((stream.name, stream.epoch), None)
        yield 0
        yield from self._removal.dropping(ident)

    def tidying(self) -> Iterator[int]:
        for ident in self._removal.hidden():
            yield from self._removal.dropping(ident)
        bounds = self.bounds(self._control)
        first = self.commits(self._control, bounds.first_commit, limit=1)
        events = bounds.rows - first[0].total_rows + first[0].rows if first else 0
        if control.wants_compaction(events, len(self._memory)):
            yield from self.compacting(self._control, bounds.next_commit)
        yield from self._removal.sweeping()
        cut_wal(self._writer, self.path)

    # What the writer knows

    def horizon(self, stream: Stream) -> int:
        ids = self._tail(stream).ids
        return 0 if ids is None else ids.horizon

    def known_ids(self, stream: Stream) -> KnownIds | None:
        tail = self._tails.get((stream.name, stream.epoch))
        return None if tail is None or tail.ids is None else KnownIds(len(tail.ids), tail.ids.since_us)

    def _tail(self, stream: Stream) -> Tail:
        key = (stream.name, stream.epoch)
        if key not in self._tails:
            self._tails[key] = self._load_tail(self.find(*key) or stream)
        return self._tails[key]

    def _load_tail(self, stream: Stream) -> Tail:
        ident = self.ident(stream)
        bounds = self.bounds(stream)
        sizes = "SELECT total_bytes FROM commits WHERE stream = ? AND number = ?"
        size = self._rows(sizes, (ident, bounds.next_commit - 1))
        ids = self._load_ids(stream) if stream.unique else None
        self._places[stream.name, stream.epoch] = (ident, self._version(ident))
        total_bytes = size[0][0] if size else 0
        return Tail(stream, bounds.ends, bounds.next_commit, bounds.rows, total_bytes, bounds.max_us, ids)

    def _load_ids(self, stream: Stream) -> IdIndex | None:
        """The index of a stream's newest ids, from their own column, in the order in which they were committed."""
        if ID not in stream.schema.names:
            return None
        horizon = self._horizons.get((stream.name, stream.epoch), Horizon())
        index = IdIndex(horizon.ids, horizon.age_us)
        waiting: list[pa.Array] = []
        since_us = 0
        readers = [self.read(stream, p, at, columns=[ID]) for p, at in enumerate(self._known_from(stream, index))]
        for block in heapq.merge(*readers, key=lambda block: block.commit):
            since_us = since_us if waiting else block.written_us
            waiting.append(block.batch.column(0))
            if sum(map(len, waiting)) >= _IDS_AT_ONCE:
                index.load(pa.concat_arrays(waiting), block.written_us, since_us)
                waiting.clear()
        if waiting:
            index.load(pa.concat_arrays(waiting), self._clock.now_us(), since_us)
        return index

    def _known_from(self, stream: Stream, index: IdIndex) -> Sequence[int]:
        """The offsets from which on ids must be known: the horizon's, or those of the oldest that count."""
        bounds = self.bounds(stream)
        rows, since_us = bounds.rows - index.horizon, self._clock.now_us() - index.keep_us
        number = self.first_where(
            stream,
            bounds.first_commit,
            bounds.next_commit,
            lambda commit: commit.total_rows > rows and commit.written_us >= since_us,
        )
        before = self.last_commit(stream, number)
        return bounds.starts if before is None else before.ends

    def _load_control(self) -> None:
        for block in self.read(self._control, 0, self.bounds(self._control).starts[0]):
            self._take_over(dict(control.changes(block)), block.written_us)

    def _version(self, ident: int) -> int:
        return int(self._rows("SELECT max(version) FROM schemas WHERE stream = ?", (ident,))[0][0])

    def _last_payload(self) -> int:
        with failures(self.path):
            return int(self._writer.execute("SELECT coalesce(max(id), 0) FROM payloads").fetchall()[0][0])

    def _next_payload(self) -> int:
        self._payload += 1
        return self._payload


_INSERT_STREAM = (
    "INSERT INTO streams (name, epoch, partitions, unique_ids, counts, compact_by, starts) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_SCHEMA = "INSERT INTO schemas VALUES (?, ?, ?)"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _stored(schema: pa.Schema, clock: Clock) -> bytes:
    """A schema with its metadata, which holds its fields' defaults, and with the time of its making."""
    noted = {**(schema.metadata or {}), MADE_US: str(clock.now_us()).encode()}
    return bytes(schema.with_metadata(noted).serialize())


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
