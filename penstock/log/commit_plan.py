"""Works out one commit before anything of it is written: whose events are taken, where they will stand, what is kept.

Nothing here writes to the disk or changes what a writer knows, so a commit that fails leaves nothing to undo but the
staged ids and rows.

Appends are screened in their order. What those before have changed is worked out when a condition asks for it, and at
the end: ids of many appends are looked up at once, and an append without conditions costs nothing for theirs.
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

from penstock.errors import ConditionError, FencedError, SequenceGapError
from penstock.evolution import adapt
from penstock.log import control
from penstock.log.control import Mark, Producers, producer_key
from penstock.log.ids import IdIndex
from penstock.log.log import (
    Append,
    Appended,
    Commit,
    Condition,
    Count,
    EndsAt,
    KeyIs,
    LogReader,
    OutcomeKey,
    RowIs,
    Rows,
    Share,
    Stream,
)
from penstock.log.rows import Place, RowIndex
from penstock.position import Position
from penstock.schema import ID, KEY, TIME, TIMESTAMP

PIECE_BYTES = 64 * 1024**2
"""A block is cut above this size: SQLite takes no blob above 1 GB, and a reader holds a whole block."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Where a stream ends, as its only writer knows it. Never changed: a commit makes a new one."""

    stream: Stream
    ends: tuple[int, ...]
    next_commit: int = 0
    total_rows: int = 0
    total_bytes: int = 0
    max_us: int | None = None
    ids: IdIndex | None = None
    complete_us: int | None = None
    late_after_us: int | None = None

    @property
    def complete(self) -> int | None:
        """What is older is late in the next commit."""
        return greatest(self.complete_us, behind(self.max_us, self.late_after_us))

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
    after: StreamEnd


def behind(newest_us: int | None, late_after_us: int | None) -> int | None:
    """How far a stream is complete by its newest event; None: that says nothing."""
    return None if newest_us is None or late_after_us is None else newest_us - late_after_us


def greatest(*times: int | None) -> int | None:
    return max((each for each in times if each is not None), default=None)


def draft(
    tail: StreamEnd,
    batch: pa.RecordBatch,
    meta: Mapping[str, Any] | None,
    now_us: int,
    complete_us: int | None = None,
) -> Draft:
    """The next commit of a stream with these events, complete up to there at least."""
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
        complete_us=greatest(tail.complete, behind(max_us, tail.late_after_us), complete_us),
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
        earliest_us=tail.complete,
        complete_us=after.complete_us,
    )
    return Draft(commit, pieces, after)


def _ends(tail: StreamEnd, pieces: Sequence[Piece]) -> tuple[int, ...]:
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


def _pieces(tail: StreamEnd, batch: pa.RecordBatch) -> Iterator[Piece]:
    if tail.stream.counts == "commits":
        start = tail.next_commit
        for number, part in enumerate(_cut(batch) or [batch]):
            yield Piece(0, start, start + 1, number, part.num_rows, part.serialize())
        return
    for partition, whole in enumerate(split(batch, tail.stream.partitions, sum(tail.ends))):
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


def split(batch: pa.RecordBatch, partitions: int, before: int = 0) -> list[pa.RecordBatch]:
    """The batch by partition. An event's partition is the CRC-32 of its key: stable over processes and versions. Events
    without a key go to the partitions in turn; `before` is how many events the stream has."""
    index = batch.schema.get_field_index(KEY)
    if partitions == 1 or index < 0 or not batch.num_rows:
        return [batch, *(batch.slice(0, 0) for _ in range(partitions - 1))]
    column = batch.column(index).dictionary_encode()
    places = [0 if key is None else zlib.crc32(_bytes(key)) % partitions for key in column.dictionary.to_pylist()]
    codes = pc.fill_null(column.indices, len(places)).to_numpy(zero_copy_only=False)
    of_row = np.array([*places, 0], np.int64)[codes]
    if column.null_count:
        alone = np.flatnonzero(codes == len(places))
        of_row[alone] = (before + np.arange(len(alone))) % partitions
    return [batch.filter(pa.array(of_row == partition)) for partition in range(partitions)]


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


# A call of append


@dataclass(slots=True)
class CommitPlan:
    """One commit, worked out: what each append gets, what is written, what will be remembered."""

    results: list[Appended | Exception]
    drafts: list[Draft]
    """The last one is the control stream's, if anything is remembered."""
    memory: dict[str, Any | None]
    taken: list[_Taken]

    def commit(self) -> None:
        for taken in self.taken:
            taken.commit()

    def discard(self) -> None:
        for taken in self.taken:
            taken.discard()


@dataclass(slots=True)
class _Taken:
    """The appends to one stream that are new, and where the stream ends with them."""

    tail: StreamEnd
    rows: RowIndex | None
    indices: list[int]
    staged: int
    """How many of these have been looked through for duplicates."""
    fresh: list[pa.RecordBatch]
    """Their events without the duplicates."""
    duplicates: dict[int, tuple[int, ...]]
    after: StreamEnd
    behind: Position
    """Where it ends, made once for all appends."""
    _token: str | None = None

    @property
    def token(self) -> str:
        self._token = self._token or self.behind.token()
        return self._token

    def end(self, made: Draft) -> None:
        self.after, self.behind = made.after, made.after.position

    def commit(self) -> None:
        if self.tail.ids is not None:
            self.tail.ids.commit()
        if self.rows is not None:
            self.rows.commit(placed for batch in self.fresh for placed in _placed(self.tail, batch))

    def discard(self) -> None:
        for staged in (self.tail.ids, self.rows):
            if staged is not None:
                staged.discard()


class CommitPlanner:
    """Plans commits against what a writer knows: the ends of its streams, its memory, its producers."""

    def __init__(
        self,
        log: LogReader,
        tails: Callable[[Stream], StreamEnd],
        control_stream: Stream,
        memory: Mapping[str, Any],
        producers: Producers,
    ) -> None:
        self.log, self.tails, self.control = log, tails, control_stream
        self.memory, self.producers = memory, producers
        self._rows: dict[tuple[str, str], RowIndex] = {}

    def plan(self, appends: Sequence[Append], remember: Mapping[str, Any | None], now_us: int) -> CommitPlan:
        """What these appends become; the ids of their events, and rows that somebody asks for, are staged."""
        attempt = _Attempt(self, appends, now_us)
        try:
            return attempt.run(remember)
        except BaseException:
            attempt.discard()
            raise

    def loaded_rows(self, stream: Stream) -> RowIndex | None:
        """The rows of a compacted stream, if somebody has asked for them; a stream that was trimmed, dropped or given
        another schema since then has to be loaded anew."""
        key = (stream.name, stream.epoch)
        if key in self._rows and not self._rows[key].is_of(stream):
            del self._rows[key]
        return self._rows.get(key)

    def rows(self, stream: Stream) -> RowIndex:
        index = self._rows[stream.name, stream.epoch] = RowIndex(self.log, stream)
        return index


class _Attempt:
    """One attempt to plan a commit."""

    def __init__(self, planner: CommitPlanner, appends: Sequence[Append], now_us: int) -> None:
        self._planner = planner
        self._appends = appends
        self._now_us = now_us
        self._taken: dict[tuple[str, str], _Taken] = {}
        self._shares: list[_Taken] = []
        """For each append its stream's."""
        self._heard: dict[str, tuple[int, int, int]] = {}
        self._repeats: dict[int, Mark | None] = {}
        self._refused: list[Exception | None] = [None] * len(appends)
        self._unsettled: list[int] = []
        self._memory: dict[str, Any | None] = {}
        self._unsigned: list[tuple[int, dict[str, Any]]] = []
        """Outcomes of appends, by their number, that have no token yet."""

    def run(self, remember: Mapping[str, Any | None]) -> CommitPlan:
        self._memory |= remember
        for index, append in enumerate(self._appends):
            self._screen(index, append)
        self._settle()
        drafts = [made for taken in self._taken.values() if taken.indices and (made := self._draft(taken))]
        self._sign()
        self._memory |= self._marks()
        if self._memory:
            taken = self._share_of(self._planner.control)
            drafts.append(draft(taken.tail, control.rows(self._memory), None, self._now_us))
            taken.end(drafts[-1])
        results = [refused or self._appended(index) for index, refused in enumerate(self._refused)]
        return CommitPlan(results, drafts, self._memory, list(self._taken.values()))

    def discard(self) -> None:
        for taken in self._taken.values():
            taken.discard()

    # Who is taken

    def _screen(self, index: int, append: Append) -> None:
        """Sort out what is refused or repeated; the rest goes to its stream's share of the commit."""
        taken = self._share_of(append.stream or self._planner.control)
        self._shares.append(taken)
        if append.follows and (index - 1 in self._repeats or self._refused[index - 1] is not None):
            self._repeats[index] = None
            return
        try:
            new = append.producer is None or self._is_new(index, append)
            for condition in append.requires if new else ():
                self._require(condition)
        except (ConditionError, FencedError, SequenceGapError) as error:
            self._refused[index] = error
            return
        if append.sets or append.counts or append.outcomes:
            self._unsettled.append(index)
        if new and append.stream is not None:
            taken.indices.append(index)
            if (producer := append.producer) is not None:
                self._heard[producer_key(append.stream, producer)] = (producer.epoch, producer.sequence, index)

    def _share_of(self, stream: Stream) -> _Taken:
        key = (stream.name, stream.epoch)
        if key not in self._taken:
            tail = self._planner.tails(stream)
            rows = self._planner.loaded_rows(tail.stream)
            self._taken[key] = _Taken(tail, rows, [], 0, [], {}, tail, tail.position)
        return self._taken[key]

    def _is_new(self, index: int, append: Append) -> bool:
        producer, stream = append.producer, append.stream
        assert producer is not None
        if stream is None:
            raise ValueError("an append with a producer's number needs a stream")
        key = producer_key(stream, producer)
        mark = self._planner.producers.known(stream, producer)
        epoch, sequence = (mark.epoch, mark.sequence) if mark else (None, -1)
        if key in self._heard:
            epoch, sequence, _ = self._heard[key]
        if control.judge(producer, epoch, sequence) == "repeated":
            self._repeats[index] = None if key in self._heard else mark
            return False
        return True

    def _require(self, condition: Condition) -> None:
        """Raises `ConditionError` unless it holds behind all appends that were screened before."""
        self._settle()
        if isinstance(condition, KeyIs):
            self._require_key(condition)
        elif isinstance(condition, EndsAt):
            self._require_end(condition)
        else:
            self._require_row(condition)

    def _require_key(self, wanted: KeyIs) -> None:
        if self._value(wanted.key) != wanted.value:
            raise ConditionError(
                f"the key '{wanted.key}' of the control stream has another value than was required",
                hint="look again, and decide anew",
            )

    def _require_end(self, wanted: EndsAt) -> None:
        taken = self._share_of(wanted.stream)
        if taken.indices or taken.tail.next_commit != wanted.commit:
            raise ConditionError(
                f"something was appended to '{wanted.stream.name}' before",
                detail=f"its next commit was to be {wanted.commit} and is {taken.tail.next_commit}",
                hint="read it to its end, and decide anew",
            )

    def _require_row(self, wanted: RowIs) -> None:
        taken = self._share_of(wanted.stream)
        if taken.rows is None:
            taken.rows = self._planner.rows(taken.tail.stream)
            for batch in taken.fresh:
                taken.rows.stage(batch)
        taken.rows.check(wanted)

    # What they change

    def _settle(self) -> None:
        """Work out what the appends change that were screened since the last call."""
        unsettled, self._unsettled = self._unsettled, []
        for taken in self._taken.values():
            if taken.staged < len(taken.indices):
                self._stage(taken)
        for index in unsettled:
            append = self._appends[index]
            if index not in self._repeats:
                self._memory |= append.sets
            for count in append.counts:
                self._count(index, count)
            for outcome in append.outcomes:
                self._note(index, outcome)

    def _stage(self, taken: _Taken) -> None:
        """The newest appends of one stream as one batch, without the duplicates."""
        indices = taken.indices[taken.staged :]
        taken.staged = len(taken.indices)
        batch = _joined([self._appends[index].batch for index in indices], taken.tail.stream.schema)
        fresh = self._deduplicated(taken, indices, batch)
        taken.fresh.append(fresh)
        if taken.rows is not None:
            taken.rows.stage(fresh)

    def _deduplicated(self, taken: _Taken, indices: Sequence[int], batch: pa.RecordBatch) -> pa.RecordBatch:
        column = batch.schema.get_field_index(ID)
        if taken.tail.ids is None or column < 0 or not batch.num_rows:
            return batch
        known = taken.tail.ids.stage(batch.column(column), self._now_us)
        if not known.any():
            return batch
        at = 0
        for index in indices:
            rows = self._appends[index].batch.num_rows
            taken.duplicates[index] = tuple(np.flatnonzero(known[at : at + rows]).tolist())
            at += rows
        return batch.filter(pa.array(~known))

    def _value(self, key: str) -> Any | None:
        return self._memory[key] if key in self._memory else self._planner.memory.get(key)

    def _count(self, index: int, count: Count) -> None:
        if count.repeated != (index in self._repeats):
            return
        by = self._share(index, count.by) if isinstance(count.by, Share) else count.by
        if by:
            numbers = dict(self._value(count.key) or {})
            self._memory[count.key] = numbers | {count.number: numbers.get(count.number, 0) + by}

    def _note(self, index: int, outcome: OutcomeKey) -> None:
        value = dict(outcome.value)
        value["accepted"] = self._share(index, Share("accepted", outcome.rows))
        value["duplicates"] = self._share(index, Share("duplicates", outcome.rows))
        if index in self._repeats:
            value["repeated"] = True
        self._memory[outcome.key] = value
        self._unsigned.append((index, value))

    def _share(self, index: int, share: Share) -> int:
        append = self._appends[index]
        rows: Rows = range(append.batch.num_rows) if share.rows is None else share.rows
        if index in self._repeats:
            return 0 if share.what == "accepted" else len(rows)
        duplicates = self._shares[index].duplicates.get(index, ())
        among = set(rows) if duplicates and isinstance(rows, tuple) else rows
        known = sum(row in among for row in duplicates)
        return known if share.what == "duplicates" else len(rows) - known

    # What is written

    def _draft(self, taken: _Taken) -> Draft | None:
        """One stream's share of the commit, unless it is nothing but duplicates."""
        appends = [self._appends[index] for index in taken.indices]
        metas = [append.meta for append in appends if append.meta is not None]
        if len(metas) > 1:
            raise ValueError(f"two appends to '{taken.tail.stream.name}' in one commit carry meta")
        fresh = taken.fresh[0] if len(taken.fresh) == 1 else pa.concat_batches(taken.fresh)
        taken.fresh = [fresh]
        if not (fresh.num_rows or metas or any(not append.batch.num_rows for append in appends)):
            return None
        complete_us = greatest(*(append.complete_us for append in appends))
        made = draft(taken.tail, fresh, metas[0] if metas else None, self._now_us, complete_us)
        taken.end(made)
        return made

    def _appended(self, index: int) -> Appended:
        taken = self._shares[index]
        commit = taken.after.next_commit - 1
        if index in self._repeats:
            mark = self._repeats[index]
            return Appended(taken.behind if mark is None else mark.position, commit, 0, repeated=True)
        duplicates = taken.duplicates.get(index, ())
        return Appended(taken.behind, commit, self._appends[index].batch.num_rows - len(duplicates), duplicates)

    def _sign(self) -> None:
        """Put the token into outcomes, now that it is known where the commit ends."""
        for index, value in self._unsigned:
            if self._appends[index].stream is None:
                raise ValueError("an append whose outcome is remembered needs a stream")
            mark = self._repeats.get(index)
            value["ack"] = self._shares[index].token if mark is None else mark.position.token()

    def _marks(self) -> dict[str, Any | None]:
        """What is stored of the producers that this commit heard, and of those it forgets."""
        marks: dict[str, Any | None] = {
            key: [epoch, sequence, self._shares[index].token] for key, (epoch, sequence, index) in self._heard.items()
        }
        if marks:
            forgotten = self._planner.producers.to_forget(self._now_us)
            marks = dict.fromkeys(key for key in forgotten if key not in marks) | marks
        return marks


def _placed(tail: StreamEnd, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, list[Place]]]:
    """The rows of a commit, and the place of each."""
    if tail.stream.counts == "commits":
        yield batch, [(0, tail.next_commit)] * batch.num_rows
        return
    for partition, part in enumerate(split(batch, tail.stream.partitions, sum(tail.ends))):
        start = tail.ends[partition]
        yield part, [(partition, offset) for offset in range(start, start + part.num_rows)]


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
