"""Takes over into `held.db` what the inputs of regrouped views have changed: rows of changelogs, versions, events.

An input is followed from where its table stands. One that was built anew, or compacted past that place, is compared
with what is held of it: the difference is the change, so that what reads it need not be built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.change import OP, UPSERT
from penstock.flows.regroup.held import HeldFile, Index, Shape, Table
from penstock.flows.regroup.input_streams import InputStream, arrived
from penstock.flows.regroup.meetings import Meetings, Place
from penstock.flows.regroup.regrouping import Delta, difference
from penstock.flows.regroup.table_versions import InputVersions
from penstock.flows.sink import latest_by_key
from penstock.log.builds import batch_meta
from penstock.log.log import LogReader, Stream

Reached = tuple[str, list[int]]
"""Epoch and offsets."""


@dataclass(frozen=True)
class InputChangelog:
    """A view or table that regrouped views read, and where its changelog is."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    log: LogReader
    live: Callable[[], Stream | None]
    """The stream that is served now; None: there is none yet."""

    @property
    def input(self) -> str:
        """Whose table it is."""
        return self.name

    def shape(self, indexes: tuple[Index, ...]) -> Shape:
        return Shape(self.name, self.schema, self.key, indexes)


Source = InputChangelog | InputStream | InputVersions


@dataclass
class Taken:
    """What a step has taken over, and where that has led."""

    deltas: dict[str, Delta] = field(default_factory=dict)
    reached: dict[str, Reached] = field(default_factory=dict)
    places: dict[str, Mapping[str, Place]] = field(default_factory=dict)
    """For each table where the inputs stand that it is made from; of an input, itself."""
    filling: set[str] = field(default_factory=set)
    """Tables that are filled anew and not level yet."""
    newest_us: dict[str, int] = field(default_factory=dict)
    """The largest event time behind each table that has one; `keep=` is measured by it."""
    accepted_us: int | None = None
    more: bool = False
    """A stream has events that this step had no room for."""


class InputFollower:
    """The inputs of all regrouped views. Belongs to the thread of the steps, and writes within its transactions."""

    def __init__(self, held: HeldFile, sources: Sequence[Source], meetings: Meetings, spark: SparkSession) -> None:
        self.held = held
        self.sources = {source.name: source for source in sources}
        self._meetings = meetings
        self._spark = spark

    def follow_all(self, taken: Taken, now_s: float) -> None:
        """Take over what inputs have changed: those that meet up to a common position, the others up to their ends."""
        streams = {source.input: source.live() for source in self.sources.values()}
        logs = {source.input: source.log for source in self.sources.values()}
        ends = {name: logs[name].bounds(stream).ends for name, stream in streams.items() if stream is not None}
        met = {name for group in self._meetings.groups for name in group}
        targets = self._meetings.targets(streams, self._input_place, ends, now_s)
        for table, source in self.sources.items():
            name = source.input
            stream, end = streams[name], targets.get(name) if name in met else ends.get(name)
            if end is None and (place := self._place(table)) is not None:
                stream, end = source.log.find(name, place[0]), place[1]
            if stream is None or end is None:
                continue
            if isinstance(source, InputStream):
                self._take_events(source, stream, end, taken)
            elif isinstance(source, InputVersions):
                self._take_versions(source, stream, end[0], taken)
            else:
                self._follow(source, stream, end, taken)

    def _input_place(self, name: str) -> Place:
        """Where an input stands; of a stream that has several tables, the one that is furthest."""
        places = [self._place(table) for table, source in self.sources.items() if source.input == name]
        return max(places, key=lambda place: 0 if place is None else sum(place[1]), default=None)

    def _place(self, table: str) -> Place:
        reached = self.held.reached(table)
        return None if reached is None else (reached[0], tuple(reached[1]))

    def _follow(self, source: InputChangelog, stream: Stream, end: tuple[int, ...], taken: Taken) -> None:
        """Take over what a source has changed since the last step, up to this end."""
        table, reached = self.held.tables[source.name], self.held.reached(source.name)
        bounds = source.log.bounds(stream)
        if reached is not None and reached[0] == stream.epoch and bounds.starts[0] <= reached[1][0]:
            changed = changes_between(source.log, stream, source.key, reached[1][0], end[0])
            delta = take(self._spark, table, changed) if changed is not None else None
        else:  # another build, or compacted past: what differs is the change
            changed = changes_between(source.log, stream, source.key, bounds.starts[0], end[0])
            delta = replaced(self._spark, table, changed)
        if delta is not None and not delta.empty:
            taken.deltas[source.name] = delta
        self._note_times(source, stream, end[0], taken)
        taken.reached[source.name] = (stream.epoch, list(end))
        taken.places[source.name] = {source.name: (stream.epoch, end)}
        if reached != taken.reached[source.name]:
            self.held.remember({f"reached/{source.name}": [stream.epoch, list(end)]})

    def _take_versions(self, source: InputVersions, stream: Stream, end: int, taken: Taken) -> None:
        """Take over the changes of a table as rows of their own: a version never changes."""
        table, reached = self.held.tables[source.name], self.held.reached(source.name)
        start = source.log.bounds(stream).starts[0]
        follows = reached is not None and reached[0] == stream.epoch and start <= reached[1][0]
        rows = source.rows(stream, reached[1][0] if reached is not None and follows else start, end)
        old = table.by_key(()) if follows else table.everything()
        delta = difference(self._spark, table, old, rows)
        assert delta is not None
        table.apply(delta.old, delta.new)
        if not delta.empty:
            taken.deltas[source.name] = delta
        taken.reached[source.name] = (stream.epoch, [end])
        taken.places[source.name] = {source.input: (stream.epoch, (end,))}
        if reached != taken.reached[source.name]:
            self.held.remember({f"reached/{source.name}": [stream.epoch, [end]]})

    def _take_events(self, source: InputStream, stream: Stream, end: tuple[int, ...], taken: Taken) -> None:
        """Take over what has come to a stream since the last step, and let go of what no longer counts."""
        name, table = source.name, self.held.tables[source.name]
        reached, was_filling = self.held.reached(name), self.held.is_filling(name)
        follows = reached is not None and reached[0] == stream.epoch and source.has(stream, reached[1])
        start = reached[1] if reached is not None and follows else None
        new = arrived(source, stream, start, end, table, self._spark)
        table.apply(new.delta.old, new.delta.new)
        if not new.delta.empty:
            taken.deltas[name] = new.delta
        filling = not new.level and (not follows or was_filling)
        if filling:
            taken.filling.add(name)
        taken.more = taken.more or not new.level
        if new.newest_us is not None:
            taken.newest_us[name] = new.newest_us
        taken.accepted_us = max(new.written_us or 0, taken.accepted_us or 0) or None
        taken.reached[name] = (new.epoch, new.ends)
        taken.places[name] = {source.input: (new.epoch, tuple(new.ends))}
        if (reached, was_filling) != (taken.reached[name], filling):
            self.held.remember({f"reached/{name}": list(taken.reached[name]), f"filling/{name}": filling})

    def _note_times(self, source: InputChangelog, stream: Stream, below: int, taken: Taken) -> None:
        last = source.log.last_commit(stream, below)
        if last is None:
            return
        meta = batch_meta(last.meta) if last.meta else None
        taken.accepted_us = max((meta and meta.accepted_us) or last.written_us, taken.accepted_us or 0)
        if meta is not None and meta.max_us is not None:
            taken.newest_us[source.name] = meta.max_us


def take(spark: SparkSession, table: Table, changed: pa.Table) -> Delta:
    """Changes of a changelog into a table; gives what they did."""
    rows = changed.filter(pc.equal(changed.column(OP), UPSERT)).select(table.shape.schema.names)
    delta = difference(spark, table, table.by_key(table.keys_of(changed)), rows.cast(table.shape.schema))
    assert delta is not None
    table.apply(delta.old, delta.new)
    return delta


def replaced(spark: SparkSession, table: Table, changed: pa.Table | None) -> Delta:
    """Put what a changelog holds into the place of all rows of a table; gives what that did."""
    names = table.shape.schema.names
    rows = table.shape.schema.empty_table()
    if changed is not None:
        rows = changed.filter(pc.equal(changed.column(OP), UPSERT)).select(names).cast(table.shape.schema)
    delta = difference(spark, table, table.everything(), rows)
    assert delta is not None
    table.apply(delta.old, delta.new)
    return delta


def changes_between(log: LogReader, stream: Stream, key: tuple[str, ...], start: int, end: int) -> pa.Table | None:
    """The last change of each key between two offsets of a changelog; None: there is none."""
    blocks = log.read(stream, 0, start, end) if start < end else ()
    batches = [block.batch for block in blocks if block.batch.num_rows]
    return latest_by_key(pa.Table.from_batches(batches, schema=stream.schema), key) if batches else None
