"""Knows the newest row of every key of a compacted stream, so that an append can require what stands there.

It is loaded from the stream when somebody first requires something of one of its rows, and follows the commits from
then on. It holds where each row stands, not what it says: about 240 bytes a key. A condition on a row's values reads
that row from the log, and all of the stream before it once compaction has merged it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import DELETE, OP
from penstock.errors import ConditionError, PositionGoneError
from penstock.log.log import Block, LogReader, RowIs, Stream

Place = tuple[int, int]
"""Partition and offset."""


class RowIndex:
    """Of one stream; the log's writer stages what a commit changes, and then commits or discards it."""

    def __init__(self, log: LogReader, stream: Stream) -> None:
        self._log, self._stream = log, stream
        self._starts = log.bounds(stream).starts
        self._places: dict[bytes, Place] = {}
        self._staged: dict[bytes, dict[str, Any] | None] = {}
        for partition, start in enumerate(self._starts):
            for block in log.read(stream, partition, start, columns=_columns(stream)):
                self._move(block.batch, [(partition, offset) for offset in block.offsets.to_pylist()])

    def is_of(self, stream: Stream) -> bool:
        """False when the stream was trimmed, or changed in any other way than by commits, since this was loaded."""
        return stream == self._stream and self._log.bounds(stream).starts == self._starts

    def check(self, wanted: RowIs) -> None:
        """Raises `ConditionError` when the row is another one than the condition says."""
        key = msgspec.json.encode(wanted.key)
        staged = key in self._staged
        place = None if staged else self._places.get(key)
        there = self._staged[key] is not None if staged else place is not None
        if there != wanted.exists:
            raise _refused(wanted, "it exists" if there else "it does not exist")
        if wanted.version is not None and (place is None or place[1] != wanted.version):
            raise _refused(wanted, "it was changed in this commit" if place is None else f"its version is {place[1]}")
        if wanted.values is not None and there:
            row = self._staged[key] if place is None else self._row(key, place)
            differing = [name for name, value in wanted.values.items() if row is None or row.get(name) != value]
            if differing:
                raise _refused(wanted, f"other values stand in {', '.join(differing)}")

    def stage(self, batch: pa.RecordBatch) -> None:
        """These rows are appended in the commit under way."""
        rows = zip(_keys(batch, self._stream), _deletes(batch, self._stream), batch.to_pylist(), strict=True)
        self._staged |= {key: None if deleted else row for key, deleted, row in rows}

    def commit(self, placed: Iterable[tuple[pa.RecordBatch, list[Place]]]) -> None:
        """What was staged stands in the log now, each row at its place."""
        self._staged.clear()
        for batch, places in placed:
            self._move(batch, places)

    def discard(self) -> None:
        self._staged.clear()

    def _move(self, batch: pa.RecordBatch, places: list[Place]) -> None:
        for key, deleted, place in zip(_keys(batch, self._stream), _deletes(batch, self._stream), places, strict=True):
            if deleted:
                self._places.pop(key, None)
            else:
                self._places[key] = place

    def _row(self, key: bytes, place: Place) -> dict[str, Any] | None:
        partition, offset = place
        try:
            return _found(self._log.read(self._stream, partition, offset, offset + 1), self._stream, key, offset)
        except PositionGoneError:  # merged: reading from within is refused
            blocks = self._log.read(self._stream, partition, self._starts[partition])
            return _found(blocks, self._stream, key, offset)


def _found(blocks: Iterator[Block], stream: Stream, key: bytes, offset: int) -> dict[str, Any] | None:
    for block in blocks:
        for number, (at, known) in enumerate(zip(block.offsets.to_pylist(), _keys(block.batch, stream), strict=True)):
            if at == offset and known == key:
                row: dict[str, Any] = block.batch.slice(number, 1).to_pylist()[0]
                return row
    return None


def _keys(batch: pa.RecordBatch, stream: Stream) -> list[bytes]:
    columns = [batch.column(name).to_pylist() for name in stream.compact_by]
    return [msgspec.json.encode(values) for values in zip(*columns, strict=True)]


def _deletes(batch: pa.RecordBatch, stream: Stream) -> list[bool]:
    """Which rows are tombstones."""
    if OP not in stream.schema.names:
        return [False] * batch.num_rows
    return [bool(delete) for delete in pc.equal(batch.column(OP), DELETE).to_pylist()]


def _columns(stream: Stream) -> list[str]:
    return [*stream.compact_by, *([OP] if OP in stream.schema.names and OP not in stream.compact_by else [])]


def _refused(wanted: RowIs, detail: str) -> ConditionError:
    return ConditionError(
        f"a row of '{wanted.stream.name}' is not what was required of it",
        detail=f"key {list(wanted.key)}: {detail}",
        hint="read the row again, and decide anew",
    )
