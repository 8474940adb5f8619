"""Takes old things out of an SQLite log, in slices so short that the commits between them do not notice.

1. Every slice is a transaction of its own, and after each the stream is whole: its start moved up, or its oldest
   commits merged into one.
2. Compaction writes the merged blocks where nobody sees them, then swaps them in at once. What is left over, by a
   crash too, is listed as garbage and removed bit by bit.
3. Merging reads nothing newer than `before`, so it may be prepared in another thread while the writer writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import DELETE, OP
from penstock.log.log import CONTROL, Block, Stream
from penstock.log.logs.sqlite_file import checksum
from penstock.log.logs.sqlite_reader import SqliteReader

SLICE_BYTES = 4 * 1024**2
SLICE_COMMITS = 64
MERGED_BYTES = 1024**2
"""Size of a merged block: written in about a millisecond."""

Indices = npt.NDArray[np.int64]
Transaction = Callable[[], AbstractContextManager[None]]

INSERT_BLOCK = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Survey:
    """Which rows a compaction keeps: per partition, indices into the rows of its blocks below `before`, in order."""

    stream: Stream
    before: int
    first: int
    ends: tuple[int, ...]
    kept: tuple[Indices, ...]
    rows: int


@dataclass(slots=True)
class _Merged:
    """A merged block on its way: rows of old blocks, and the range of offsets that they stood in."""

    start: int
    stop: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    offsets: list[pa.Array] = field(default_factory=list)
    size: int = 0


class Removal:
    """Trims, compacts and drops; called by the writer's thread."""

    def __init__(
        self,
        reader: SqliteReader,
        writer: sqlite3.Connection,
        transaction: Transaction,
        payload: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._transaction = transaction
        self._next_payload = payload

    # Trimming

    def trimming(self, stream: Stream, ident: int, before: int) -> Iterator[int]:
        """Remove commits below `before`, a slice at each step; gives the rows that went."""
        while oldest := self._slice(stream, before):
            with self._transaction():
                rows = sum(commit.rows for commit in oldest)
                self._forget(ident, oldest[-1].number, oldest[-1].ends, sum(commit.bytes for commit in oldest))
            yield rows

    def _slice(self, stream: Stream, before: int) -> list[Any]:
        bounds = self._reader.bounds(stream)
        last = min(before, bounds.next_commit - 1)
        commits = self._reader.commits(stream, bounds.first_commit, last, SLICE_COMMITS)
        size = 0
        for count, commit in enumerate(commits, 1):
            size += commit.bytes
            if size > SLICE_BYTES:
                return commits[:count]
        return commits

    def _forget(self, ident: int, number: int, starts: Sequence[int], size: int) -> None:
        for partition, start in enumerate(starts):
            below = (ident, partition, start)
            self._writer.execute(
                "DELETE FROM payloads WHERE id IN"
                " (SELECT payload FROM blocks WHERE stream = ? AND partition = ? AND start < ?)",
                below,
            )
            self._writer.execute("DELETE FROM blocks WHERE stream = ? AND partition = ? AND start < ?", below)
        self._writer.execute("DELETE FROM commits WHERE stream = ? AND number <= ?", (ident, number))
        self._writer.execute(
            "UPDATE streams SET starts = ?, removed_bytes = removed_bytes + ? WHERE id = ?",
            (msgspec.json.encode(list(starts)).decode(), size, ident),
        )

    # Dropping

    def dropping(self, ident: int) -> Iterator[int]:
        """Remove a stream that is marked as dropped; gives the rows that went."""
        while True:
            found = self._writer.execute(
                "SELECT partition, start, piece, rows, payload FROM blocks WHERE stream = ? LIMIT ?",
                (ident, SLICE_COMMITS),
            ).fetchall()
            with self._transaction():
                for partition, start, piece, _, payload in found:
                    self._writer.execute("DELETE FROM payloads WHERE id = ?", (payload,))
                    self._writer.execute(
                        "DELETE FROM blocks WHERE stream = ? AND partition = ? AND start = ? AND piece = ?",
                        (ident, partition, start, piece),
                    )
                if not found:
                    self._bury(ident)
            yield sum(row[3] for row in found)
            if not found:
                return

    def _bury(self, ident: int) -> None:
        self._writer.execute("DELETE FROM commits WHERE stream = ?", (ident,))
        self._writer.execute("DELETE FROM schemas WHERE stream = ?", (ident,))
        self._writer.execute("DELETE FROM streams WHERE id = ?", (ident,))

    def dropped(self) -> list[int]:
        """Streams whose removal a crash has interrupted, or that is under way."""
        return [row[0] for row in self._writer.execute("SELECT id FROM streams WHERE dropped = 1").fetchall()]

    def sweeping(self) -> Iterator[int]:
        """Remove payloads that nobody refers to."""
        while found := self._writer.execute(
            "SELECT payload, length(data) FROM garbage LEFT JOIN payloads ON id = payload LIMIT ?",
            (SLICE_COMMITS,),
        ).fetchall():
            size = 0
            with self._transaction():
                for payload, length in found:
                    self._writer.execute("DELETE FROM payloads WHERE id = ?", (payload,))
                    self._writer.execute("DELETE FROM garbage WHERE payload = ?", (payload,))
                    size += length or 0
                    if size > SLICE_BYTES:
                        break
            yield 0

    # Compacting

    def compacting(self, survey: Survey, ident: int, version: int) -> Iterator[int]:
        """Write the merged blocks, a slice at each step, then swap them in; gives the rows that went."""
        bounds = self._reader.bounds(survey.stream)
        commits = self._reader.commits(survey.stream, bounds.first_commit, survey.before)
        if bounds.first_commit != survey.first or not commits:
            return
        last = commits[-1]
        bound = commits[0].bound_us
        made: list[tuple[Any, ...]] = []
        size = 0
        for partition in range(survey.stream.partitions):
            for merged in self._merge(survey, partition):
                batch, offsets = _joined(merged, survey.stream.schema)
                data = batch.serialize()
                place = (ident, partition, merged.start, 0, merged.stop, last.number, version)
                facts = (batch.num_rows, 1, bound, last.written_us)
                payload = self._stage(data, offsets)
                made.append((*place, *facts, checksum(*place, *facts, data, offsets), payload))
                size += data.size
                yield 0
        with self._transaction():
            self._swap(survey, ident, made, size)
        yield survey.rows - sum(len(kept) for kept in survey.kept)

    def _stage(self, data: pa.Buffer, offsets: bytes) -> int:
        payload = self._next_payload()
        with self._transaction():
            self._writer.execute("INSERT INTO payloads VALUES (?, ?, ?)", (payload, data, offsets))
            self._writer.execute("INSERT INTO garbage VALUES (?)", (payload,))
        return payload

    def _merge(self, survey: Survey, partition: int) -> Iterator[_Merged]:
        """Old blocks, oldest first, with only the rows that are kept, joined up to the size of a merged block."""
        kept, at, current = survey.kept[partition], 0, None
        for block in self._old_blocks(survey, partition):
            rows = block.batch.num_rows
            inside = kept[np.searchsorted(kept, at) : np.searchsorted(kept, at + rows)] - at
            at += rows
            if current is not None and current.size >= MERGED_BYTES and block.start >= current.stop:
                yield current
                current = None
            current = current or _Merged(block.start, block.end)
            current.stop = block.end
            if len(inside):
                current.batches.append(block.batch.take(pa.array(inside)))
                current.offsets.append(block.offsets.take(pa.array(inside)))
                current.size += block.batch.nbytes * len(inside) // rows
        if current is not None:
            yield current

    def _old_blocks(self, survey: Survey, partition: int) -> Iterator[Block]:
        start = self._reader.bounds(survey.stream).starts[partition]
        return self._reader.read(survey.stream, partition, start, survey.ends[partition])

    def _swap(self, survey: Survey, ident: int, made: Sequence[tuple[Any, ...]], size: int) -> None:
        for partition, end in enumerate(survey.ends):
            below = (ident, partition, end)
            self._writer.execute(
                "INSERT INTO garbage SELECT payload FROM blocks WHERE stream = ? AND partition = ? AND start < ?",
                below,
            )
            self._writer.execute("DELETE FROM blocks WHERE stream = ? AND partition = ? AND start < ?", below)
        self._writer.executemany(INSERT_BLOCK, made)
        self._writer.executemany("DELETE FROM garbage WHERE payload = ?", [(row[-1],) for row in made])
        within = (ident, survey.before)
        old_bytes, bound_us, min_us = self._writer.execute(
            "SELECT sum(bytes), (SELECT bound_us FROM commits WHERE stream = ?1 ORDER BY number LIMIT 1), min(min_us)"
            " FROM commits WHERE stream = ?1 AND number < ?2",
            within,
        ).fetchall()[0]
        self._writer.execute("DELETE FROM commits WHERE stream = ? AND number < ?", (ident, survey.before - 1))
        self._writer.execute(
            "UPDATE commits SET rows = ?, bound_us = ?, min_us = ?, bytes = ? WHERE stream = ? AND number = ?",
            (sum(len(kept) for kept in survey.kept), bound_us, min_us, size, ident, survey.before - 1),
        )
        self._writer.execute(
            "UPDATE streams SET removed_bytes = removed_bytes + ? WHERE id = ?", (old_bytes - size, ident)
        )


def survey(reader: SqliteReader, stream: Stream, before: int) -> Survey | None:
    """Which rows a compaction would keep; None when there is nothing to merge. Reads only, in any thread."""
    bounds = reader.bounds(stream)
    last = reader.last_commit(stream, min(before, bounds.next_commit))
    if last is None or not stream.compact_by or last.number < bounds.first_commit:
        return None
    kept, rows = [], 0
    for partition in range(stream.partitions):
        blocks = reader.read(stream, partition, bounds.starts[partition], last.ends[partition], _columns(stream))
        indices, count = _newest([block.batch for block in blocks], stream)
        kept.append(indices)
        rows += count
    return Survey(stream, last.number + 1, bounds.first_commit, last.ends, tuple(kept), rows)


def _columns(stream: Stream) -> list[str]:
    """What decides which rows stay: the key, and the column that marks a delete."""
    mark = _mark(stream)
    return [*stream.compact_by, *([mark] if mark and mark not in stream.compact_by else [])]


def _mark(stream: Stream) -> str | None:
    if stream.name == CONTROL:
        return "value"
    return OP if OP in stream.schema.names else None


def _newest(batches: Sequence[pa.RecordBatch], stream: Stream) -> tuple[Indices, int]:
    """Indices of the newest row per key, without deletes, in order; and how many rows were looked at."""
    if not batches:
        return np.empty(0, np.int64), 0
    table = pa.Table.from_batches(batches)
    rows = table.num_rows
    if not rows:
        return np.empty(0, np.int64), 0
    keys = _flat(table.select(list(stream.compact_by)))
    numbered = keys.append_column("_row", pa.array(np.arange(rows)))
    newest = numbered.group_by(keys.column_names, use_threads=False).aggregate([("_row", "max")])
    indices: Indices = np.sort(newest.column("_row_max").to_numpy())
    alive = _alive(table, stream)
    return (indices if alive is None else indices[alive[indices]]), rows


def _flat(table: pa.Table) -> pa.Table:
    """Structs as their fields, under plain names: Arrow groups by flat columns only."""
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table.rename_columns([f"k{index}" for index in range(table.num_columns)])


def _alive(table: pa.Table, stream: Stream) -> npt.NDArray[np.bool_] | None:
    mark = _mark(stream)
    if mark is None:
        return None
    column = table.column(mark)
    kept = pc.is_valid(column) if mark == "value" else pc.not_equal(column, DELETE)
    alive: npt.NDArray[np.bool_] = kept.to_numpy()
    return alive


def _joined(merged: _Merged, schema: pa.Schema) -> tuple[pa.RecordBatch, bytes]:
    if not merged.batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema), b""
    offsets = pa.concat_arrays(merged.offsets)
    return pa.concat_batches(merged.batches), np.ascontiguousarray(offsets.to_numpy()).tobytes()
