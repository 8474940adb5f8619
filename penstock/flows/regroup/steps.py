"""Moves all regrouped views together: one step takes the changes of their inputs and commits what follows from them.

1. A step is one commit of the log: all views that it moves, each with the frontier that it has then absorbed. A chain
   of views three deep is one step. A view never shows part of one.
2. The log first, `held.db` after it. If the process ends in between, the next start computes the same units again,
   finds no difference, and writes nothing twice.
3. A view that fails holds up itself and what reads it. Its units stay dirty, its frontier stays where it is, and it
   catches up with one computation later.
4. Inputs that meet in a view are read at one common position (`meetings.py`); a view whose inputs are not level waits.
5. Restart, recovery and repair are one path: rows that `held.db` lacks are read from changelogs, and units that changed
   meanwhile are dirty; if nothing is known, all of them are.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import OP, UPSERT
from penstock.clock import Clock
from penstock.errors import PenstockError, PositionGoneError, StaleTermError, TooMuchError
from penstock.flows.keep import row_times, too_old
from penstock.flows.late import late_events
from penstock.flows.regroup.cells import ALL
from penstock.flows.regroup.held import HeldFile, Index, Shape, Table, discard
from penstock.flows.regroup.input_streams import InputStream, arrived, commit_behind
from penstock.flows.regroup.meetings import Meetings, Place
from penstock.flows.regroup.regrouping import Delta, Regrouping, changelog, difference, joined, without
from penstock.flows.regroup.table_versions import InputVersions, input_of
from penstock.flows.regroup.unit_poison import FunctionFailsError, compute_units, letters, skip_list
from penstock.flows.sink import latest_by_key
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, State, batch_meta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Count, Log, LogReader, Share, Stream

_log = logging.getLogger(__name__)

_LOOK_S = 0.005
_BACKOFF_MOST_S = 30.0
_WAIT_S = 1.0
"""Before a step is tried again that the log refused, because the disk was full for example."""

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


@dataclass
class Kept:
    """One regrouped view while it is kept current."""

    regrouping: Regrouping
    output: Stream
    last: BatchMeta | None
    tell: Callable[[State, BaseException | None], None]
    """Called with how it is after each step that concerns it."""
    places: Mapping[str, Place] | None = None
    """Where what it is made from stood when it was computed; None: its commits say."""
    failures: int = 0
    retry_at: float = 0.0
    building: bool = False
    """All of its units are to be computed, and it goes live when they are."""
    waits: bool = False
    """What it reads is not there yet, or not level."""
    streams: Mapping[str, InputStream] = field(default_factory=dict)
    """Those of its inputs that are streams or flows."""
    poisoned: Mapping[bytes, str] = field(default_factory=dict)
    """Units that it leaves out, because each alone makes it fail, and why."""

    @property
    def name(self) -> str:
        return self.regrouping.view.name

    @property
    def tables(self) -> dict[str, str]:
        """The tables that it is computed from, and the input that each is of."""
        streams = {source.name: name for name, source in self.streams.items()}
        return {t: streams.get(t) or input_of(t) for t in {leaf.input: None for leaf in self.regrouping.units.leaves}}


@dataclass
class _Move:
    """What one step has found and made so far."""

    deltas: dict[str, Delta] = field(default_factory=dict)
    reached: dict[str, Reached] = field(default_factory=dict)
    places: dict[str, Mapping[str, Place]] = field(default_factory=dict)
    """For each table where the inputs stand that it is made from; of an input, itself."""
    filling: set[str] = field(default_factory=set)
    """Tables that are filled anew and not level yet."""
    newest_us: dict[str, int] = field(default_factory=dict)
    """The largest event time behind each table that has one; `keep=` is measured by it."""
    accepted_us: int | None = None
    appends: list[Append] = field(default_factory=list)
    metas: dict[str, BatchMeta] = field(default_factory=dict)
    moved: list[Kept] = field(default_factory=list)
    """Views that are level with their inputs now; those in `metas` by a commit."""
    poisoned: dict[str, Mapping[bytes, str]] = field(default_factory=dict)
    """Units that views leave out, where that has changed."""


def _is_due(view: Kept, now: float) -> bool:
    """Whether a view is to be computed though nothing has changed."""
    return now >= view.retry_at if view.failures else view.building and not view.waits


class Steps:
    """The thread that makes them. It alone uses `held.db`."""

    def __init__(
        self,
        path: Path,
        sources: Sequence[InputChangelog | InputStream | InputVersions],
        kept: Sequence[Kept],
        meetings: Meetings,
        log: Log,
        group: GroupCommit,
        clock: Clock,
        changed: Callable[[], Any],
        live: Callable[[Kept], Mapping[str, Any]],
        late: Stream,
        dead: Stream,
    ) -> None:
        self._path = path
        self._sources = {source.name: source for source in sources}
        self.kept = list(kept)
        """In the order of the graph: a view comes after what it reads."""
        self._meetings = meetings
        self._log = log
        self._group = group
        self._clock = clock
        self._changed = changed
        """A value that differs when anything was committed."""
        self._live = live
        """What the control stream must learn when a view's build is whole."""
        self._late = late
        self._dead = dead
        self._more = False
        """A stream has events that the last step had no room for."""
        self._stop = threading.Event()
        self._held = HeldFile(path)
        self._thread = threading.Thread(target=self._work, name="steps", daemon=True)
        self.failure: BaseException | None = None
        self.steps = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._held.close()

    # The thread

    def _work(self) -> None:
        try:
            self._open_tables()
            seen: Any = object()
            while not self._stop.is_set():
                now = self._changed()
                if now == seen and not self._due():
                    time.sleep(_LOOK_S)
                    continue
                seen = now
                try:
                    self._step_or_repair()
                except PenstockError as error:
                    if not error.retry:
                        raise
                    _log.warning("a step could not be written and is tried again: %s", error)
                    seen = object()
                    self._stop.wait(_WAIT_S)
        except BaseException as error:
            self.failure = error
            _log.exception("the steps of regrouped views have ended")

    def _due(self) -> bool:
        now = self._clock.monotonic()
        if any(_is_due(view, now) for view in self.kept):
            return True
        return self._more or self._meetings.due(now)

    def _step_or_repair(self) -> None:
        try:
            self.step()
        except (sqlite3.DatabaseError, PositionGoneError) as error:
            _log.warning("held.db is filled again: %s", error)
            self._held.close()
            discard(self._path)
            self._held = HeldFile(self._path)
            self._open_tables()

    # Tables

    def _open_tables(self) -> None:
        """Tables of all inputs and of all views, with the indexes that somebody needs; brought up to the log."""
        wanted: dict[str, set[tuple[str, ...]]] = {name: set() for name in self._sources}
        for view in self.kept:
            wanted.setdefault(view.name, set()).add(view.regrouping.own_index)
            for name, indexes in view.regrouping.indexes().items():
                wanted.setdefault(name, set()).update(indexes)
        for name, source in self._sources.items():
            self._held.table(source.shape(tuple(sorted(wanted[name]))))
        for view in self.kept:
            node, found_by = view.regrouping.view, tuple(sorted(wanted[view.name]))
            shape = Shape(view.name, view.regrouping.schema, node.key, found_by, node.keep_us is not None)
            self._held.table(shape)
        with self._held.transaction():
            for view in self.kept:
                if any(self._held.reached(table) is None for table in view.tables):
                    self._held.remember({f"building/{view.name}": True})  # what went meanwhile is nowhere else
            filled = {view.name: self._fill(view, self._held.tables[view.name]) for view in self.kept}
            deltas = {name: delta for name, delta in filled.items() if delta is not None}
            for view in self.kept:
                self._held.mark(view.name, view.regrouping.touched(deltas, self._held.tables))

    def _fill(self, view: Kept, table: Table) -> Delta | None:
        """Bring a view's own rows to the end of its changelog; if they were none of it, every unit is dirty. What
        changed is given back: views that read this one may have been behind when these rows were last written down."""
        bounds, reached = self._log.bounds(view.output), self._held.reached(view.name)
        follows = reached is not None and reached[0] == view.output.epoch
        start = reached[1][0] if reached is not None and follows else -1
        follows = follows and bounds.starts[0] <= start <= bounds.ends[0]
        key = view.regrouping.view.key
        changed = _changes(self._log, view.output, key, start if follows else bounds.starts[0], bounds.ends[0])
        if follows:
            delta = self._take(table, changed) if changed is not None else None
        else:  # another build: what readers were made from is told as gone
            delta = self._replaced(table, changed)
            self._held.remember({f"building/{view.name}": True})
        self._held.remember({f"reached/{view.name}": [view.output.epoch, list(bounds.ends)]})
        view.building = self._held.building(view.name)
        return delta

    def _take(self, table: Table, changed: pa.Table) -> Delta:
        """Changes of a changelog into a table; gives what they did."""
        rows = changed.filter(pc.equal(changed.column(OP), UPSERT)).select(table.shape.schema.names)
        delta = difference(self._spark, table, table.by_key(table.keys_of(changed)), rows.cast(table.shape.schema))
        assert delta is not None
        table.apply(delta.old, delta.new)
        return delta

    @property
    def _spark(self) -> Any:
        return self.kept[0].regrouping.spark

    # A step

    def step(self) -> bool:
        """Take what has changed; whether anything was committed."""
        move, self._more = _Move(), False
        with self._held.transaction():
            self._follow_all(move)
            for view in self.kept:
                self._move(view, move)
            if move.appends:
                self._commit(move)
        for view in move.moved:
            view.last = move.metas.get(view.name, view.last)
            view.places = move.places[view.name]
            view.failures, view.building = 0, False
            view.poisoned = move.poisoned.get(view.name, view.poisoned)
            view.tell("running", None)
        self.steps += bool(move.appends)
        return bool(move.appends)

    def _follow_all(self, move: _Move) -> None:
        """Take over what inputs have changed: those that meet up to a common position, the others up to their ends."""
        streams = {source.input: source.live() for source in self._sources.values()}
        logs = {source.input: source.log for source in self._sources.values()}
        ends = {name: logs[name].bounds(stream).ends for name, stream in streams.items() if stream is not None}
        met = {name for group in self._meetings.groups for name in group}
        targets = self._meetings.targets(streams, self._input_place, ends, self._clock.monotonic())
        for table, source in self._sources.items():
            name = source.input
            stream, end = streams[name], targets.get(name) if name in met else ends.get(name)
            if end is None and (place := self._place(table)) is not None:
                stream, end = source.log.find(name, place[0]), place[1]
            if stream is None or end is None:
                continue
            if isinstance(source, InputStream):
                self._take_events(source, stream, end, move)
            elif isinstance(source, InputVersions):
                self._take_versions(source, stream, end[0], move)
            else:
                self._follow(source, stream, end, move)

    def _input_place(self, name: str) -> Place:
        """Where an input stands; of a stream that has several tables, the one that is furthest."""
        places = [self._place(table) for table, source in self._sources.items() if source.input == name]
        return max(places, key=lambda place: 0 if place is None else sum(place[1]), default=None)

    def _place(self, table: str) -> Place:
        reached = self._held.reached(table)
        return None if reached is None else (reached[0], tuple(reached[1]))

    def _follow(self, source: InputChangelog, stream: Stream, end: tuple[int, ...], move: _Move) -> None:
        """Take over what a source has changed since the last step, up to this end."""
        table, reached = self._held.tables[source.name], self._held.reached(source.name)
        bounds = source.log.bounds(stream)
        if reached is not None and reached[0] == stream.epoch and bounds.starts[0] <= reached[1][0]:
            changed = _changes(source.log, stream, source.key, reached[1][0], end[0])
            delta = self._take(table, changed) if changed is not None else None
        else:  # another build, or compacted past: what differs is the change
            changed = _changes(source.log, stream, source.key, bounds.starts[0], end[0])
            delta = self._replaced(table, changed)
        if delta is not None and not delta.empty:
            move.deltas[source.name] = delta
        self._note_times(source, stream, end[0], move)
        move.reached[source.name] = (stream.epoch, list(end))
        move.places[source.name] = {source.name: (stream.epoch, end)}
        if reached != move.reached[source.name]:
            self._held.remember({f"reached/{source.name}": [stream.epoch, list(end)]})

    def _take_versions(self, source: InputVersions, stream: Stream, end: int, move: _Move) -> None:
        """Take over the changes of a table as rows of their own: a version never changes."""
        table, reached = self._held.tables[source.name], self._held.reached(source.name)
        start = source.log.bounds(stream).starts[0]
        follows = reached is not None and reached[0] == stream.epoch and start <= reached[1][0]
        rows = source.rows(stream, reached[1][0] if reached is not None and follows else start, end)
        old = table.by_key(()) if follows else table.everything()
        delta = difference(self._spark, table, old, rows)
        assert delta is not None
        table.apply(delta.old, delta.new)
        if not delta.empty:
            move.deltas[source.name] = delta
        move.reached[source.name] = (stream.epoch, [end])
        move.places[source.name] = {source.input: (stream.epoch, (end,))}
        if reached != move.reached[source.name]:
            self._held.remember({f"reached/{source.name}": [stream.epoch, [end]]})

    def _take_events(self, source: InputStream, stream: Stream, end: tuple[int, ...], move: _Move) -> None:
        """Take over what has come to a stream since the last step, and let go of what no longer counts."""
        name, table = source.name, self._held.tables[source.name]
        reached, was_filling = self._held.reached(name), self._held.is_filling(name)
        follows = reached is not None and reached[0] == stream.epoch and source.has(stream, reached[1])
        start = reached[1] if reached is not None and follows else None
        new = arrived(source, stream, start, end, table, self._spark)
        table.apply(new.delta.old, new.delta.new)
        if not new.delta.empty:
            move.deltas[name] = new.delta
        filling = not new.level and (not follows or was_filling)
        if filling:
            move.filling.add(name)
        self._more = self._more or not new.level
        if new.newest_us is not None:
            move.newest_us[name] = new.newest_us
        move.accepted_us = max(new.written_us or 0, move.accepted_us or 0) or None
        move.reached[name] = (new.epoch, new.ends)
        move.places[name] = {source.input: (new.epoch, tuple(new.ends))}
        if (reached, was_filling) != (move.reached[name], filling):
            self._held.remember({f"reached/{name}": list(move.reached[name]), f"filling/{name}": filling})

    def _note_times(self, source: InputChangelog, stream: Stream, below: int, move: _Move) -> None:
        last = source.log.last_commit(stream, below)
        if last is None:
            return
        meta = batch_meta(last.meta) if last.meta else None
        move.accepted_us = max((meta and meta.accepted_us) or last.written_us, move.accepted_us or 0)
        if meta is not None and meta.max_us is not None:
            move.newest_us[source.name] = meta.max_us

    def _replaced(self, table: Table, changed: pa.Table | None) -> Delta:
        names = table.shape.schema.names
        rows = table.shape.schema.empty_table()
        if changed is not None:
            rows = changed.filter(pc.equal(changed.column(OP), UPSERT)).select(names).cast(table.shape.schema)
        delta = difference(self._spark, table, table.everything(), rows)
        assert delta is not None
        table.apply(delta.old, delta.new)
        return delta

    def _move(self, view: Kept, move: _Move) -> None:
        """Compute what a view's inputs have changed of it, or note it for later."""
        grouping, tables = view.regrouping, self._held.tables
        inputs = set(view.tables)
        units = grouping.touched({n: d for n, d in move.deltas.items() if n in inputs}, tables)
        places = None if inputs & move.filling else self._level_places(view, move)
        view.waits = places is None
        if places is None or (view.failures and self._clock.monotonic() < view.retry_at):
            self._held.mark(view.name, units)
            self._stand(view, move)
            return
        units |= self._all_units(view) if view.building else self._held.dirty(view.name)
        newest = [move.newest_us[name] for name in inputs if name in move.newest_us]
        if newest:
            before = view.last.max_us if view.last else None
            move.newest_us[view.name] = max(min(newest), before or min(newest))  # what has gone stays gone
        try:
            delta, failed = self._computed(view, units, move.newest_us.get(view.name))
        except Exception as error:
            self._failed(view, units, error)
            self._stand(view, move)
            return
        self._held.clean(view.name, units)
        if view.building:
            self._held.remember({f"building/{view.name}": None})
        move.places[view.name] = places
        self._append(view, delta, move)
        self._leave_out(view, units, failed, move)

    def _level_places(self, view: Kept, move: _Move) -> Mapping[str, Place] | None:
        """Where all that a view is made from stands; None: something is not there yet, or is not level."""
        places: dict[str, Place] = {}
        for table, name in view.tables.items():
            for source, place in move.places.get(table, {name: None}).items():
                if place is None or places.setdefault(source, place) != place:
                    return None
        return places if self._meetings.level(places) else None

    def _all_units(self, view: Kept) -> set[bytes]:
        grouping, tables = view.regrouping, self._held.tables
        own = tables[view.name]
        units = own.values(own.index(grouping.own_index)) | (set() if grouping.units.columns else {ALL})
        for leaf, home in grouping.units.homes.items():
            table = tables[grouping.units.leaves[leaf].input]
            units |= table.values(table.index(home))
        return units

    def _computed(self, view: Kept, units: set[bytes], newest_us: int | None) -> tuple[Delta, dict[bytes, str]]:
        """What became of these units, and why those failed that did so alone."""
        own, grouping = self._held.tables[view.name], view.regrouping
        if units and not grouping.units.columns:
            _refuse_too_much(view, self._held.tables)
        keep_us = grouping.view.keep_us
        limit_us = None if keep_us is None or newest_us is None else newest_us - keep_us

        def compute(some: set[bytes]) -> pa.Table:
            result = grouping.computed(grouping.needed(some, self._held.tables), some)
            return result if limit_us is None else result.filter(pc.invert(too_old(row_times(result), limit_us)))

        suspects = units & view.poisoned.keys()
        slices = grouping.slices(units - suspects, self._held.tables)
        results = compute_units(compute, slices, suspects, view.failures)
        gone = [(set(results.failed), own.shape.schema.empty_table())] if results.failed else []
        delta = joined(grouping.differences([*results.parts, *gone], own), own)
        delta = delta if limit_us is None else without(delta, own.before(limit_us), own)
        return delta, results.failed

    def _leave_out(self, view: Kept, units: set[bytes], failed: dict[bytes, str], move: _Move) -> None:
        """Note which units fail now, and which fail no more."""
        others = {unit: said for unit, said in view.poisoned.items() if unit not in units}
        if others | failed == view.poisoned:
            return
        move.poisoned[view.name] = others | failed
        new = {unit: said for unit, said in failed.items() if view.poisoned.get(unit) != said}
        if new:
            columns = view.regrouping.units.columns
            _log.error("the view '%s' leaves out %d units that alone make it fail; see 'dead'", view.name, len(new))
            dead = letters(view.name, view.output.epoch, columns, new, self._clock.now_us())
            move.appends.append(Append(self._dead, dead))

    def _append(self, view: Kept, delta: Delta, move: _Move) -> None:
        """A commit of the view, if it has changed or its frontier has moved."""
        own = self._held.tables[view.name]
        own.apply(delta.old, delta.new)
        end = {name: [move.reached[table][0], list(move.reached[table][1])] for table, name in view.tables.items()}
        last = view.last
        offset = self._log.bounds(view.output).ends[0]
        move.reached[view.name] = (view.output.epoch, [offset])
        move.moved.append(view)
        if delta.empty and last is not None and last.end == end and not view.building:
            return
        now_us = self._clock.now_us()
        meta = BatchMeta(
            batch=0 if last is None else last.batch + 1,
            start=last.end if last is not None else end,
            end=end,
            max_us=move.newest_us.get(view.name),
            accepted_us=move.accepted_us,
            planned_us=now_us,
            done_us=now_us,
        )
        move.deltas[view.name] = delta
        move.reached[view.name] = (view.output.epoch, [offset + 1])
        move.metas[view.name] = meta
        move.appends.append(Append(view.output, changelog(delta, own), meta=msgspec.to_builtins(meta)))
        move.appends += self._late_events(view, end, now_us)

    def _late_events(self, view: Kept, end: Mapping[str, Any], now_us: int) -> Iterator[Append]:
        """What the log's rule has left out between the view's last frontier and this one, for the ledger `late`."""
        for name, source in view.streams.items():
            stream = source.live()
            if stream is None or stream.epoch != end[name][0]:
                continue
            before = view.last.end.get(name) if view.last else None
            follows = before is not None and before[0] == stream.epoch
            first = commit_behind(source.log, stream, before[1]) if before and follows else 0
            behind = commit_behind(source.log, stream, end[name][1])
            found = late_events(source.log, source.feed_of(stream), view.name, first, behind, now_us)
            if found is not None:
                count = Count(control_keys.count(name, view.name), "late", Share("accepted"))
                yield Append(self._late, found, follows=True, counts=(count,))

    def _stand(self, view: Kept, move: _Move) -> None:
        """It stays where it is; what reads it sees it there."""
        if view.last is not None:
            move.reached[view.name] = (view.output.epoch, list(self._log.bounds(view.output).ends))
            move.places[view.name] = self._places_of(view.last) if view.places is None else view.places

    def _places_of(self, last: BatchMeta) -> dict[str, Place]:
        """Where the inputs stood that a commit was made from, through the commits of views between."""
        places: dict[str, Place] = {}
        for name, (epoch, offsets) in last.end.items():
            if any(source.input == name for source in self._sources.values()):
                places[name] = (epoch, tuple(offsets))
                continue
            stream = self._log.find(name, epoch)
            commit = self._log.last_commit(stream, offsets[0]) if stream is not None else None
            below = self._places_of(batch_meta(commit.meta)) if commit is not None and commit.meta else {name: None}
            places |= {source: place if places.get(source, place) == place else None for source, place in below.items()}
        return places

    def _commit(self, move: _Move) -> None:
        learned: dict[str, Any] = {}
        for view in move.moved:
            learned |= self._live(view)
            if view.name in move.poisoned:
                key = control_keys.skip(view.name, view.output.epoch)
                learned[key] = skip_list(move.poisoned[view.name])
        self._group.submit(move.appends, learned).result()
        facts = {f"reached/{name}": list(move.reached[name]) for name in move.metas}
        self._held.remember(facts)

    def _failed(self, view: Kept, units: set[bytes], error: Exception) -> None:
        if isinstance(error, StaleTermError | sqlite3.DatabaseError):
            raise error
        self._held.mark(view.name, units)
        view.failures += 1
        view.retry_at = self._clock.monotonic() + min(_BACKOFF_MOST_S, 0.5 * 2 ** min(view.failures, 10))
        _log.error("the view '%s' could not be computed (%d): %s", view.name, view.failures, error.__cause__ or error)
        if isinstance(error, FunctionFailsError):
            view.retry_at = math.inf
            view.tell("stopped", error.__cause__)
        else:
            view.tell("retrying", error)


def _refuse_too_much(kept: Kept, tables: Mapping[str, Table]) -> None:
    view, rows = kept.regrouping.view, sum(len(tables[name]) for name in kept.tables)
    if rows > view.whole_rows:
        raise TooMuchError(
            f"'{view.name}' has no units: any change computes all of it, and its inputs have {rows:,} rows",
            detail=f"it may be computed from {view.whole_rows:,}",
            hint='give its rows a column that leads to what they are made from, or allow more: whole="1 million rows"',
        )


def _changes(log: LogReader, stream: Stream, key: tuple[str, ...], start: int, end: int) -> pa.Table | None:
    """The last change of each key between two offsets of a changelog; None: there is none."""
    blocks = log.read(stream, 0, start, end) if start < end else ()
    batches = [block.batch for block in blocks if block.batch.num_rows]
    return latest_by_key(pa.Table.from_batches(batches, schema=stream.schema), key) if batches else None
