"""Reads a log over its index, from any process and thread, while its writer writes or when there is none.

1. Every call sees all that was committed before it.
2. A page of blocks is one short look at the index. The exception is a compacted stream read from its beginning: that is
   one look, because half of it from before a compaction and half from behind would be neither.
3. Merged blocks are given only to a reader that begins at the stream's beginning: whoever stands inside the merged
   range would miss its deletes, and gets `PositionGoneError`.
4. Blocks must follow each other without a gap: one that is missing is an error, never a silent skip.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import CorruptBlockError, PositionGoneError
from penstock.evolution import adapt
from penstock.log.control import Recall
from penstock.log.index.tables import Database, ElsewherePayloads, Index, Payloads, Stored, checksum
from penstock.log.log import CONTROL, Block, Bounds, Commit, LogHealth, Stream, Version, Writer

_PAGE_BLOCKS = 64
_PAGE_BYTES = 4 * 1024**2
"""A page ends with whichever comes first, so that neither many small blocks nor few large ones fill the memory."""
_FIRST_PAGE_BLOCKS = 8
"""The first page is small: most readers want the newest few blocks."""


class _Range(NamedTuple):
    """What one call of `read` asks for."""

    stream: Stream
    ident: int
    partition: int
    start: int
    end: int
    target: pa.Schema
    whole: bool


class IndexedReader:
    """A reader of one log."""

    def __init__(self, place: str, database: Database, payloads: Payloads) -> None:
        self.place = place
        self.database = database
        self.payloads = payloads
        self.index = Index(database)
        self._memory_lock = threading.Lock()
        self._schemas: dict[tuple[int, int], pa.Schema] = {}
        self._recall = Recall()

    def close(self) -> None:
        self.database.close()

    # Streams

    def streams(self) -> list[Stream]:
        return [self._stream(row) for row in self.index.streams()]

    def find(self, name: str, epoch: str | None = None) -> Stream | None:
        rows = self.index.streams(name, epoch)
        return self._stream(rows[0]) if rows else None

    def bounds(self, stream: Stream) -> Bounds:
        return self._bounds(stream, self.index)[1]

    def _bounds(self, stream: Stream, index: Index) -> tuple[int, Bounds]:
        found = index.bounds(stream)
        if found is None:
            raise _gone(stream)
        return found

    def _stream(self, row: Sequence[Any]) -> Stream:
        ident, name, epoch, partitions, unique, counts, compact_by, version, arrow = row
        if (ident, version) not in self._schemas:
            self._schemas[ident, version] = _read_schema(arrow)
        keys = tuple(msgspec.json.decode(compact_by))
        schema = self._schemas[ident, version]
        return Stream(name, epoch, partitions, bool(unique), counts, keys, schema, self.place)

    def versions(self, stream: Stream) -> list[Version]:
        ident = self.ident(stream)
        oldest = self.index.oldest_version_held(ident)
        return [
            Version(number, _read_schema(arrow), _made_us(arrow), oldest is not None and number >= oldest)
            for number, arrow in self.index.schemas(ident)
        ]

    def schema(self, stream: Stream, ident: int, version: int) -> pa.Schema:
        """A version of a stream's schema, which never changes."""
        if (ident, version) not in self._schemas:
            arrow = self.index.schema(ident, version)
            if arrow is None:
                self.ident(stream)  # it was dropped while it was read: that is told
                raise CorruptBlockError(f"a schema of the stream '{stream.name}' is missing", detail=self.database.name)
            self._schemas[ident, version] = _read_schema(arrow)
        return self._schemas[ident, version]

    def ident(self, stream: Stream) -> int:
        """The number under which the index knows a stream; another one when it was dropped and made again."""
        ident = self.index.ident(stream)
        if ident is None:
            raise _gone(stream)
        return ident

    # Commits

    def commits(self, stream: Stream, start: int, end: int | None = None, limit: int | None = None) -> list[Commit]:
        commits = self.index.commits(stream, start, end, limit)
        if not commits:
            self.ident(stream)  # one that was dropped is told
        return commits

    def last_commit(self, stream: Stream, below: int | None = None) -> Commit | None:
        return self.index.last_commit(self.ident(stream), below)

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
        ident, bounds = self._bounds(stream, self.index)
        begin, behind = bounds.starts[partition], bounds.ends[partition]
        if start < begin:
            raise _gone(stream, f"it begins at {begin} and {start} was asked for")
        last = behind if end is None else min(end, behind)
        wanted = _Range(stream, ident, partition, start, last, _target(stream, columns), False)
        if stream.compact_by and start == begin:
            whole = wanted._replace(whole=True)
            return self.database.at_one_moment(lambda look: self._from_start(whole, Index(look), end is None))
        return self._in_pages(wanted, self.index)

    def read_merged(self, stream: Stream, partition: int, end: int) -> Iterator[Block]:
        """From the beginning, merged blocks too, page by page: for the writer, which alone can merge meanwhile."""
        ident, bounds = self._bounds(stream, self.index)
        wanted = _Range(stream, ident, partition, bounds.starts[partition], end, stream.schema, True)
        return self._in_pages(wanted, self.index)

    def _from_start(self, wanted: _Range, index: Index, to_the_end: bool) -> Iterator[Block]:
        if to_the_end:
            _, bounds = self._bounds(wanted.stream, index)
            wanted = wanted._replace(end=bounds.ends[wanted.partition])
        return self._in_pages(wanted, index)

    def _in_pages(self, wanted: _Range, index: Index) -> Iterator[Block]:
        return (self._block(wanted, row) for row in self._stored(wanted, index))

    def _stored(self, wanted: _Range, index: Index) -> Iterator[Stored]:
        at, last = wanted.start, None
        in_pieces = wanted.stream.counts == "commits"
        while at < wanted.end or (in_pieces and last is not None):
            page, is_last = _page(wanted, index, at, last)
            for row in page:
                self._check_order(wanted, row, at, last)
                at, last = row.stop, row
                yield row
            if is_last and at < wanted.end:
                raise self._lost(wanted, at)
            if is_last:
                return

    def _check_order(self, wanted: _Range, row: Stored, at: int, last: Stored | None) -> None:
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
            detail=self.database.name,
            hint="restore the log from a copy",
        )

    def _block(self, wanted: _Range, row: Stored) -> Block:
        row = self._with_data(wanted.stream, row)
        schema = self.schema(wanted.stream, row.stream, row.version)
        return block_of(row, wanted.stream, schema, (wanted.start, wanted.end), wanted.target, self.database.name)

    def placed(self, stream: Stream, partition: int, start: int, end: int) -> PlacedRange | None:
        if not isinstance(self.payloads, ElsewherePayloads) or stream.compact_by:
            return None
        wanted = _Range(stream, self.ident(stream), partition, start, end, stream.schema, False)
        rows = list(self._stored(wanted, self.index))
        places = self.index.places([row.payload for row in rows])
        if missing := [row for row in rows if row.payload not in places]:
            raise _gone(stream, f"what stood at {missing[0].start} was removed while it was looked for")
        blocks = [((*row[:13], None, None, row.earliest_us), places[row.payload][1:]) for row in rows]
        versions = {row.version for row in rows}
        schemas = {version: bytes(self.schema(stream, wanted.ident, version).serialize()) for version in versions}
        return PlacedRange(start, end, blocks, schemas)

    def _with_data(self, stream: Stream, row: Stored) -> Stored:
        if row.data is not None:
            return row
        found = self.payloads.get(row)
        if found is None and not self.index.holds(row):
            raise _gone(stream, f"what stood at {row.start} was removed while it was read")
        return row if found is None else row._replace(data=found[0], offsets=found[1])

    # Memory and change

    def memory(self) -> Mapping[str, Any]:
        with self._memory_lock:
            stream = self.find(CONTROL)
            return self._recall.refreshed(self, stream) if stream else {}

    def revision(self) -> int:
        return self.database.revision()

    def writer(self) -> Writer | None:
        return self.database.writer()

    def health(self) -> LogHealth:
        return self.database.health()

    def see_all(self) -> None:
        self.database.see_all()


# Blocks


class PlacedRange(msgspec.Struct, frozen=True, array_like=True):
    """A range of a partition with all that is known of its blocks, so that whoever has no index can read them."""

    start: int
    end: int
    blocks: list[tuple[tuple[Any, ...], tuple[Any, ...]]]
    """Of each the fields of `Stored` without its bytes, and where these lie."""
    schemas: dict[int, bytes]
    """By version, those that the blocks were written with."""

    def read(
        self, stream: Stream, columns: Sequence[str] | None, fetch: Callable[..., tuple[Any, bytes | None] | None]
    ) -> Iterator[Block]:
        """`fetch` gives the bytes and offsets at a place, or None where they are gone."""
        schemas = {version: pa.ipc.read_schema(pa.py_buffer(arrow)) for version, arrow in self.schemas.items()}
        target = _target(stream, columns)
        for facts, place in self.blocks:
            row, found = Stored(*facts), fetch(*place)
            if found is None:
                raise _gone(stream, f"what stood at {row.start} is not where it was any more")
            row = row._replace(data=found[0], offsets=found[1])
            yield block_of(row, stream, schemas[row.version], (self.start, self.end), target, str(place))


def block_of(
    row: Stored, stream: Stream, schema: pa.Schema, wanted: tuple[int, int], target: pa.Schema, where: str
) -> Block:
    """A stored block, which has its bytes, cut to a range and to some columns."""
    batch = adapt(_decoded(row, stream, schema, where), target)
    start, end = max(row.start, wanted[0]), min(row.stop, wanted[1])
    offsets = _offsets(row, stream)
    if (start, end) != (row.start, row.stop) and stream.counts == "events":
        batch = batch.slice(start - row.start, end - start)
        offsets = offsets.slice(start - row.start, end - start)
    facts = (row.partition, start, end, row.number, row.bound_us, row.written_us)
    return Block(*facts, batch, offsets, row.earliest_us)


def _decoded(row: Stored, stream: Stream, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """A stored block's events under the schema they were written with, once the checksum has been verified."""
    if row.data is None or checksum(row[:11], row.data, row.offsets) != row.checksum:
        raise CorruptBlockError(
            f"a block of the stream '{stream.name}' has another checksum than its bytes",
            detail=f"partition {row.partition}, offsets {row.start} to {row.stop}, in {where}",
            hint="the disk returned something else than was written; restore the log from a copy",
        )
    return pa.ipc.read_record_batch(pa.py_buffer(row.data), schema)


def _page(wanted: _Range, index: Index, at: int, last: Stored | None) -> tuple[list[Stored], bool]:
    """The next blocks, and whether there are no more of this range: a commit is there with all its pieces."""
    if last is None:
        limit = _FIRST_PAGE_BLOCKS
        page = index.first_blocks(wanted.ident, wanted.partition, at, wanted.end, limit, _PAGE_BYTES)
    else:
        limit = _PAGE_BLOCKS
        page = index.blocks_behind(last, wanted.end, limit, _PAGE_BYTES)
    whole = sum(len(row.data or b"") for row in page) < _PAGE_BYTES
    return page, whole and len(page) < limit


MADE_US = b"penstock.made_us"
"""Metadata of a stored schema, and of no other: when it was declared."""


def _read_schema(arrow: bytes) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(arrow))
    rest = {key: value for key, value in (schema.metadata or {}).items() if key != MADE_US}
    return schema.with_metadata(rest or None)


def _made_us(arrow: bytes) -> int | None:
    noted = (pa.ipc.read_schema(pa.py_buffer(arrow)).metadata or {}).get(MADE_US)
    return None if noted is None else int(noted)


def _target(stream: Stream, columns: Sequence[str] | None) -> pa.Schema:
    return stream.schema if columns is None else pa.schema([stream.schema.field(name) for name in columns])


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
