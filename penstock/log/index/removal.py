"""Takes old things out of a log, in slices so short that the commits between them do not notice.

1. Every slice is a transaction of its own, and after each the stream is whole: its start moved up, or its oldest
   commits merged into one.
2. Compaction writes the merged blocks where nobody sees them, then swaps them in at once. What is left over, by a
   crash too, is listed as garbage and removed bit by bit.
3. Merging reads nothing newer than `before`, so it may be prepared in another thread while the writer writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import DELETE, OP
from penstock.log.index.reader import IndexedReader
from penstock.log.index.tables import Stored, Tables, checksum
from penstock.log.log import CONTROL, Block, Commit, Stream

SLICE_BYTES = 2 * 1024**2
SLICE_COMMITS = 64
SLICE_BLOCKS = 16
"""Old blocks that one step of a compaction reads: the first ones hold hardly a row that stays."""
SLICE_ROWS = 2000
"""Rows of a table without blobs that are removed together."""
BLOCKS_AT_ONCE = 256
MERGED_BYTES = 1024**2
"""Size of a merged block: written in about a millisecond."""

Indices = npt.NDArray[np.int64]
Transaction = Callable[[], AbstractContextManager[Tables]]


@dataclass(frozen=True, slots=True)
class Survey:
    """What a compaction up to the commit `last` keeps: per partition, indices into the rows of its blocks."""

    stream: Stream
    bound_us: int | None
    last: Commit
    kept: tuple[Indices, ...]
    rows: int

    @property
    def kept_rows(self) -> int:
        return sum(len(kept) for kept in self.kept)


@dataclass(slots=True)
class _Merged:
    """A merged block on its way: rows of old blocks, and the range of offsets that they stood in."""

    start: int
    stop: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    offsets: list[pa.Array] = field(default_factory=list)
    size: int = 0

    def add(self, block: Block, rows: Indices) -> None:
        self.stop = block.end
        if len(rows):
            self.batches.append(block.batch.take(pa.array(rows)))
            self.offsets.append(block.offsets.take(pa.array(rows)))
            self.size += self.batches[-1].nbytes


class Removal:
    """Trims, compacts and drops; called by the writer's thread."""

    def __init__(self, reader: IndexedReader, transaction: Transaction) -> None:
        self._reader = reader
        self._index = reader.index
        self._payloads = reader.payloads
        self._transaction = transaction
        self._rounds: Counter[int] = Counter()

    def round(self, ident: int) -> int:
        """How often something was removed from a stream: a survey is good only for the round it was made in."""
        return self._rounds[ident]

    # Trimming

    def trimming(self, stream: Stream, ident: int, before: int) -> Iterator[int]:
        """Remove commits below `before`, a slice at each step; gives the rows that went."""
        while oldest := self._slice(stream, before):
            newest = oldest[-1]
            with self._transaction() as tables:
                self._payloads.remove(tables.remove_below(ident, newest.ends))
                tables.remove_commits(ident, newest.number + 1)
                tables.begin_at(ident, newest.ends, sum(commit.bytes for commit in oldest))
            self._rounds[ident] += 1
            yield sum(commit.rows for commit in oldest)

    def _slice(self, stream: Stream, before: int) -> list[Commit]:
        bounds = self._reader.bounds(stream)
        last = min(before, bounds.next_commit - 1)
        commits = self._reader.commits(stream, bounds.first_commit, last, SLICE_COMMITS)
        size = 0
        for count, commit in enumerate(commits, 1):
            size += commit.bytes
            if size > SLICE_BYTES:
                return commits[:count]
        return commits

    # Dropping

    def dropping(self, ident: int) -> Iterator[int]:
        """Remove a hidden stream, a slice at each step; gives the rows that went."""
        while blocks := self._index.blocks(ident, SLICE_COMMITS):
            slice_ = list(_up_to(blocks, SLICE_BYTES))
            with self._transaction() as tables:
                self._payloads.remove([row[0] for row in slice_])
                tables.remove_blocks(ident, [row[3:] for row in slice_])
            yield sum(row[2] for row in slice_)
        while (number := self._index.commit_behind(ident, SLICE_ROWS)) is not None:
            with self._transaction() as tables:
                tables.remove_commits(ident, number)
            yield 0
        with self._transaction() as tables:
            tables.remove_stream(ident)

    def sweeping(self) -> Iterator[int]:
        """Remove payloads that nobody refers to."""
        while found := self._index.garbage(SLICE_COMMITS):
            numbers = [row[0] for row in _up_to(found, SLICE_BYTES)]
            with self._transaction() as tables:
                self._payloads.remove(numbers)
                tables.remove_garbage(numbers)
            yield 0

    # Compacting

    def compacting(self, survey: Survey, ident: int, version: int, made_in: int) -> Iterator[int]:
        """Write the merged blocks, a slice at each step, then swap them in; gives the rows that went.

        When the stream was trimmed or compacted since the survey, it ends there: what was staged stays garbage.
        """
        made: list[Stored] = []
        size = 0
        for partition in range(survey.stream.partitions):
            merging = self._merge(survey, partition)
            while self._rounds[ident] == made_in and (merged := next(merging, _END)) is not _END:
                if isinstance(merged, _Merged):
                    block, stored = self._stage(survey, merged, (ident, partition), version)
                    made.append(block)
                    size += stored
                yield 0
        if self._rounds[ident] == made_in:
            self._swap(survey, ident, made, size)
            self._rounds[ident] += 1
            yield survey.rows - survey.kept_rows

    def _stage(self, survey: Survey, merged: _Merged, where: tuple[int, int], version: int) -> tuple[Stored, int]:
        """Keep a merged block where nobody sees it; gives it, and its size."""
        batch, offsets = _joined(merged, survey.stream.schema)
        data = batch.serialize()
        times = (survey.bound_us, survey.last.written_us)
        facts = (*where, merged.start, 0, merged.stop, survey.last.number, version, batch.num_rows, 1, *times)
        with self._transaction() as tables:
            payload = self._payloads.put(survey.stream, where[1], data, offsets)
            tables.add_garbage([payload])
        return Stored(*facts, checksum(facts, data, offsets), payload), data.size

    def _merge(self, survey: Survey, partition: int) -> Iterator[_Merged | None]:
        """Old blocks, oldest first, with only the rows that are kept, joined up to the size of a merged block; None
        where a step ends without one."""
        kept, at, current = survey.kept[partition], 0, None
        blocks = self._reader.read_merged(survey.stream, partition, survey.last.ends[partition])
        for number, block in enumerate(blocks, 1):
            if current is not None and current.size >= MERGED_BYTES and block.start >= current.stop:
                yield current
                current = None
            current = current or _Merged(block.start, block.end)
            rows = block.batch.num_rows
            current.add(block, kept[np.searchsorted(kept, at) : np.searchsorted(kept, at + rows)] - at)
            at += rows
            if number % SLICE_BLOCKS == 0:
                yield None
        if current is not None:
            yield current

    def _swap(self, survey: Survey, ident: int, made: Sequence[Stored], size: int) -> None:
        """Put the merged blocks in the place of the old ones, and one commit in the place of theirs."""
        with self._transaction() as tables:
            tables.discard_below(ident, survey.last.ends)
            for block in made:
                tables.add_block(block)
            tables.remove_garbage([block.payload for block in made])
            tables.merge_commits(ident, survey.last.number, survey.kept_rows, survey.bound_us, size)


_END = object()


def _up_to(rows: Sequence[Any], size: int) -> Iterator[Any]:
    """Rows until their second column adds up to `size`, and at least one."""
    for row in rows:
        yield row
        size -= row[1] or 0
        if size <= 0:
            return


def survey(reader: IndexedReader, stream: Stream, before: int) -> Survey | None:
    """Which rows a compaction would keep; None when there is nothing to merge. Reads only, in any thread."""
    bounds = reader.bounds(stream)
    first = reader.commits(stream, bounds.first_commit, limit=1)
    last = reader.last_commit(stream, before)
    if last is None or not stream.compact_by or reader.index.is_merged(reader.ident(stream), last):
        return None
    kept, rows = [], 0
    for partition in range(stream.partitions):
        start, end = bounds.starts[partition], last.ends[partition]
        blocks = reader.read(stream, partition, start, end, _columns(stream)) if start < end else iter(())
        indices, count = _newest(list(_copied(blocks)), stream)
        kept.append(indices)
        rows += count
    return Survey(stream, first[0].bound_us, last, tuple(kept), rows)


def _copied(blocks: Iterator[Block]) -> Iterator[pa.RecordBatch]:
    """Columns on their own, in few batches: as they come they hold on to their whole block."""
    while batches := [block.batch for block in islice(blocks, BLOCKS_AT_ONCE)]:
        yield pa.concat_batches([*batches, batches[0].slice(0, 0)])


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
    """The keys as columns that Arrow can group by: it takes neither structs nor lists."""
    columns = [flat for column in table.columns for flat in _flat_column(column)]
    return pa.table(columns, [f"k{index}" for index in range(len(columns))])


def _flat_column(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """A struct as its fields, and whether it is there at all: a null is another key than a struct of nulls."""
    if pa.types.is_struct(column.type):
        yield pc.is_valid(column)
        for child in column.flatten():
            yield from _flat_column(child)
    elif pa.types.is_nested(column.type):
        yield pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])
    else:
        yield column


def _alive(table: pa.Table, stream: Stream) -> npt.NDArray[np.bool_] | None:
    mark = _mark(stream)
    if mark is None:
        return None
    column = table.column(mark)
    kept = pc.is_valid(column) if mark == "value" else pc.fill_null(pc.not_equal(column, DELETE), True)
    alive: npt.NDArray[np.bool_] = kept.to_numpy()
    return alive


def _joined(merged: _Merged, schema: pa.Schema) -> tuple[pa.RecordBatch, bytes]:
    if not merged.batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema), b""
    offsets = pa.concat_arrays(merged.offsets)
    return pa.concat_batches(merged.batches), np.ascontiguousarray(offsets.to_numpy()).tobytes()
