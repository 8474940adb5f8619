"""Copies a log of a stopped app into another, empty one, so that nobody who knew the first can tell them apart.

1. Every stream keeps its name, epoch, offsets, versions of its schema, and its commits their numbers, bounds, times and
   metas. So positions of clients, sequences of producers, checkpoints and progress stay good.
2. A log that is only half copied is refused by whoever opens it, until the copy is finished.
3. A copy that was interrupted goes on behind the last commit that arrived. One that is finished is found to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from penstock.clock import Clock, SystemClock
from penstock.errors import CorruptBlockError, FolderMismatchError
from penstock.log.index.reader import IndexedReader
from penstock.log.index.tables import Index, Payloads, Stored, Tables, WritableDatabase, checksum
from penstock.log.log import CONTROL, Bounds, Commit, Stream, StreamSpec
from penstock.log.opening import open_copy, open_reader

COMMITS = 500
BYTES = 4 * 1024**2
"""What is copied in one transaction; a larger commit is one of its own."""
_PAGE = 64


@dataclass
class CopyCount:
    """What was copied."""

    streams: int = 0
    commits: int = 0
    events: int = 0


def copy_log(
    place: str,
    into: str,
    app: str,
    tell: Callable[[str], None] = lambda line: None,
    clock: Clock | None = None,
) -> CopyCount | None:
    """Copy the log at a place; None: that was done before. The source must not be written to meanwhile. Raises
    `FolderMismatchError` when the other place holds anything but a part of this copy."""
    with closing(open_reader(place)) as reader:
        assert isinstance(reader, IndexedReader)
        control = reader.find(CONTROL)
        if control is None:
            return CopyCount()
        if not _is_wanted(into, control.epoch):
            return None
        database, payloads = open_copy(into, app, clock or SystemClock())
        try:
            return LogCopy(reader, database, payloads, control.epoch, tell).run()
        finally:
            database.close()


def _is_wanted(into: str, source: str) -> bool:
    with closing(open_reader(into)) as target:
        assert isinstance(target, IndexedReader)
        meta = target.index.meta()
    if meta.get("copied") == source:
        return False
    if meta.get("app") is not None and meta.get("copying") != source:
        raise FolderMismatchError(
            "the log to copy into is not empty",
            detail=f"'{into.partition('?')[0]}' is written by the app '{meta['app']}'",
            hint="copy into a Kafka that has no topics of this app, or delete them there",
        )
    return True


class LogCopy:
    """One copy under way; the target is in our hands."""

    def __init__(
        self,
        source: IndexedReader,
        target: WritableDatabase,
        payloads: Payloads,
        name: str,
        tell: Callable[[str], None],
    ) -> None:
        self._source, self._target, self._payloads = source, target, payloads
        self._there = Index(target)
        self._name, self._tell = name, tell
        self._count = CopyCount()

    def run(self) -> CopyCount:
        with self._target.transaction() as tables:
            tables.mark_copy(self._name, done=False)
        for stream in self._source.streams():
            self._copy(stream)
            self._count.streams += 1
        with self._target.transaction() as tables:
            tables.mark_copy(self._name, done=True)
        return self._count

    def _copy(self, stream: Stream) -> None:
        ident = self._there.ident(stream)
        if ident is None:
            self._make(stream)
            ident = self._there.ident(stream)
            assert ident is not None
        batch: list[tuple[Commit, int, list[Stored]]] = []
        size = events = 0
        for commit, total_bytes, blocks in self._commits(stream, ident):
            batch.append((commit, total_bytes, blocks))
            size += sum(len(block.data or b"") for block in blocks)
            events += commit.rows
            if len(batch) >= COMMITS or size >= BYTES:
                self._write(stream, ident, batch)
                batch, size = [], 0
        self._write(stream, ident, batch)
        self._tell(f"'{stream.name}': {events:,} events")
        self._count.events += events

    def _make(self, stream: Stream) -> None:
        """The stream with all its schemas, beginning where it begins."""
        ident, bounds = self._found(stream)
        schemas = self._source.index.schemas(ident)
        removed = self._source.index.total_bytes(ident, bounds.next_commit - 1) - bounds.bytes
        spec = StreamSpec(
            stream.name,
            stream.schema,
            partitions=stream.partitions,
            unique=stream.unique,
            counts=stream.counts,
            compact_by=stream.compact_by,
            epoch=stream.epoch,
        )
        with self._target.transaction() as tables:
            tables.add_stream(spec, stream.epoch, schemas[0][1])
            made = tables.ident(stream.name, stream.epoch)
            for version, schema in schemas[1:]:
                tables.add_schema(made, version, schema)
            tables.begin_at(made, bounds.starts, removed)

    def _found(self, stream: Stream) -> tuple[int, Bounds]:
        found = self._source.index.bounds(stream)
        assert found is not None
        return found

    def _commits(self, stream: Stream, ident: int) -> Iterator[tuple[Commit, int, list[Stored]]]:
        """The commits that the target does not have yet, each with the bytes up to it and its blocks."""
        index = self._source.index
        number, bounds = self._found(stream)
        last = self._there.last_commit(ident, None)
        after = -1 if last is None else last.number
        starts = bounds.starts if last is None else last.ends
        pages = [self._blocks(number, p, start, bounds.ends[p], after) for p, start in enumerate(starts)]
        waiting = [next(page, None) for page in pages]
        while commits := index.commits(stream, after + 1, None, COMMITS):
            for commit in commits:
                blocks: list[Stored] = []
                for partition, page in enumerate(pages):
                    while (block := waiting[partition]) is not None and block.number <= commit.number:
                        blocks.append(block)
                        waiting[partition] = next(page, None)
                yield commit, index.total_bytes(number, commit.number), blocks
            after = commits[-1].number

    def _blocks(self, ident: int, partition: int, at: int, end: int, after: int) -> Iterator[Stored]:
        page = self._source.index.first_blocks(ident, partition, at, end, _PAGE, BYTES)
        while page:
            yield from (block for block in page if block.number > after)
            page = self._source.index.blocks_behind(page[-1], end, _PAGE, BYTES)

    def _write(self, stream: Stream, ident: int, batch: list[tuple[Commit, int, list[Stored]]]) -> None:
        if not batch:
            return
        with self._target.transaction() as tables:
            for commit, total_bytes, blocks in batch:
                for block in blocks:
                    self._add_block(tables, stream, ident, block)
                tables.add_commit(ident, commit, total_bytes)
        self._count.commits += len(batch)

    def _add_block(self, tables: Tables, stream: Stream, ident: int, block: Stored) -> None:
        if block.data is None or checksum(block[:11], block.data, block.offsets) != block.checksum:
            raise CorruptBlockError(
                f"a block of the stream '{stream.name}' is gone or damaged",
                detail=f"commit {block.number}, partition {block.partition}, offset {block.start}",
                hint="restore the log's file from a copy of it",
            )
        facts = (ident, *block[1:11])
        payload = self._payloads.put(stream, block.partition, pa.py_buffer(block.data), block.offsets)
        tables.add_block(Stored(*facts, checksum(facts, block.data, block.offsets), payload))
