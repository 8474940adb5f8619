"""A Spark batch becomes one commit of the log: visible all at once, once, however often Spark replays it.

1. Exactly one Spark action per batch, also on a replay: without it Spark's own checkpoint breaks.
2. The checkpoint is synced before the commit, so that the log never knows of a batch that the checkpoint may lose.
3. One commit holds the changes, the batch's number, its start and end, and what of it was late.
4. A known batch with the same range is discarded; with another range, or with a gap, the build must start anew. A
   batch whose commit hung is written again only if it has not been written meanwhile.
5. The log's term is checked inside the commit: a sink that outlived its driver cannot write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import schema as columns_
from penstock.change import DELETE, OP, UPSERT
from penstock.clock import Clock
from penstock.declaration import FlowDef, ViewDef
from penstock.errors import BatchRangeError, DuplicateKeyError
from penstock.flows import checkpoint
from penstock.flows.final_rows import OpenRows
from penstock.flows.keep import Expiry, row_times
from penstock.flows.late import late_events
from penstock.flows.plan import Planned, flow_schema, flow_time
from penstock.flows.query import UnrunBatch
from penstock.flows.source import Feed
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, batch_meta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Count, EndsAt, LogReader, Share, Stream
from penstock.log.patience import patiently
from penstock.protocol import wire
from penstock.views.unpack import dicts_of

Ends = dict[str, Any]
"""Positions by input, as a commit stores them: `{"rsvps": [epoch, [offsets]]}`."""


@dataclass(frozen=True)
class Span:
    """What one batch reads: positions before and behind it, and the commit numbers of both."""

    start: Ends
    end: Ends
    start_commits: dict[str, int]
    end_commits: dict[str, int]
    planned_us: int
    even: bool


@dataclass
class Sink:
    """What a query hands the batches of one build to; its `error` holds what made a batch fail, with its type."""

    made: Planned
    output: Stream
    feeds: Mapping[str, Feed]
    logs: Mapping[str, LogReader]
    """The log that holds each input."""
    late: Stream
    group: GroupCommit
    checkpoint: Path
    clock: Clock
    last: BatchMeta | None
    expiry: Expiry | None
    switch: Callable[[Ends], Mapping[str, Any]]
    """Called before each commit with its end; gives what the control stream must learn, such as that this build is
    level and now the live one."""
    open_rows: OpenRows | None
    """The rows of a view with `final=` that are not final."""
    next_commit: int
    """The number of the next commit of `output`, unless one whose outcome was unknown has been made after all."""
    error: BaseException | None = None
    progress: int = 0
    """Batches taken since this sink began, for telling a hung query from an idle one."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, data: UnrunBatch, batch: int) -> int:
        try:
            with self.lock:
                return self._take(data, batch)
        except BaseException as error:
            self.error = error
            raise

    def _take(self, data: UnrunBatch, batch: int) -> int:
        """Gives how many events the batch has read."""
        span = self.span(batch)
        rows = data.collect()
        done_us = self.clock.now_us()
        if not self._known(batch, span):
            closes = self.made.mode == "append" and self.made.aggregates
            meta = self._meta(batch, span, done_us, data.closes_us() if closes else None)
            checkpoint.sync(self.checkpoint)
            self._commit(rows, span, meta)
            self.last = meta
        self.error = None
        self.progress += 1
        return sum(sum(end[1]) - sum(span.start[name][1]) for name, end in span.end.items())

    def span(self, batch: int) -> Span:
        """The range of a batch, from the checkpoint."""
        now = checkpoint.planned(self.checkpoint, batch)
        if now is None:
            raise BatchRangeError(f"batch {batch} of '{self.made.node.name}' has no offsets in its checkpoint")
        before = checkpoint.planned(self.checkpoint, batch - 1)
        start: Ends = {}
        end: Ends = {}
        start_commits: dict[str, int] = {}
        end_commits: dict[str, int] = {}
        for name, feed in self.feeds.items():
            nothing = (feed.stream.epoch, *feed.first)
            old = before.ends.get(name, nothing) if before else nothing
            new = now.ends.get(name, old)
            start[name], start_commits[name] = [old[0], list(old[2])], old[1]
            end[name], end_commits[name] = [new[0], list(new[2])], new[1]
        return Span(start, end, start_commits, end_commits, now.planned_us, now.even)

    def _known(self, batch: int, span: Span) -> bool:
        """Whether the log has this batch already; raises when the log and the checkpoint tell different stories."""
        if self.last is None:
            if batch == 0:
                return False
        elif batch == self.last.batch and (span.start, span.end) == (self.last.start, self.last.end):
            return True
        elif batch == self.last.batch + 1 and span.start == self.last.end:
            return False
        raise BatchRangeError(
            f"Spark runs batch {batch} of '{self.made.node.name}' over another range than the log knows",
            detail=f"checkpoint: {span.start} to {span.end}; log: {self.last}",
        )

    def _meta(self, batch: int, span: Span, done_us: int, closes_us: int | None) -> BatchMeta:
        commits = [self.logs[n].last_commit(f.stream, span.end_commits[n]) for n, f in self.feeds.items()]
        newest = [c.max_us if c else None for c in commits]
        accepted = [_accepted(c.meta, c.written_us) for c in commits if c]
        return BatchMeta(
            batch=batch,
            start=span.start,
            end=span.end,
            even=span.even,
            max_us=None if None in newest else min(n for n in newest if n is not None),
            waits_us=self._waits_us(newest),
            complete_us=least([feed.complete_us(c) for feed, c in zip(self.feeds.values(), commits, strict=True)]),
            watermark_us=closes_us,
            accepted_us=max(accepted, default=None),
            planned_us=span.planned_us,
            done_us=done_us,
        )

    def _waits_us(self, newest: Sequence[int | None]) -> int | None:
        reach_us, known = self.made.reach_us, [each for each in newest if each is not None]
        return None if reach_us is None or not known else max(known) + reach_us

    # Rows

    def _commit(self, rows: pa.Table, span: Span, meta: BatchMeta) -> None:
        now = self.clock.now_us()
        batch = self._changes(rows, meta) if isinstance(self.made.node, ViewDef) else self._events(rows, now)
        meta = msgspec.structs.replace(meta, corrected=self._corrected(batch, span))
        stored, sets = msgspec.to_builtins(meta), self.switch(meta.end)
        unwritten = EndsAt(self.output, self.next_commit)
        complete_us = meta.complete_us if isinstance(self.made.node, ViewDef) or self.made.hands_on else None
        appends = [Append(self.output, batch, stored, requires=(unwritten,), sets=sets, complete_us=complete_us)]
        for name, feed in self.feeds.items():
            where = (self.logs[name], feed, self.made.node.name, span.start_commits[name], span.end_commits[name])
            found = patiently(partial(late_events, *where, now))
            if found is not None:
                key = control_keys.count(name, self.made.node.name)
                count = Count(key, "late", Share("accepted"))
                appends.append(Append(self.late, found, follows=True, counts=(count,)))
        for outcome in patiently(lambda: self.group.submit(appends).result(), ended=lambda: self.group.is_closing):
            if isinstance(outcome, Exception):
                raise outcome
        self.next_commit += 1

    def _changes(self, rows: pa.Table, meta: BatchMeta) -> pa.RecordBatch:
        changes = one_row_per_key(rows, self.made)
        if self.expiry is not None:
            changes = self.expiry.apply(changes, meta.max_us)
        if self.open_rows is not None:
            changes = self.open_rows.apply(changes, closed_us(self.feeds, meta))
        return _one_batch(changes.select(self.output.schema.names).cast(self.output.schema))

    def _corrected(self, changes: pa.RecordBatch, span: Span) -> list[Any] | None:
        """The keys of rows whose window had closed before the batch by the stream's `late_after`: an event that changes
        one is late, whichever commit of the batch it is in."""
        for name, feed in self.feeds.items():
            before = self.logs[name].last_commit(feed.stream, span.start_commits[name])
            complete_us = feed.complete_us(before)
            if feed.closes_after_us is None or complete_us is None:
                return None
            closed = pc.less_equal(row_times(pa.Table.from_batches([changes])), complete_us)
            changes = changes.filter(pc.and_kleene(closed, pc.equal(changes.column(OP), UPSERT)))
        keys = dicts_of(changes.select(self.made.node.key))
        return [{name: wire(value) for name, value in key.items()} for key in keys] or None

    def _events(self, rows: pa.Table, now_us: int) -> pa.RecordBatch:
        return flow_events(rows, self.made, now_us)


def least(times: Sequence[int | None]) -> int | None:
    """The least of all; None: one of them is not known."""
    known = [each for each in times if each is not None]
    return min(known) if known and len(known) == len(times) else None


def closed_us(feeds: Mapping[str, Feed], meta: BatchMeta) -> int | None:
    """Windows that end here or before cannot change any more."""
    slack_us = max(feed.slack_us for feed in feeds.values())
    return None if meta.complete_us is None else meta.complete_us - slack_us


def with_op(frame: DataFrame, view: ViewDef) -> DataFrame:
    """A view's rows with what each is: one that fails `where=` is a delete."""
    op = F.when(F.expr(view.where), UPSERT).otherwise(DELETE) if view.where else F.lit(UPSERT)
    return frame.withColumn(OP, op.cast("byte"))


def _accepted(meta: dict[str, Any] | None, written_us: int) -> int:
    """When the newest event behind a commit came through the door: a flow's commit hands it on."""
    return (batch_meta(meta).accepted_us or written_us) if meta and "batch" in meta else written_us


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def changelog_schema(made: Planned) -> pa.Schema:
    return pa.schema([*made.arrow, pa.field(OP, pa.int8())])


def flow_events(rows: pa.Table, made: Planned, now_us: int) -> pa.RecordBatch:
    """A flow's rows as events of its stream."""
    assert isinstance(made.node, FlowDef)
    target = flow_schema(made)
    arrays: list[pa.Array | pa.ChunkedArray] = []
    for wanted in target:
        if wanted.name == columns_.TIME:
            arrays.append(_event_times(rows, flow_time(made)))
        elif wanted.name == columns_.RECEIVED and columns_.RECEIVED not in rows.column_names:
            arrays.append(pa.repeat(pa.scalar(now_us, pa.int64()), rows.num_rows).cast(columns_.TIMESTAMP))
        elif wanted.name == columns_.KEY:
            arrays.append(_event_keys(rows, made.node.key))
        elif wanted.name == columns_.ID:
            arrays.append(pa.nulls(rows.num_rows, pa.string()))
        else:
            arrays.append(rows.column(wanted.name).cast(wanted.type))
    return _one_batch(pa.Table.from_arrays(arrays, schema=target))


def _event_times(rows: pa.Table, column: str | None) -> pa.ChunkedArray | pa.Array:
    if column is None:
        return pa.nulls(rows.num_rows, columns_.TIMESTAMP)
    times = rows.column(column)
    if pa.types.is_integer(times.type):
        times = pa.compute.multiply(times.cast(pa.int64()), 1000)
    return times.cast(columns_.TIMESTAMP)


def _event_keys(rows: pa.Table, key: tuple[str, ...]) -> pa.Array | pa.ChunkedArray:
    if not key:
        return pa.nulls(rows.num_rows, pa.string())
    if len(key) == 1 and not pa.types.is_nested(rows.schema.field(key[0]).type):
        return rows.column(key[0]).cast(pa.string())
    texts = [msgspec.json.encode(list(row.values())).decode() for row in rows.select(key).to_pylist()]
    return pa.array(texts, pa.string())


def latest_by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    groups = _grouped(rows, key)
    return rows if groups.num_rows == rows.num_rows else rows.take(groups.column("#_max").combine_chunks().sort())


def _grouped(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Per key the number of its last row and how many rows it has."""
    keys = _flat_keys(rows, key)
    numbered = keys.append_column("#", pa.array(range(rows.num_rows), pa.int64()))
    return numbered.group_by(keys.column_names, use_threads=False).aggregate([("#", "max"), ("#", "count")])


def one_row_per_key(rows: pa.Table, made: Planned) -> pa.Table:
    """The rows, if no key has two; where rows are in commit order the last of a key wins; else an error names it."""
    if made.ordered:
        return latest_by_key(rows, made.node.key)
    groups = _grouped(rows, made.node.key)
    if groups.num_rows == rows.num_rows:
        return rows
    twice = groups.filter(pa.compute.greater(groups.column("#_count"), 1)).column("#_max")[0].as_py()
    name = made.node.name
    raise DuplicateKeyError(
        f"'{name}' gives two rows for the key {rows.select(made.node.key).slice(twice, 1).to_pylist()[0]}",
        detail="in one batch a key may have one row",
        hint=f"group by {', '.join(made.node.key)}, or add to key= what tells the rows apart",
    )


def _flat_keys(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The key's columns as ones that Arrow can group by: structs flattened, other nested values as text."""
    keys = rows.select(key)
    while any(pa.types.is_struct(f.type) for f in keys.schema):
        keys = keys.flatten()
    for index, column in enumerate(keys.schema):
        if pa.types.is_nested(column.type):
            texts = pa.array([repr(value) for value in keys.column(index).to_pylist()])
            keys = keys.set_column(index, column.name, texts)
    return keys.rename_columns([str(i) for i in range(keys.num_columns)])
