"""Spark reads the log here: a Python DataSource whose batches are whole commits and whose rows stay Arrow.

1. A batch is a whole number of commits, also when its limit is smaller than the next one.
2. `latestOffset` depends on its arguments and the log alone, since the planner and `read` run in different processes;
   where views meet downstream, on the cuts that their planners share, too.
3. Late events are left out by the log's own rule: `_time` before what its stream was complete to, which is stored
   with the commit. So what a flow sees does not depend on where batches are cut.
4. Only the columns that the plan needs are decoded and handed over. Spark prunes nothing here, so the relation has no
   others; `plan.py` adds them as nulls for functions that name them.
5. Splits are contiguous and in order, so that rows collected in order are in commit order.
6. A query that holds state by event time gets one row more at the end of each batch, the *mark*: its `_complete` is
   what Spark's watermark follows, and nothing else. `plan.py` takes it out above the watermark.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from penstock import schema as columns_
from penstock.flows.regroup.cuts import CutFile
from penstock.log.follower import INTERVAL_S
from penstock.log.log import Block, Commit, LogReader, Stream
from penstock.log.opening import access, open_reader, placed, read_placed
from penstock.log.patience import all_of

FORMAT = "penstock"
_FEED = "feed"
_ONE_SPLIT_ROWS = 10_000
"""Below this a second task costs more than it saves; a further one has half of it at least."""
_BATCH_ROWS = 50_000
"""Small blocks are joined up to this many rows: a record batch costs Spark about as much as 500 rows."""
COMPLETE = "_complete"
"""Null in the row of an event; in a mark, the time that nothing to come lies behind."""
_MARK_US = 1_000
"""Spark drops `time <= watermark` in whole milliseconds, the log calls late what is less than `complete`."""
_FIRST_US = 1
"""The first microsecond of 1970: the earliest time that Spark's watermark lets pass."""

Offset = dict[str, Any]
Skips = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Feed:
    """All that a relation needs to read one stream; travels to the planner and the executors."""

    stream: Stream
    """With the schema that the app declares, whatever was stored."""
    derived: bool = False
    """A flow makes the stream: each build of it has other events at its offsets."""
    needed: tuple[str, ...] | None = None
    """Columns that the plan uses; None: all."""
    late_after_us: int | None = None
    """None: nothing is left out as late."""
    closes_after_us: int | None = None
    """Where a view is corrected: what is later than this changes windows that have closed."""
    handed_on: bool = False
    """The stream is as complete as what its flow has read: a commit that does not say how far has nothing late."""
    marks: bool = False
    """A query reads it that holds state by event time."""
    ticks: bool = False
    """A commit without events is a reason for a batch if the stream is complete further with it."""
    skips: Skips = field(default=frozenset())
    """Partition and offset of events that poisoned a batch."""
    max_rows: int | None = None
    begin: tuple[int, tuple[int, ...]] | None = None
    """The first commit and the offsets where a build begins; None: at the very beginning."""
    wait_s: float = 0.0
    """How long Spark's question for something new may wait for it."""
    cuts: Path | None = None
    """The file of the cuts at which batches end, where others must end theirs too; see `regroup/cuts.py`."""
    reader: str = ""
    """The flow or view that reads."""
    tasks: int = 2
    """Into how many pieces a large range is cut at most."""

    def options(self, folder: Path, start: Sequence[int] = (), end: Sequence[int] = ()) -> dict[str, str]:
        """The relation's options. The feed itself goes by a file of this folder: Spark matches regular expressions
        against every option, and one of a few kB overflows its stack."""
        packed = pickle.dumps(self)
        path = folder / f"{hashlib.sha256(packed).hexdigest()[:24]}.feed"
        try:
            os.utime(path)  # in use: `build_cleanup.py` leaves it alone
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            with fresh.open("wb") as file:
                file.write(packed)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        return {_FEED: str(path), "start": _joined(start), "end": _joined(end)}

    @staticmethod
    def parse(options: Mapping[str, str]) -> Feed:
        feed: Feed = pickle.loads(Path(options[_FEED]).read_bytes())
        return feed

    @property
    def first(self) -> tuple[int, tuple[int, ...]]:
        return self.begin or (0, (0,) * self.stream.partitions)

    @property
    def origin(self) -> str:
        """The stream as a ledger's entry names it, with the build where each has events of its own."""
        return f"{self.stream.name}@{self.stream.epoch}" if self.derived else self.stream.name

    @property
    def whole_schema(self) -> pa.Schema:
        """What a function may name."""
        return columns_.read_schema(self.stream.schema)

    @property
    def shown_schema(self) -> pa.Schema:
        """What the relation has: one column at least, since rows of none cannot be counted."""
        fields = list(self.whole_schema)
        if self.needed is not None:
            wanted = set(self.needed) or {columns_.OFFSET}
            fields = [field for field in fields if field.name in wanted]
        return pa.schema([*fields, pa.field(COMPLETE, columns_.TIMESTAMP)] if self.marks else fields)

    def open(self) -> LogReader:
        return open_reader(self.stream.place)

    def complete_us(self, last: Commit | None) -> int | None:
        """How far the stream is complete with this commit; None: nobody knows."""
        return None if last is None else self._complete(last.complete_us, last.max_us)

    def earliest_us(self, at: Commit | Block, *, closed: bool = False) -> int:
        """What happened before this is left out of a commit; or, with `closed`, comes to windows that have closed.

        Spark's watermark is 1970 from its first batch on and drops what is not behind it without a word: so it is the
        log that leaves that out, by name."""
        complete_us = self._complete(at.earliest_us, at.bound_us)
        if complete_us is None:
            return _FIRST_US
        return max(_FIRST_US, complete_us - (0 if closed else self.slack_us))

    @property
    def slack_us(self) -> int:
        """How much longer than its stream's `late_after` says a view takes events."""
        return 0 if self.closes_after_us is None else (self.late_after_us or 0) - self.closes_after_us

    def _complete(self, stored_us: int | None, newest_us: int | None) -> int | None:
        late_after_us = self.late_after_us if self.closes_after_us is None else self.closes_after_us
        if stored_us is not None or newest_us is None or late_after_us is None or self.handed_on:
            return stored_us
        return newest_us - late_after_us


@dataclass(frozen=True)
class Split(InputPartition):
    """Consecutive commits, as offsets per partition: the work of one task."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    placed: tuple[bytes | None, ...] = ()
    """Of each partition, where its blocks lie: whoever reads them needs neither the log's index nor its folder. Empty
    or None: they are read through the log."""
    mark_us: int | None = None
    """Of the mark behind its rows; None: it has none."""


def offset_of(stream: Stream, commit: int, ends: Sequence[int]) -> Offset:
    """A source offset as Spark stores it in `offsets/N`; the stream's name tells sources of one query apart."""
    return {"stream": stream.name, "epoch": stream.epoch, "commit": commit, "ends": _joined(ends)}


def ends_of(offset: Offset) -> tuple[int, ...]:
    return _parsed(offset["ends"])


def _joined(offsets: Sequence[int]) -> str:
    return ",".join(map(str, offsets))


def _parsed(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


class LogSource(DataSource):
    """`spark.readStream.format("penstock")`; made by `plan.py` only."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(Feed.parse(self.options).shown_schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(Feed.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        start, end = (_parsed(self.options.get(name, "")) for name in ("start", "end"))
        return LogBatchReader(Feed.parse(self.options), start, end)


class LogStreamReader(DataSourceStreamReader):
    """The stream form: planner calls in one process, `read` in the executors' workers."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.given: Any = None
        self._log: LogReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        """As it travels from the driver to executors, inside of the job."""
        return {"feed": self.feed, "given": access(self.feed.stream.place), "_log": None}

    @property
    def log(self) -> LogReader:
        if self._log is None:
            self._log = self.feed.open()
        return self._log

    def initialOffset(self) -> Offset:
        return offset_of(self.feed.stream, *self.feed.first)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.feed.max_rows is None else ReadMaxRows(self.feed.max_rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Waits a little for something new: a question and its answer cost more than twenty looks at the log."""
        deadline = time.monotonic() + self.feed.wait_s
        while True:
            revision = self.log.revision()
            latest = self._latest(start, limit)
            if latest != start or time.monotonic() >= deadline:
                return latest
            while self.log.revision() == revision and time.monotonic() < deadline:
                time.sleep(INTERVAL_S)

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        stream = self.feed.stream
        next_commit = self.log.bounds(stream).next_commit
        if next_commit <= start["commit"]:
            return start
        if self.feed.cuts is not None:
            file = CutFile(self.feed.cuts)
            next_commit = file.next_cut(
                self.feed.reader, stream.epoch, start["commit"], lambda: self._most(start, limit)
            )
        else:
            next_commit = self._most(start, limit)
        last = self.log.last_commit(stream, next_commit)
        if last is None or (last.ends == ends_of(start) and not self._ticked(start, last)):
            return start
        return offset_of(stream, next_commit, last.ends)

    def _ticked(self, start: Offset, last: Commit) -> bool:
        """Whether commits without events are a reason for a batch: somebody waits for the time that they tell."""
        if not self.feed.ticks or last.complete_us is None or last.number < start["commit"]:
            return False
        before = self.log.last_commit(self.feed.stream, start["commit"])
        return before is None or last.complete_us > (self.feed.complete_us(before) or last.complete_us - 1)

    def _most(self, start: Offset, limit: ReadLimit) -> int:
        """The commit up to which a batch may go."""
        if isinstance(limit, ReadMaxRows):
            return self.log.commit_within(self.feed.stream, start["commit"], limit.max_rows)
        return self.log.bounds(self.feed.stream).next_commit

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        found = splits(self.log, self.feed, ends_of(start), ends_of(end), start["commit"])
        found = found or [Split(ends_of(end), ends_of(end))]
        last = self.log.last_commit(self.feed.stream, end["commit"]) if self.feed.marks else None
        complete_us = self.feed.complete_us(last)
        if complete_us is not None:
            found[-1] = replace(found[-1], mark_us=complete_us - self.feed.slack_us - _MARK_US)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self.feed, partition, self.given)


class LogBatchReader(DataSourceReader):
    """The batch form, for `verify`, for bisecting poison, and for asking Spark which columns a plan needs."""

    def __init__(self, feed: Feed, start: tuple[int, ...], end: tuple[int, ...]) -> None:
        self.feed = feed
        self.given: Any = None
        self.start = start
        self.end = end

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"given": access(self.feed.stream.place)}

    def partitions(self) -> Sequence[InputPartition]:
        log = self.feed.open()
        try:
            bounds = log.bounds(self.feed.stream) if self.end else None
            whole = bounds is not None and bounds.starts == self.start
            found = splits(log, self.feed, self.start, self.end, bounds.first_commit if whole and bounds else None)
            return found or [Split((), ())]
        finally:
            log.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self.feed, partition, self.given)


def splits(
    log: LogReader, feed: Feed, starts: tuple[int, ...], ends: tuple[int, ...], commit: int | None
) -> list[Split]:
    """Cut a range into tasks: one for little, several for much, each a run of whole commits, in order.

    `commit` is the number of the first one; a range that does not begin with a commit stays in one piece.
    """
    rows = sum(ends) - sum(starts)
    if rows == 0:
        return []
    pieces = 1 if commit is None else min(feed.tasks, max(1, rows * 2 // _ONE_SPLIT_ROWS))
    cuts, behind = [starts], commit
    for _ in range(pieces - 1):
        assert behind is not None
        behind = log.commit_within(feed.stream, behind, rows // pieces)
        last = log.last_commit(feed.stream, behind)
        if last is None or sum(last.ends) >= sum(ends):
            break
        cuts.append(last.ends)
    return [_placed(log, feed, start, end) for start, end in pairwise([*cuts, ends]) if start != end]


def _placed(log: LogReader, feed: Feed, starts: tuple[int, ...], ends: tuple[int, ...]) -> Split:
    ranges = enumerate(zip(starts, ends, strict=True))
    found = [placed(log, feed.stream, p, start, end) if start < end else None for p, (start, end) in ranges]
    return Split(starts, ends, tuple(found) if any(found) else ())


def read_split(feed: Feed, split: Split, given: Any = None) -> Iterator[pa.RecordBatch]:
    """The rows of a split that the flow may see, in commit order, as few large record batches."""
    if split.starts == split.ends:
        yield from _shown_together(feed, iter(()), split.mark_us)
        return
    if split.placed:
        yield from _shown_together(feed, all_of(lambda: _placed_in_commit_order(feed, split, given)), split.mark_us)
        return
    log = feed.open()
    try:
        yield from _shown_together(feed, all_of(lambda: _in_commit_order(log, feed, split)), split.mark_us)
    finally:
        log.close()


def _shown_together(feed: Feed, blocks: Iterator[Block], mark_us: int | None) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = 0
    schema = feed.shown_schema
    for block in blocks:
        batch = shown(feed, block, schema)
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _BATCH_ROWS:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if mark_us is not None:
        waiting.append(pa.RecordBatch.from_pylist([{COMPLETE: mark_us}], schema=schema))
    if waiting:
        yield pa.concat_batches(waiting)


def shown_events(log: LogReader, feed: Feed, split: Split) -> pa.Table:
    """The same as one table, for whoever is in the driver's process."""
    schema = feed.shown_schema
    return pa.Table.from_batches([shown(feed, block, schema) for block in _in_commit_order(log, feed, split)], schema)


def _in_commit_order(log: LogReader, feed: Feed, split: Split) -> Iterator[Block]:
    columns = _stored_columns(feed)
    parts = [
        log.read(feed.stream, partition, start, end, columns)
        for partition, (start, end) in enumerate(zip(split.starts, split.ends, strict=True))
        if start < end
    ]
    return _merged(parts)


def _placed_in_commit_order(feed: Feed, split: Split, given: Any) -> Iterator[Block]:
    columns = _stored_columns(feed)
    return _merged([read_placed(feed.stream, data, columns, given) for data in split.placed if data is not None])


def _merged(parts: Sequence[Iterator[Block]]) -> Iterator[Block]:
    return heapq.merge(*parts, key=lambda block: (block.commit, block.partition))


def _stored_columns(feed: Feed) -> list[str]:
    wanted = set(feed.stream.schema.names if feed.needed is None else feed.needed)
    if feed.late_after_us is not None or not wanted & set(feed.stream.schema.names):
        wanted.add(columns_.TIME)
    return [name for name in feed.stream.schema.names if name in wanted]


def shown(feed: Feed, block: Block, schema: pa.Schema) -> pa.RecordBatch:
    """A block as the flow sees it: late and skipped events left out, and columns that it does not need."""
    batch, offsets = block.batch, block.offsets
    keep = _kept(feed, block)
    if keep is not None:
        batch, offsets = batch.filter(keep), offsets.filter(keep)
    return pa.RecordBatch.from_arrays(
        [_shown_column(feed, block, batch, offsets, f.name) for f in schema], schema=schema
    )


def _kept(feed: Feed, block: Block) -> pa.Array | None:
    keep: pa.Array | None = None
    late = late_mask(feed, block)
    if late is not None:
        keep = pc.invert(late)
    skipped = [offset for partition, offset in feed.skips if partition == block.partition]
    if skipped:
        left = pc.invert(pc.is_in(block.offsets, pa.array(skipped, pa.int64())))
        keep = left if keep is None else pc.and_(keep, left)
    return keep


def late_mask(feed: Feed, block: Block, *, closed: bool = False) -> pa.Array | None:
    """Which events of a block are left out as late, or with `closed` come to closed windows; None: none is."""
    if feed.late_after_us is None:
        return None
    times = block.batch.column(columns_.TIME).cast(pa.int64())
    late = pc.fill_null(pc.less(times, feed.earliest_us(block, closed=closed)), False)
    return late if pc.any(late).as_py() else None


def _shown_column(feed: Feed, block: Block, batch: pa.RecordBatch, offsets: pa.Array, name: str) -> pa.Array:
    if name == columns_.OFFSET:
        return offsets
    if name == columns_.PARTITION:
        return pa.repeat(pa.scalar(block.partition, pa.int32()), batch.num_rows)
    if name == COMPLETE:
        return pa.nulls(batch.num_rows, columns_.TIMESTAMP)
    if name == columns_.ID and not feed.stream.unique:
        return pc.binary_join_element_wise(feed.stream.name, str(block.partition), offsets.cast(pa.string()), "/")
    return batch.column(name)
