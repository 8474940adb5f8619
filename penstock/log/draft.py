"""Works out one commit before anything of it is written: whose events are taken, where they will stand, what is kept.

Nothing here touches the disk or changes what a writer knows, so a commit that fails leaves nothing to undo but the
staged ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import FencedError, SequenceGapError
from penstock.evolution import adapt
from penstock.log import control
from penstock.log.control import Mark, Producers, producer_key
from penstock.log.ids import IdIndex
from penstock.log.log import Append, Appended, Commit, Stream
from penstock.position import Position
from penstock.schema import ID, KEY, TIME, TIMESTAMP

PIECE_BYTES = 64 * 1024**2
"""A block is cut above this size: SQLite takes no blob above 1 GB, and a reader holds a whole block."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a stream ends, as its only writer knows it. Never changed: a commit makes a new one."""

    stream: Stream
    ends: tuple[int, ...]
    next_commit: int = 0
    total_rows: int = 0
    total_bytes: int = 0
    max_us: int | None = None
    ids: IdIndex | None = None

    @property
    def position(self) -> Position:
        return self.stream.position(self.ends)


@dataclass(frozen=True, slots=True)
class Piece:
    """A block to be written: `start` to `stop` in a partition; a changelog's large commit has several."""

    partition: int
    start: int
    stop: int
    piece: int
    rows: int
    data: pa.Buffer


@dataclass(frozen=True, slots=True)
class Draft:
    """What one commit does to one stream."""

    commit: Commit
    pieces: list[Piece]
    after: Tail


def draft(tail: Tail, batch: pa.RecordBatch, meta: Mapping[str, Any] | None, now_us: int) -> Draft:
    """The next commit of a stream with these events."""
    pieces = list(_pieces(tail, batch))
    least, most = _times(batch)
    size = sum(piece.data.size for piece in pieces)
    max_us = most if tail.max_us is None or (most is not None and most > tail.max_us) else tail.max_us
    after = replace(
        tail,
        ends=_ends(tail, pieces),
        next_commit=tail.next_commit + 1,
        total_rows=tail.total_rows + batch.num_rows,
        total_bytes=tail.total_bytes + size,
        max_us=max_us,
    )
    facts = None if meta is None else dict(meta)
    commit = Commit(
        number=tail.next_commit,
        ends=after.ends,
        rows=batch.num_rows,
        total_rows=after.total_rows,
        bound_us=tail.max_us,
        max_us=max_us,
        min_us=least,
        written_us=now_us,
        meta=facts,
        bytes=size,
    )
    return Draft(commit, pieces, after)


def _ends(tail: Tail, pieces: Sequence[Piece]) -> tuple[int, ...]:
    ends = list(tail.ends)
    for piece in pieces:
        ends[piece.partition] = piece.stop
    return tuple(ends)


def _times(batch: pa.RecordBatch) -> tuple[int | None, int | None]:
    index = batch.schema.get_field_index(TIME)
    if index < 0 or not batch.num_rows:
        return None, None
    column = batch.column(index)
    if not column.type.equals(TIMESTAMP):
        column = column.cast(TIMESTAMP)
    if column.null_count:
        column = column.drop_null()
    times = column.view(pa.int64()).to_numpy()  # a quarter of the time that Arrow's own kernel takes for a few rows
    return (int(times.min()), int(times.max())) if len(times) else (None, None)


def _pieces(tail: Tail, batch: pa.RecordBatch) -> Iterator[Piece]:
    if tail.stream.counts == "commits":
        start = tail.next_commit
        for number, part in enumerate(_cut(batch) or [batch]):
            yield Piece(0, start, start + 1, number, part.num_rows, part.serialize())
        return
    for partition, whole in enumerate(split(batch, tail.stream.partitions)):
        start = tail.ends[partition]
        for part in _cut(whole):
            yield Piece(partition, start, start + part.num_rows, 0, part.num_rows, part.serialize())
            start += part.num_rows


def _cut(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    if not batch.num_rows:
        return []
    if batch.get_total_buffer_size() <= PIECE_BYTES:  # never less than nbytes, and found in a fifth of the time
        return [batch]
    rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, PIECE_BYTES))
    return [batch.slice(at, rows) for at in range(0, batch.num_rows, rows)]


def split(batch: pa.RecordBatch, partitions: int) -> list[pa.RecordBatch]:
    """The batch by partition. An event's partition is the CRC-32 of its key: stable over processes and versions."""
    index = batch.schema.get_field_index(KEY)
    if partitions == 1 or index < 0 or not batch.num_rows:
        return [batch, *(batch.slice(0, 0) for _ in range(partitions - 1))]
    column = batch.column(index).dictionary_encode()
    places = [0 if key is None else zlib.crc32(_bytes(key)) % partitions for key in column.dictionary.to_pylist()]
    codes = pc.fill_null(column.indices, len(places)).to_numpy(zero_copy_only=False)
    of_row = np.array([*places, 0], np.int64)[codes]
    return [batch.filter(pa.array(of_row == partition)) for partition in range(partitions)]


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


# A call of append


@dataclass(slots=True)
class Plan:
    """One commit, worked out: what each append gets, what is written, what will be remembered."""

    results: list[Appended | Exception]
    drafts: list[Draft]
    memory: dict[str, Any | None]
    staged: list[IdIndex]

    def commit(self) -> None:
        for index in self.staged:
            index.commit()

    def discard(self) -> None:
        for index in self.staged:
            index.discard()


@dataclass(slots=True)
class _Taken:
    """The appends to one stream that are new, and where the stream ends with them."""

    tail: Tail
    indices: list[int]
    duplicates: dict[int, tuple[int, ...]]
    after: Tail
    behind: Position


class Planner:
    """Plans commits against what a writer knows."""

    def __init__(self, tails: Callable[[Stream], Tail], producers: Producers) -> None:
        self._tails = tails
        self._producers = producers

    def plan(self, appends: Sequence[Append], remember: Mapping[str, Any | None], now_us: int) -> Plan:
        """What these appends become; the ids of their events are staged."""
        attempt = _Attempt(appends, now_us, self._tails, self._producers)
        try:
            return attempt.run(remember)
        except BaseException:
            attempt.discard()
            raise


class _Attempt:
    """One attempt to plan a commit."""

    def __init__(
        self,
        appends: Sequence[Append],
        now_us: int,
        tails: Callable[[Stream], Tail],
        producers: Producers,
    ) -> None:
        self._appends = appends
        self._now_us = now_us
        self._tails = tails
        self._producers = producers
        self._taken: dict[tuple[str, str], _Taken] = {}
        self._heard: dict[str, tuple[int, int, int]] = {}
        self._repeats: dict[int, Mark | None] = {}
        self._results: list[Appended | Exception | None] = [None] * len(appends)
        self._drafts: list[Draft] = []

    def run(self, remember: Mapping[str, Any | None]) -> Plan:
        for index, append in enumerate(self._appends):
            self._screen(index, append)
        for taken in self._taken.values():
            if taken.indices:
                self._draft(taken)
        memory = dict(remember)
        for index, append in enumerate(self._appends):
            if self._results[index] is None:
                self._results[index] = self._appended(index, append)
                memory |= self._remembered(index, append)
        memory |= self._marks()
        results = [result for result in self._results if result is not None]
        return Plan(results, self._drafts, memory, self._staged())

    def discard(self) -> None:
        for index in self._staged():
            index.discard()

    def _staged(self) -> list[IdIndex]:
        return [taken.tail.ids for taken in self._taken.values() if taken.tail.ids is not None]

    def _screen(self, index: int, append: Append) -> None:
        """Sort out what is refused; the rest goes to its stream's share of the commit."""
        tail = self._tails(append.stream)
        try:
            new = self._may_follow(index, append) and (append.producer is None or self._is_new(index, append))
        except (FencedError, SequenceGapError) as error:
            self._results[index] = error
            return
        key = (append.stream.name, append.stream.epoch)
        if key not in self._taken:
            self._taken[key] = _Taken(tail, [], {}, tail, tail.position)
        if new:
            self._taken[key].indices.append(index)

    def _may_follow(self, index: int, append: Append) -> bool:
        if append.follows and (index - 1 in self._repeats or self._results[index - 1] is not None):
            self._repeats[index] = None
            return False
        return True

    def _is_new(self, index: int, append: Append) -> bool:
        producer = append.producer
        assert producer is not None
        key = producer_key(append.stream, producer)
        mark = self._producers.known(append.stream, producer)
        epoch, sequence = (mark.epoch, mark.sequence) if mark else (None, -1)
        if key in self._heard:
            epoch, sequence, _ = self._heard[key]
        if control.judge(producer, epoch, sequence) == "repeated":
            self._repeats[index] = None if key in self._heard else mark
            return False
        self._heard[key] = (producer.epoch, producer.sequence, index)
        return True

    def _draft(self, taken: _Taken) -> None:
        """One stream's share: its appends as one batch, without the duplicates."""
        appends = [self._appends[index] for index in taken.indices]
        metas = [append.meta for append in appends if append.meta is not None]
        if len(metas) > 1:
            raise ValueError(f"two appends to '{taken.tail.stream.name}' in one commit carry meta")
        batch = _joined([append.batch for append in appends], taken.tail.stream.schema)
        fresh = self._deduplicated(taken, batch)
        if fresh.num_rows or metas or any(not append.batch.num_rows for append in appends):
            made = draft(taken.tail, fresh, metas[0] if metas else None, self._now_us)
            taken.after, taken.behind = made.after, made.after.position
            self._drafts.append(made)

    def _deduplicated(self, taken: _Taken, batch: pa.RecordBatch) -> pa.RecordBatch:
        index = batch.schema.get_field_index(ID)
        if taken.tail.ids is None or index < 0 or not batch.num_rows:
            return batch
        known = taken.tail.ids.stage(batch.column(index), self._now_us)
        if not known.any():
            return batch
        at = 0
        for append in taken.indices:
            rows = self._appends[append].batch.num_rows
            taken.duplicates[append] = tuple(np.flatnonzero(known[at : at + rows]).tolist())
            at += rows
        return batch.filter(pa.array(~known))

    def _appended(self, index: int, append: Append) -> Appended:
        taken = self._taken[append.stream.name, append.stream.epoch]
        commit = taken.after.next_commit - 1
        if index in self._repeats:
            mark = self._repeats[index]
            return Appended(taken.behind if mark is None else mark.position, commit, 0, repeated=True)
        duplicates = taken.duplicates.get(index, ())
        return Appended(taken.behind, commit, append.batch.num_rows - len(duplicates), duplicates)

    def _remembered(self, index: int, append: Append) -> Mapping[str, Any | None]:
        result = self._results[index]
        if append.remember is None or not isinstance(result, Appended):
            return {}
        return append.remember(result)

    def _marks(self) -> dict[str, Any | None]:
        """What is stored of the producers that this commit heard, and of those it forgets."""
        marks: dict[str, Any | None] = {}
        for key, (epoch, sequence, index) in self._heard.items():
            append = self._appends[index]
            behind = self._taken[append.stream.name, append.stream.epoch].behind
            marks[key] = [epoch, sequence, behind.token()]
        if marks:
            forgotten = self._producers.to_forget(self._now_us)
            marks = dict.fromkeys(key for key in forgotten if key not in marks) | marks
        return marks


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    conforming = [_conforming(batch, schema) for batch in batches]
    if len(conforming) == 1:
        return conforming[0]
    return pa.concat_batches(conforming) if conforming else schema.empty_table().to_batches()[0]


def _conforming(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch under the stream's schema: the same columns, though order and width may differ."""
    if batch.schema.equals(schema):
        return batch
    if set(batch.schema.names) != set(schema.names):
        odd = sorted(set(batch.schema.names) ^ set(schema.names))
        raise ValueError(f"a batch and its stream do not have the same columns: {', '.join(odd)}")
    return adapt(batch, schema)
