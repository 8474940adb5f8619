"""What an ordered flow reads in one batch: whole commits of its inputs, with what was complete at each of them.

1. In the order of the log, events are handed over commit by commit, late ones too; several inputs one after the other.
2. In the order of time an event waits until what is complete has passed it; then events of all inputs leave by time,
   partition and offset. What waits is in memory, and is read again from the log after a start.
3. The same commits in the same groups give the same batches: `verify` reads the log here, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import schema as columns_
from penstock.declaration import Order
from penstock.flows.ordered.fold import LATE, SEQUENCE, STEP
from penstock.flows.source import Feed, late_mask, shown
from penstock.log.builds import batch_meta
from penstock.log.log import Block, Commit, LogReader

COMMIT = "#commit"
"""Of an event that waits: the number of its commit."""


@dataclass(frozen=True)
class ReadPlace:
    """How far an input was read: the number of the next commit, and the offsets where it begins."""

    commit: int
    offsets: tuple[int, ...]


@dataclass
class OrderedInput:
    """One input of an ordered flow."""

    feed: Feed
    """What is read; nothing is left out here as late."""
    late_after_us: int | None
    log: LogReader
    place: ReadPlace
    complete_us: int | None = None
    newest_us: int | None = None

    @property
    def name(self) -> str:
        return self.feed.stream.name

    @property
    def judging(self) -> Feed:
        """By which it is said what is late."""
        return replace(self.feed, late_after_us=self.late_after_us)

    def complete_before(self, commit: Commit) -> int | None:
        """What was complete when the events of a commit were judged: nothing older is taken any more. One without
        events says it itself. Where nothing is ever late, the newest time before it, by which `keep=` goes then."""
        if self.late_after_us is None:
            return commit.bound_us
        if not commit.rows and commit.complete_us is not None:
            return commit.complete_us
        return None if commit.bound_us is None else self.judging.earliest_us(commit)


@dataclass
class OrderedBatch:
    """What one batch reads, and where it ends."""

    events: dict[str, pa.Table]
    complete_us: tuple[int | None, ...]
    ends: dict[str, ReadPlace]
    rows: int
    """Events that were read; in the order of time others may be handed over."""
    max_us: int | None
    accepted_us: int | None
    waiting: dict[str, int] = field(default_factory=dict)
    """In the order of time: by input the first commit with an event that still waits."""

    @property
    def handed(self) -> int:
        return sum(table.num_rows for table in self.events.values())


class OrderedReader:
    """Reads batch after batch. Used by one thread."""

    def __init__(self, inputs: Mapping[str, OrderedInput], order: Order) -> None:
        self.inputs = dict(inputs)
        self._order = order
        self._waiting: dict[str, pa.Table] = {}

    @property
    def timed(self) -> bool:
        """Whether a time is ever complete."""
        return all(source.late_after_us is not None for source in self.inputs.values())

    @property
    def waits_us(self) -> int | None:
        """In the order of time: what must be complete for the events that still wait."""
        left = getattr(self, "_left", self._waiting)
        times = [pc.min(t.column(columns_.TIME).cast(pa.int64())).as_py() for t in left.values() if t.num_rows]
        return min(times) + 1 if times else None

    def resume(self, waiting: Mapping[str, int], complete_us: int | None) -> None:
        """Take up again what waited when the last batch was committed: `complete_us` had been handed over."""
        for name, commit in waiting.items():
            source = self.inputs[name]
            before = source.log.last_commit(source.feed.stream, commit)
            start = before.ends if before else source.log.bounds(source.feed.stream).starts
            blocks = _blocks(source, start, source.place.offsets)
            tables = [self._shown(source, block) for block in blocks]
            kept = [_not_before(table, complete_us) for table in tables]
            self._waiting[name] = pa.concat_tables(kept) if kept else self._empty(source)

    def behind(self) -> bool:
        """Whether any input has commits that were not read."""
        return any(s.log.bounds(s.feed.stream).next_commit > s.place.commit for s in self.inputs.values())

    def read(self, max_rows: int, until: Mapping[str, int] | None = None) -> OrderedBatch | None:
        """The next commits of all inputs, at most about this many events, and none from a commit `until` on; None:
        there is nothing new. Nothing moves until `take` is called."""
        steps: list[int | None] = []
        found: dict[str, pa.Table] = {}
        ends: dict[str, ReadPlace] = {}
        accepted: list[int] = []
        completes = {name: source.complete_us for name, source in self.inputs.items()}
        newest = {name: source.newest_us for name, source in self.inputs.items()}
        for name, source in self.inputs.items():
            commits = _commits(source, max_rows, None if until is None else until[name])
            ends[name] = ReadPlace(commits[-1].number + 1, commits[-1].ends) if commits else source.place
            numbers: dict[int, int] = {}
            for commit in commits:
                completes[name] = _latest(completes[name], source.complete_before(commit))
                newest[name] = commit.max_us
                numbers[commit.number] = len(steps)
                steps.append(_least(completes.values()))
                accepted.append(_accepted(commit))
            blocks = _blocks(source, source.place.offsets, ends[name].offsets) if commits else iter(())
            tables = [self._stepped(self._shown(source, block), numbers[block.commit]) for block in blocks]
            found[name] = pa.concat_tables(tables) if tables else self._stepped(self._empty(source), 0)
        if not steps:
            return None
        batch = OrderedBatch(
            events=_numbered(found),
            complete_us=tuple(steps),
            ends=ends,
            rows=sum(table.num_rows for table in found.values()),
            max_us=_least(newest.values()),
            accepted_us=max(accepted, default=None),
        )
        self._next = completes, newest
        return self._by_time(batch) if self._order == "time" else batch

    def take(self, batch: OrderedBatch) -> None:
        """A batch is done: the next one begins behind it."""
        for name, source in self.inputs.items():
            source.place = batch.ends[name]
            source.complete_us, source.newest_us = self._next[0][name], self._next[1][name]
        if self._order == "time":
            self._waiting = self._left

    # In the order of time

    def _by_time(self, batch: OrderedBatch) -> OrderedBatch:
        limit_us = batch.complete_us[-1]
        ready: dict[str, pa.Table] = {}
        self._left: dict[str, pa.Table] = {}
        for name, table in batch.events.items():
            fresh = table.filter(pc.invert(table.column(LATE))).drop_columns([SEQUENCE, STEP])
            held = self._waiting.get(name)
            whole = fresh if held is None else pa.concat_tables([held, fresh])
            before = _before(whole, limit_us)
            ready[name], self._left[name] = whole.filter(before), whole.filter(pc.invert(before))
        waiting = {n: pc.min(t.column(COMMIT)).as_py() for n, t in self._left.items() if t.num_rows}
        events = {name: self._stepped(table, 0) for name, table in _in_time(ready).items()}
        return replace(batch, events=events, complete_us=(limit_us,), waiting=waiting)

    # Tables

    def _shown(self, source: OrderedInput, block: Block) -> pa.Table:
        schema = source.feed.shown_schema
        late = late_mask(source.judging, block)
        flags = pa.array([False] * block.batch.num_rows, pa.bool_()) if late is None else late
        table = pa.Table.from_batches([shown(source.feed, block, schema)], schema)
        table = table.append_column(LATE, flags)
        return table.append_column(COMMIT, pa.repeat(pa.scalar(block.commit, pa.int64()), table.num_rows))

    def _empty(self, source: OrderedInput) -> pa.Table:
        extra = [pa.field(LATE, pa.bool_()), pa.field(COMMIT, pa.int64())]
        return pa.schema([*source.feed.shown_schema, *extra]).empty_table()

    def _stepped(self, table: pa.Table, step: int) -> pa.Table:
        if STEP in table.column_names:
            return table
        return table.append_column(STEP, pa.repeat(pa.scalar(step, pa.int64()), table.num_rows))


def _commits(source: OrderedInput, max_rows: int, until: int | None) -> list[Commit]:
    stream, first = source.feed.stream, source.place.commit
    behind = source.log.bounds(stream).next_commit if until is None else until
    if behind <= first:
        return []
    behind = min(behind, source.log.commit_within(stream, first, max_rows))
    return source.log.commits(stream, first, behind)


def _blocks(source: OrderedInput, starts: tuple[int, ...], ends: tuple[int, ...]) -> Iterator[Block]:
    parts = [
        source.log.read(source.feed.stream, partition, start, end)
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True))
        if start < end
    ]
    return heapq.merge(*parts, key=lambda block: (block.commit, block.partition))


def _numbered(found: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    at, numbered = 0, {}
    for name, table in found.items():
        numbered[name] = table.append_column(SEQUENCE, pa.array(range(at, at + table.num_rows), pa.int64()))
        at += table.num_rows
    return numbered


def _in_time(found: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The same with numbers in the order of time, over all inputs."""
    places = []
    for at, table in enumerate(found.values()):
        times = table.column(columns_.TIME).cast(pa.int64())
        of = pa.repeat(pa.scalar(at, pa.int64()), table.num_rows)
        partition, offset = table.column(columns_.PARTITION), table.column(columns_.OFFSET)
        row = pa.array(range(table.num_rows), pa.int64())
        places.append(pa.table([times, of, partition, offset, row], ["time", "of", "partition", "offset", "row"]))
    if not places:
        return dict(found)
    order = [(name, "ascending") for name in ("time", "of", "partition", "offset")]
    ranked = pa.concat_tables(places).sort_by(order)
    ranked = ranked.append_column(SEQUENCE, pa.array(range(ranked.num_rows), pa.int64()))
    sorted_ = {}
    for at, (name, table) in enumerate(found.items()):
        mine = ranked.filter(pc.equal(ranked.column("of"), at))
        sorted_[name] = table.take(mine.column("row")).append_column(SEQUENCE, mine.column(SEQUENCE))
    return sorted_


def _before(table: pa.Table, limit_us: int | None) -> pa.Array | pa.ChunkedArray:
    if limit_us is None:
        return pa.array([False] * table.num_rows, pa.bool_())
    return pc.fill_null(pc.less(table.column(columns_.TIME).cast(pa.int64()), limit_us), False)


def _not_before(table: pa.Table, limit_us: int | None) -> pa.Table:
    table = table.filter(pc.invert(table.column(LATE)))
    return table.filter(pc.invert(_before(table, limit_us)))


def _latest(old: int | None, new: int | None) -> int | None:
    return new if old is None else old if new is None else max(old, new)


def _least(values: Any) -> int | None:
    known = list(values)
    return None if None in known else min(known)


def _accepted(commit: Commit) -> int:
    """When the newest event behind a commit came through the door: a flow's commit hands it on."""
    if commit.meta and "batch" in commit.meta:
        return batch_meta(commit.meta).accepted_us or commit.written_us
    return commit.written_us
