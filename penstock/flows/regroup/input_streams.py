"""Streams and flows as inputs of regrouped views: their events as rows by position, as far as they count.

1. An event is the row of its partition and offset, so that rows in the order of their key are in that of the log.
2. What the log calls late is no row, by the rule that folded views follow.
3. With `within=` an event counts while its `_time` is at most that far behind the newest one of its stream at the
   frontier. That is part of the query: a step, a rebuild and `verify` apply it alike.
4. A step takes whole commits, and no more events than memory has room for. A table that is filled anew is shown to no
   view before it is level: a frontier never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock import schema as columns_
from penstock.flows.regroup.held import HeldRows, Index, Shape, Table
from penstock.flows.regroup.regrouping import Delta, values
from penstock.flows.source import Feed, Split, shown_events
from penstock.log.log import Commit, LogReader, Stream

EVENTS_AT_ONCE = 100_000
"""Events of one stream that one step takes."""
POSITION = (columns_.PARTITION, columns_.OFFSET)


@dataclass(frozen=True)
class InputStream:
    """A stream or flow that regrouped views read, with what they need of it."""

    name: str
    """Of its table in `held.db`: views that look back equally far share one."""
    feed: Feed
    """How it is read; of which build, `live` says."""
    schema: pa.Schema
    """Of its rows."""
    within_us: int | None
    log: LogReader
    live: Callable[[], Stream | None]
    """The stream that is read now; None: there is none yet."""
    hold_us: int | None = None
    """How far behind the newest an event may be and still be computed with. Older ones go without a trace: their rows
    are final. None: `within_us` says it, or nothing."""

    @property
    def input(self) -> str:
        return self.feed.stream.name

    def shape(self, indexes: tuple[Index, ...]) -> Shape:
        return Shape(self.name, self.schema, POSITION, indexes, expires=True, time=columns_.TIME)

    def feed_of(self, stream: Stream) -> Feed:
        return replace(self.feed, stream=replace(stream, schema=self.feed.stream.schema))

    def has(self, stream: Stream, offsets: Sequence[int]) -> bool:
        """Whether retention has left all that lies behind these."""
        return all(start <= offset for start, offset in zip(self.log.bounds(stream).starts, offsets, strict=True))


@dataclass(frozen=True)
class Arrival:
    """What a step takes of one stream."""

    delta: Delta
    epoch: str
    ends: list[int]
    level: bool
    """Nothing that was there is left for the next step."""
    newest_us: int | None
    written_us: int | None


def table_name(stream: str, within_us: int | None) -> str:
    return stream if within_us is None else f"{stream}@{within_us}"


def arrived(
    source: InputStream,
    stream: Stream,
    reached: Sequence[int] | None,
    end: tuple[int, ...],
    table: Table,
    spark: SparkSession,
) -> Arrival:
    """The events between `reached` and an end, and those that leave because of them; None: all that is held is another
    build's."""
    log, bounds = source.log, source.log.bounds(stream)
    start = tuple(bounds.starts if reached is None else reached)
    first = commit_behind(log, stream, start)
    target = max(first, commit_behind(log, stream, end))
    behind = min(log.commit_within(stream, first, EVENTS_AT_ONCE), target)
    last = log.last_commit(stream, behind)
    ends = start if last is None else last.ends
    rows = shown_events(log, source.feed_of(stream), Split(start, ends)).cast(source.schema)
    limit_us = limit_of(last, source.within_us)
    if limit_us is not None:
        rows = rows.filter(pc.greater_equal(rows.column(columns_.TIME).cast(pa.int64()), limit_us))
    old = table.everything() if reached is None else table.before(-(2**63) if limit_us is None else limit_us)
    new = HeldRows(rows, tuple(values(spark, rows, index) for index in table.shape.indexes))
    newest, written = (None, None) if last is None else (last.max_us, last.written_us)
    return Arrival(Delta(old, new), stream.epoch, list(ends), behind >= target, newest, written)


def limit_of(last: Commit | None, within_us: int | None) -> int | None:
    """The time from which on events count when this was the stream's last commit; None: all do."""
    return None if last is None or last.max_us is None or within_us is None else last.max_us - within_us


def commit_behind(log: LogReader, stream: Stream, offsets: Sequence[int]) -> int:
    """The number of the first commit that lies behind these offsets, which are the ends of the one before it."""
    bounds = log.bounds(stream)
    low, high = bounds.first_commit, bounds.next_commit
    while low < high:
        middle = (low + high) // 2
        found = log.commits(stream, middle, limit=1)
        if found and all(end <= offset for end, offset in zip(found[0].ends, offsets, strict=True)):
            low = found[0].number + 1
        else:
            high = middle
    return low


def commit_at(log: LogReader, stream: Stream, offsets: Sequence[int]) -> Commit | None:
    """The last commit at a frontier."""
    return log.last_commit(stream, commit_behind(log, stream, offsets))
