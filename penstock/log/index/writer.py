"""Writes a log over its index: a commit is one transaction of the index, and every block an Arrow batch.

1. When `append` returns, its commit is as durable as the index makes a transaction; when it raises, it is not there.
   What this object knows in memory changes only after the transaction is through.
2. The term is checked inside every transaction, so a writer that was replaced cannot write, not even once.
3. The log is its own index of ids and producers: both are rebuilt from it, and no side table can disagree with it.
4. Removing is logical first, in one small transaction, and physical afterwards, in slices: a crash in between leaves
   garbage, never a stream that is half there.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import PenstockError, SchemaChangeError
from penstock.evolution import changes_refused
from penstock.horizon import Horizon
from penstock.log import control
from penstock.log.commit_plan import CommitPlanner, Draft, StreamEnd
from penstock.log.control import ControlMap, Producers
from penstock.log.ids import IdIndex
from penstock.log.index.reader import MADE_US, IndexedReader
from penstock.log.index.removal import Removal, survey
from penstock.log.index.tables import Payloads, Stored, Tables, WritableDatabase, checksum
from penstock.log.log import Append, Appended, KnownIds, Stream, StreamSpec
from penstock.schema import ID

_IDS_AT_ONCE = 65_536
"""Ids that are taken over together when an index is rebuilt; block by block would take four times as long."""


class IndexedLog(IndexedReader):
    """The writer of one log; it reads as `IndexedReader` does."""

    def __init__(self, place: str, database: WritableDatabase, payloads: Payloads, app: str, clock: Clock) -> None:
        super().__init__(place, database, payloads)
        self._term = database.claim(app)
        self._writable = database
        self.replicated = False
        self._clock = clock
        self._tails: dict[tuple[str, str], StreamEnd] = {}
        self._horizons: dict[tuple[str, str], Horizon] = {}
        self._late_after: dict[tuple[str, str], int | None] = {}
        self._idents: dict[tuple[str, str], tuple[int, int]] = {}
        """Of the streams that were written to: their number in the index, and the version that is written."""
        self._memory = ControlMap()
        self._producers = Producers()
        self._removal = Removal(self, self._transaction)
        self._control = self.create(control.SPEC)
        self._planner = CommitPlanner(self, self._tail, self._control, self._memory, self._producers)
        self._load_control()
        self._written_us = max(
            (commit.written_us for commit in map(self.last_commit, self.streams()) if commit), default=0
        )
        """Of the newest commit: the clock of another machine, which wrote before this one, may be ahead."""

    @property
    def term(self) -> int:
        return self._term

    @property
    def answer_s(self) -> float:
        return self._writable.answer_s

    @property
    def problem(self) -> PenstockError | None:
        return self._writable.problem

    def check_turn(self) -> None:
        self._writable.check_turn()

    def abandon(self) -> None:
        self._writable.abandon()

    def memory(self) -> ControlMap:
        return self._memory

    # Making streams

    def create(self, spec: StreamSpec) -> Stream:
        _refuse_dictionaries(spec.schema)
        there = self.find(spec.name, spec.epoch)
        epoch = self._make(spec) if there is None else self._change(there, spec)
        self._see_to(spec, epoch)
        found = self.find(spec.name, epoch)
        assert found is not None
        return found

    def _make(self, spec: StreamSpec) -> str:
        epoch = spec.epoch or secrets.token_hex(6)
        with self._transaction() as tables:
            tables.add_stream(spec, epoch, _stored(spec.schema, self._clock))
        return epoch

    def _change(self, there: Stream, spec: StreamSpec) -> str:
        """What may change of a stream that is there: its schema, and what is done with its events from now on."""
        _refuse_layout(there, spec)
        if not there.schema.equals(spec.schema, check_metadata=True):
            self._add_schema(there, spec.schema)
        if (there.unique, there.compact_by) != (spec.unique, spec.compact_by):
            ident = self.ident(there)
            with self._transaction() as tables:
                tables.change_stream(ident, unique=spec.unique, compact_by=spec.compact_by)
        self._renew(there)
        return there.epoch

    def _see_to(self, spec: StreamSpec, epoch: str) -> None:
        """Ids that were loaded under another horizon are loaded again when they are needed."""
        key = (spec.name, epoch)
        if spec.horizon != self._horizons.get(key, Horizon()):
            self._tails.pop(key, None)
        self._horizons[key], self._late_after[key] = spec.horizon, spec.late_after_us
        if (tail := self._tails.get(key)) is not None:
            self._tails[key] = replace(tail, late_after_us=spec.late_after_us)

    def _renew(self, old: Stream) -> None:
        """Write under the newest schema from now on; the ids, which take long to load, are kept."""
        key = (old.name, old.epoch)
        tail, stream = self._tails.get(key), self.find(*key)
        if tail is None or stream is None or tail.stream == stream:
            return
        ident = self.ident(stream)
        ids = (tail.ids or self._load_ids(stream)) if stream.unique else None
        self._tails[key] = replace(tail, stream=stream, ids=ids)
        self._idents[key] = (ident, self.index.newest_version(ident))

    def _add_schema(self, stream: Stream, schema: pa.Schema) -> None:
        """A new version, if all events that the stream still holds can be read under it."""
        ident = self.ident(stream)
        versions = self.versions(stream)
        for version in versions:
            if version.held:
                _refuse_schema(stream, version.schema, schema)
        with self._transaction() as tables:
            tables.add_schema(ident, versions[-1].number + 1, _stored(schema, self._clock))

    # Appending

    def append(
        self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None
    ) -> list[Appended | Exception]:
        now_us = max(self._clock.now_us(), self._written_us)
        plan = self._planner.plan(appends, remember or {}, now_us)
        try:
            self._write(plan.drafts)
        except BaseException:
            plan.discard()
            raise
        for made in plan.drafts:
            self._tails[made.after.stream.name, made.after.stream.epoch] = made.after
        plan.commit()
        self._written_us = now_us
        self._take_over(plan.memory, now_us)
        return plan.results

    def _take_over(self, changed: Mapping[str, Any | None], written_us: int) -> None:
        self._memory.apply(changed)
        self._producers.apply(changed, written_us)

    def _write(self, drafts: Sequence[Draft]) -> None:
        with self._transaction() as tables:
            for made in drafts:
                self._write_draft(tables, made)

    def _write_draft(self, tables: Tables, made: Draft) -> None:
        commit, stream = made.commit, made.after.stream
        ident, version = self._idents[stream.name, stream.epoch]
        for piece in made.pieces:
            where = (ident, piece.partition, piece.start, piece.piece, piece.stop)
            facts = (*where, commit.number, version, piece.rows, 0, commit.bound_us, commit.written_us)
            payload = self.payloads.put(stream, piece.partition, piece.data, None)
            tables.add_block(Stored(*facts, checksum(facts, piece.data, None), payload))
        tables.add_commit(ident, commit, made.after.total_bytes)

    def _transaction(self) -> AbstractContextManager[Tables]:
        return self._writable.transaction(self._term)

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
        version = self.index.newest_version(ident)
        return iter(()) if found is None else self._removal.compacting(found, ident, version, made_in)

    def drop(self, stream: Stream) -> None:
        sum(self.dropping(stream))

    def dropping(self, stream: Stream) -> Iterator[int]:
        ident = self.ident(stream)
        with self._transaction() as tables:
            tables.hide(ident)
        self._tails.pop((stream.name, stream.epoch), None)
        self._idents.pop((stream.name, stream.epoch), None)
        yield 0
        yield from self._removal.dropping(ident)

    def tidying(self) -> Iterator[int]:
        for ident in self.index.hidden():
            yield from self._removal.dropping(ident)
        bounds = self.bounds(self._control)
        first = self.commits(self._control, bounds.first_commit, limit=1)
        events = bounds.rows - first[0].total_rows + first[0].rows if first else 0
        if control.wants_compaction(events, len(self._memory)):
            yield from self.compacting(self._control, bounds.next_commit)
        yield from self._removal.sweeping()
        self._writable.tidy()

    # What the writer knows

    def horizon(self, stream: Stream) -> int:
        ids = self._tail(stream).ids
        return 0 if ids is None else ids.horizon

    def known_ids(self, stream: Stream) -> KnownIds | None:
        tail = self._tails.get((stream.name, stream.epoch))
        return None if tail is None or tail.ids is None else KnownIds(len(tail.ids), tail.ids.since_us)

    def _tail(self, stream: Stream) -> StreamEnd:
        key = (stream.name, stream.epoch)
        if key not in self._tails:
            self._tails[key] = self._load_tail(self.find(*key) or stream)
        return self._tails[key]

    def _load_tail(self, stream: Stream) -> StreamEnd:
        ident, bounds = self._bounds(stream, self.index)
        ids = self._load_ids(stream) if stream.unique else None
        self._idents[stream.name, stream.epoch] = (ident, self.index.newest_version(ident))
        total_bytes = self.index.total_bytes(ident, bounds.next_commit - 1)
        return StreamEnd(
            stream,
            bounds.ends,
            bounds.next_commit,
            bounds.rows,
            total_bytes,
            bounds.max_us,
            ids,
            bounds.complete_us,
            self._late_after.get((stream.name, stream.epoch)),
        )

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
