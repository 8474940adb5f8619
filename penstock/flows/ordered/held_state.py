"""The states of an ordered flow, found by key and by when they are due; derived from their changelog."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import schema as columns_
from penstock.change import DELETE, OP, UPSERT
from penstock.flows.ordered.fold import FoldSpec, Key, timers_of
from penstock.flows.regroup.held import HeldFile, HeldRows, Shape, Table
from penstock.flows.sink import latest_by_key
from penstock.log.log import LogReader, Stream
from penstock.stateful import SEEN, TIMERS
from penstock.views.unpack import unpack

_DUE = "_due"


class HeldState:
    """The file of one flow. Used by one thread. The log comes first: this may be behind it, never ahead."""

    def __init__(self, path: Path, spec: FoldSpec, stream: Stream | None = None, log: LogReader | None = None) -> None:
        """Without a changelog it begins with nothing, and whoever folds fills it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._spec = spec
        self._stream = stream
        self._file = HeldFile(path)
        due = pa.field(_DUE, columns_.TIMESTAMP)
        schema = pa.schema([*spec.state_schema, due])
        self._states = self._file.table(Shape("states", schema, spec.key, expires=True, time=_DUE))
        clocks = pa.schema([*spec.key_fields, due])
        self._clocks = self._file.table(Shape("clocks", clocks, spec.key, expires=True, time=_DUE))
        self._ages = self._file.table(Shape("ages", clocks, spec.key, expires=True, time=_DUE))
        if stream is not None and log is not None:
            self._fill(stream, log)

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._states)

    def _fill(self, stream: Stream, log: LogReader) -> None:
        """Bring the file to the end of the changelog; if it is of another build, or behind what is compacted, anew."""
        bounds, reached = log.bounds(stream), self._file.reached("states")
        follows = reached is not None and reached[0] == stream.epoch
        start = reached[1][0] if reached is not None and follows else -1
        follows = follows and bounds.starts[0] <= start <= bounds.ends[0]
        with self._file.transaction():
            if not follows:
                self._states.clear()
                self._clocks.clear()
                self._ages.clear()
                start = bounds.starts[0]
            if start < bounds.ends[0]:
                blocks = log.read(stream, 0, start, bounds.ends[0])
                changed = pa.Table.from_batches([block.batch for block in blocks], schema=stream.schema)
                changed = latest_by_key(changed, self._spec.key)
                there = pc.equal(changed.column(OP), UPSERT)
                self._put(changed.filter(there).select(self._spec.state_schema.names).cast(self._spec.state_schema))
                self._remove(changed.filter(pc.invert(there)).select(self._spec.key))
            self._file.remember({"reached/states": [stream.epoch, list(bounds.ends)]})

    def rows(self, events: Sequence[pa.Table]) -> pa.Table:
        """The states of all keys of these events."""
        keys = [table.select(self._spec.key) for table in events if table.num_rows]
        if not keys:
            return self._spec.state_schema.empty_table()
        distinct = pa.concat_tables(keys).group_by(list(self._spec.key), use_threads=False).aggregate([])
        return self._plain(self._states.by_key(self._states.keys_of(distinct)))

    def of_keys(self, keys: Sequence[Key]) -> pa.Table:
        if not keys:
            return self._spec.state_schema.empty_table()
        return self._plain(self._states.by_key(self._states.keys_of(keys_table(keys, self._spec.key_fields))))

    def everything(self) -> pa.Table:
        return self._plain(self._states.everything())

    def due(self, complete_us: int | None) -> pa.Table:
        """The states of keys of which a timer, or their end, is due."""
        if complete_us is None:
            return self._spec.state_schema.empty_table()
        ripe = self._plain(self._states.before(complete_us + 1))
        old = self._ages.before(complete_us + 1).table if self._spec.keep_us is not None else None
        if old is None or not old.num_rows:
            return ripe
        return together([ripe, self._plain(self._states.by_key(self._states.keys_of(old)))], self._spec)

    def first_timer_us(self, before: pa.Table, changed: pa.Table, waits_us: int | None) -> int | None:
        """When the first timer in event time is due, once these states have changed; `waits_us`: what else waits."""
        touched = set(self._states.keys_of(before)) | set(self._states.keys_of(changed))
        found = [us for row in timers_of(changed.column(TIMERS)) for (_, clock), us in row.items() if not clock]
        found += [] if waits_us is None else [waits_us]
        statement = 'SELECT k, t FROM "states" WHERE t IS NOT NULL ORDER BY t LIMIT ?'
        rows = self._file._connection.execute(statement, (len(touched) + 1,))
        found += [us for key, us in rows if key not in touched][:1]
        return min(found, default=None)

    def clocks(self, now_us: int, most: int) -> tuple[pa.Table, list[tuple[Key, str]]]:
        """States of which a timer by the clock is due, and these timers, the earliest first."""
        due = self._clocks.before(now_us + 1).table
        if not due.num_rows:
            return self._spec.state_schema.empty_table(), []
        states = self._plain(self._states.by_key(self._states.keys_of(due)))
        timers: list[tuple[int, Key, str]] = []
        for key, pending in zip(_keys(states, self._spec.key), timers_of(states.column(TIMERS)), strict=True):
            timers += [(us, key, name) for (name, clock), us in pending.items() if clock and us <= now_us]
        timers.sort(key=lambda timer: (timer[0], repr(timer[1]), timer[2]))
        return states, [(key, name) for _, key, name in timers[:most]]

    def next_clock_us(self) -> int | None:
        """When the next timer by the clock is due."""
        row = self._file._connection.execute('SELECT min(t) FROM "clocks"').fetchone()
        return None if row is None else row[0]

    def apply(self, states: pa.Table, gone: pa.Table, end: int = 0) -> None:
        """What a batch has changed, once the log has it; the changelog ends here."""
        with self._file.transaction():
            self._put(states)
            self._remove(gone)
            if self._stream is not None:
                self._file.remember({"reached/states": [self._stream.epoch, [end]]})

    def _put(self, states: pa.Table) -> None:
        if not states.num_rows:
            return
        timers = timers_of(states.column(TIMERS))
        seen, keep_us = states.column(SEEN).cast(pa.int64()).to_pylist(), self._spec.keep_us
        due: list[int | None] = []
        ages: list[int | None] = []
        for pending, seen_us in zip(timers, seen, strict=True):
            due.append(min((us for (_, clock), us in pending.items() if not clock), default=None))
            ages.append(None if pending or keep_us is None or seen_us is None else seen_us + keep_us)
        _put(self._states, states.append_column(_DUE, pa.array(due, pa.int64()).cast(columns_.TIMESTAMP)))
        keys = states.select(self._spec.key)
        clocks = [min((us for (_, clock), us in p.items() if clock), default=None) for p in timers]
        for table, moments in ((self._clocks, clocks), (self._ages, ages)):
            there = [at for at, us in enumerate(moments) if us is not None]
            table.remove(table.keys_of(keys))
            if there:
                at = pa.array([moments[row] for row in there], pa.int64()).cast(columns_.TIMESTAMP)
                _put(table, keys.take(there).append_column(_DUE, at))

    def _remove(self, keys: pa.Table) -> None:
        if keys.num_rows:
            self._states.remove(self._states.keys_of(keys))
            self._clocks.remove(self._clocks.keys_of(keys))
            self._ages.remove(self._ages.keys_of(keys))

    def _plain(self, rows: HeldRows) -> pa.Table:
        return rows.table.select(self._spec.state_schema.names)


def together(tables: Sequence[pa.Table], spec: FoldSpec) -> pa.Table:
    """Rows of states, each key once."""
    some = [table for table in tables if table.num_rows]
    if len(some) < 2:
        return some[0] if some else spec.state_schema.empty_table()
    whole = pa.concat_tables(some)
    keys = whole.select(spec.key).append_column("#", pa.array(range(whole.num_rows), pa.int64()))
    return whole.take(keys.group_by(list(spec.key), use_threads=False).aggregate([("#", "min")]).column("#_min"))


def _put(table: Table, rows: pa.Table) -> None:
    table.put(HeldRows(rows.cast(table.shape.schema), ()))


def _keys(table: pa.Table, names: Sequence[str]) -> list[Key]:
    columns = [unpack(pa.concat_arrays([pa.array([], c.type), *c.chunks])) for c in map(table.column, names)]
    return list(zip(*columns, strict=True))


def keys_table(keys: Sequence[Key], fields: Sequence[pa.Field]) -> pa.Table:
    """Keys as rows of their columns."""
    arrays = [pa.array([key[at] for key in keys], f.type) for at, f in enumerate(fields)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(fields)))


def changelog_batch(states: pa.Table, gone: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Changed states and keys that are gone, as changes of the view that shows them."""
    upserts: list[Any] = [*states.columns, pa.repeat(pa.scalar(UPSERT, pa.int8()), states.num_rows)]
    names = [*states.column_names, OP]
    changes = pa.Table.from_arrays(upserts, names=names)
    if gone.num_rows:
        empty = {f.name: pa.nulls(gone.num_rows, f.type) for f in schema}
        columns = empty | {name: gone.column(name) for name in gone.column_names}
        columns[OP] = pa.repeat(pa.scalar(DELETE, pa.int8()), gone.num_rows)
        deletes = pa.Table.from_arrays([columns[n] for n in names], names=names)
        changes = pa.concat_tables([changes.cast(schema), deletes.cast(schema)])
    batches = changes.cast(schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
