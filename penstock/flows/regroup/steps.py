"""Moves all regrouped views together: one step takes the changes of their inputs and commits what follows from them.

1. A step is one commit of the log: all views that it moves, each with the frontier that it has then absorbed. A chain
   of views three deep is one step. A view never shows part of one.
2. The log first, `held.db` after it. If the process ends in between, the next start computes the same units again,
   finds no difference, and writes nothing twice.
3. A view that fails or takes too long holds up itself and what reads it. Its units stay dirty, its frontier stays where
   it is, and it catches up beside the steps (`stragglers.py`), as views without units always do.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import PenstockError, PositionGoneError, StaleTermError
from penstock.flows.late import late_events
from penstock.flows.regroup.held import HeldFile, Order, Shape, Table, discard
from penstock.flows.regroup.input_follower import InputFollower, Reached, Source, Taken, changes_between, replaced, take
from penstock.flows.regroup.input_streams import commit_at, commit_behind
from penstock.flows.regroup.kept_view import Computed, Kept, TimeLimit
from penstock.flows.regroup.meetings import Meetings, Place
from penstock.flows.regroup.regrouping import Delta, changelog
from penstock.flows.regroup.stragglers import Job, Straggler, Stragglers
from penstock.flows.regroup.sums import UnitSet
from penstock.flows.regroup.unit_poison import FunctionFailsError, TooSlowError, letters, skip_list
from penstock.flows.sink import least
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, batch_meta
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Count, Log, Share, Stream

_log = logging.getLogger(__name__)

_LOOK_S = 0.005
_BACKOFF_MOST_S = 30.0
_WAIT_S = 1.0
"""Before a step is tried again that the log refused, because the disk was full for example."""
STEP_S = 5.0
"""What a view has for a step."""
_LEAST_STEP_S = 0.5
"""What is left of that for one that has overrun it often."""
_QUICK_S = 1.0
"""A view that has taken less by itself comes back to the steps."""
_STOP_S = 1.0
"""What a step has to end by itself when the process stops."""


class _TogetherError(Exception):
    """Two builds must go live in one commit, and one of them is too slow for this step."""


@dataclass
class _Move(Taken):
    """What one step has found and made so far."""

    appends: list[Append] = field(default_factory=list)
    metas: dict[str, BatchMeta] = field(default_factory=dict)
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The same as the log gets them."""
    moved: list[Kept] = field(default_factory=list)
    """Views that are level with their inputs now; those in `metas` by a commit."""
    poisoned: dict[str, Mapping[bytes, str]] = field(default_factory=dict)
    """Units that views leave out, where that has changed."""
    alone: list[str] = field(default_factory=list)
    """Views that could be computed now, and go alone."""
    noted: dict[str, tuple[Straggler, list[pa.Table], set[bytes]]] = field(default_factory=dict)
    """What was added to the sums of views that are with a job, and units for which that failed."""


def _is_due(view: Kept, now: float) -> bool:
    """Whether a view is to be computed though nothing has changed."""
    return now >= view.retry_at if view.failures else view.building and not view.waits


class Steps:
    """The thread that makes them. It alone writes `held.db`."""

    def __init__(
        self,
        path: Path,
        sources: Sequence[Source],
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
        """The last step has left something that is there already."""
        self._stop = threading.Event()
        self._held = HeldFile(path)
        self._inputs = InputFollower(self._held, sources, meetings, self._spark)
        self._limit = TimeLimit(self._spark.sparkContext, "penstock-steps")
        order = [view.name for view in kept]
        self._stragglers = Stragglers(order, meetings.inputs, self._spark.sparkContext, clock)
        self._thread = threading.Thread(target=self._work, name="steps", daemon=True)
        self.failure: BaseException | None = None
        self.steps = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
            self._limit.cut()
            self._thread.join()
        self._stragglers.drop()
        self._held.close()

    # The thread

    def _work(self) -> None:
        try:
            self._limit.begin()
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
        if any(_is_due(view, now) and not self._stragglers.waits(view.name) for view in self.kept):
            return True
        return self._stragglers.due() or self._more or self._meetings.due(now)

    def _step_or_repair(self) -> None:
        try:
            self.step()
        except (sqlite3.DatabaseError, PositionGoneError) as error:
            _log.warning("held.db is filled again: %s", error)
            self._stragglers.drop()
            self._held.close()
            discard(self._path)
            self._held = self._inputs.held = HeldFile(self._path)
            self._open_tables()

    # Tables

    def _open_tables(self) -> None:
        """Tables of all inputs and of all views, with the indexes that somebody needs; brought up to the log."""
        wanted: dict[str, set[tuple[str, ...]]] = {name: set() for name in self._inputs.sources}
        for view in self.kept:
            wanted.setdefault(view.name, set()).add(view.regrouping.own_index)
            for name, indexes in view.regrouping.indexes().items():
                wanted.setdefault(name, set()).update(indexes)
        orders: dict[str, set[Order]] = {}
        for view in self.kept:
            for name, some in view.regrouping.orders().items():
                orders.setdefault(name, set()).update(some)
        by_order = {name: tuple(sorted(some, key=repr)) for name, some in orders.items()}
        for name, source in self._inputs.sources.items():
            shape = source.shape(tuple(sorted(wanted[name])))
            self._held.table(replace(shape, orders=by_order.get(name, ())))
        for view in self.kept:
            node, found_by = view.regrouping.view, tuple(sorted(wanted[view.name]))
            shape = Shape(view.name, view.regrouping.schema, node.key, found_by, node.keep_us is not None)
            self._held.table(replace(shape, orders=by_order.get(view.name, ())))
        for view in self.kept:
            if view.sums is not None:
                tables = {name: self._held.tables[name].shape.schema for name in view.tables}
                self._held.table(view.sums.shape(tables))
        with self._held.transaction():
            for view in self.kept:
                unknown = any(self._held.reached(table) is None for table in view.tables)
                if unknown or (view.sums is not None and self._lost(view) is None):
                    self._held.remember({f"building/{view.name}": True})  # what went meanwhile is nowhere else
                if unknown and view.sums is not None:
                    self._held.remember({f"reached/{view.sums.name}": None})
            filled = {view.name: self._fill(view, self._held.tables[view.name]) for view in self.kept}
            deltas = {name: delta for name, delta in filled.items() if delta is not None}
            for view in self.kept:
                if view.building:
                    self._read_again(view)
            for view in self.kept:
                touched = view.regrouping.touched(deltas, self._held.tables)
                self._held.mark(view.name, touched)
                if view.sums is not None:
                    self._held.mark(view.sums.name, touched)

    def _read_again(self, view: Kept) -> None:
        """A view that is built needs all events, those too that have gone because their rows were final."""
        for source in view.streams.values():
            if source.hold_us is not None:
                self._held.tables[source.name].clear()
                self._held.remember({f"reached/{source.name}": None, f"filling/{source.name}": None})

    def _let_go(self, view: Kept, move: _Move) -> None:
        """Let events go whose rows are final, once the view is level."""
        sources = [source for source in view.streams.values() if source.hold_us is not None]
        newest = [(move.newest_us.get(source.name), source.hold_us or 0) for source in sources]
        if sources and all(us is not None for us, _ in newest) and not self._held.dirty(view.name):
            limit_us = min((us or 0) - hold_us for us, hold_us in newest)
            for source in sources:
                self._held.tables[source.name].forget(limit_us)

    def _fill(self, view: Kept, table: Table) -> Delta | None:
        """Bring a view's own rows to the end of its changelog; if they were none of it, every unit is dirty. What
        changed is given back: views that read this one may have been behind when these rows were last written down."""
        bounds, reached = self._log.bounds(view.output), self._held.reached(view.name)
        follows = reached is not None and reached[0] == view.output.epoch
        start = reached[1][0] if reached is not None and follows else -1
        follows = follows and bounds.starts[0] <= start <= bounds.ends[0]
        key = view.regrouping.view.key
        changed = changes_between(self._log, view.output, key, start if follows else bounds.starts[0], bounds.ends[0])
        if follows:
            delta = take(self._spark, table, changed) if changed is not None else None
            if changed is not None and view.regrouping.units.hidden:  # a changelog does not say of which units they are
                self._held.remember({f"building/{view.name}": True})
        else:  # another build: what readers were made from is told as gone
            delta = replaced(self._spark, table, changed)
            self._held.remember({f"building/{view.name}": True})
        self._held.remember({f"reached/{view.name}": [view.output.epoch, list(bounds.ends)]})
        view.building = self._held.building(view.name)
        return delta

    @property
    def _spark(self) -> Any:
        return self.kept[0].regrouping.spark

    # A step

    def step(self) -> bool:
        """Take what has changed; whether anything was committed."""
        move, arrived = _Move(), self._stragglers.arrived()
        try:
            with self._held.transaction():
                self._inputs.follow_all(move, self._clock.monotonic())
                for view in self.kept:
                    if view.name in arrived:
                        self._take_back(view, arrived[view.name], move)
                    else:
                        self._move(view, move)
                for view in move.moved:
                    self._let_go(view, move)
                if move.appends:
                    self._commit(move)
        except _TogetherError:
            self._more = True
            return False
        self._more = move.more or bool(arrived)  # those that were handed back have something to catch up with
        for view in move.moved:
            view.last = move.metas.get(view.name, view.last)
            view.places = move.places[view.name]
            view.failures, view.building = 0, False
            view.poisoned = move.poisoned.get(view.name, view.poisoned)
            view.tell("running", None)
        for member, moved, lost in move.noted.values():
            member.moved += moved
            member.unmoved |= lost
        self._stragglers.settle(arrived)
        self._send_off(move)
        self.steps += bool(move.appends)
        return bool(move.appends)

    def _move(self, view: Kept, move: _Move) -> None:
        """Compute what a view's inputs have changed of it, or note it for later."""
        job = self._stragglers.job_of(view.name)
        units = self._touched(view, move, job)
        self._add(view, move, job)
        if job is not None:
            self._held.mark(view.name, units)
            self._stand(view, move)
            return
        places = None if view.tables.keys() & move.filling else self._level_places(view, move.places)
        view.waits = places is None
        if places is None or (view.failures and self._clock.monotonic() < view.retry_at):
            self._held.mark(view.name, units)
            self._stand(view, move)
            return
        dirty = self._held.dirty(view.name)
        if view.goes_alone and (units or dirty or view.building):
            self._leave(view, units, move)
            return
        self._move_within(view, units | dirty, places, move)

    def _move_within(self, view: Kept, units: set[bytes], places: Mapping[str, Place], move: _Move) -> None:
        """Compute a view as part of the step, if that does not take too long."""
        if view.building:
            units |= view.all_units(self._held.tables)
        newest_us = view.newest_us(move.newest_us)
        self._limit.restart(max(_LEAST_STEP_S, STEP_S / 2**view.overruns))
        try:
            lost = self._lost(view)
            made = view.computed(units, newest_us, self._held.tables, self._limit.query, most_slices=1, lost=lost)
        except TooSlowError as error:
            self._overrun(view, units, error, move)
            return
        except Exception as error:
            self._failed(view, units, error)
            self._stand(view, move)
            return
        self._held.clean(view.name, units)
        self._settle(view, made, move)
        move.places[view.name] = places
        self._append(view, made.delta, newest_us, move.reached, move.accepted_us, move)
        self._leave_out(view, units, made.failed, move)

    def _touched(self, view: Kept, move: _Move, job: Job | None) -> set[bytes]:
        """The units that this step changes. Of a view that is with a job, what that job does not know is noted."""
        deltas = {name: delta for name, delta in move.deltas.items() if name in view.tables}
        if job is None:
            return view.regrouping.touched(deltas, self._held.tables)
        known = {name: delta for name, delta in deltas.items() if name in job.members and name in job.arrived()}
        news = {name: delta for name, delta in deltas.items() if name not in known}
        units = view.regrouping.touched(news, self._held.tables)
        job.members[view.name].touched |= units
        return units | view.regrouping.touched(known, self._held.tables)

    # Sums

    def _lost(self, view: Kept) -> UnitSet:
        return None if view.sums is None else view.sums.lost(self._held, view.output.epoch)

    def _add(self, view: Kept, move: _Move, job: Job | None) -> None:
        """Let the sums of a view follow its inputs. What a job does not know of it is noted there."""
        deltas = {name: delta for name, delta in move.deltas.items() if name in view.tables}
        if view.sums is None or not deltas or (job is None and self._lost(view) is None):
            return
        known = {} if job is None else {n: d for n, d in deltas.items() if n in job.members and n in job.arrived()}
        news = {name: delta for name, delta in deltas.items() if name not in known}
        for some in (part for part in (news, known) if part):
            self._limit.restart(STEP_S)
            moved = view.sums.follow(self._held, view.output.epoch, some, self._limit.query)
            if job is not None and some is news:
                lost = view.regrouping.touched(some, self._held.tables) if moved is None else set()
                move.noted[view.name] = (job.members[view.name], moved or [], lost)

    def _settle(self, view: Kept, made: Computed, move: _Move, member: Straggler | None = None) -> None:
        """Hold the sums that were computed from rows, with what has moved since."""
        if view.sums is None or made.sums is None:
            return
        moved: list[pa.Table] = []
        lost = made.failed.keys() if made.sums.units is None else made.failed.keys() & made.sums.units
        if member is not None:
            _, now, unmoved = move.noted.get(view.name, (member, [], set()))
            moved, lost = [*member.moved, *now], lost | member.unmoved | unmoved
        view.sums.settle(self._held, view.output.epoch, made.sums, moved, set(lost))

    # Views that go alone

    def _overrun(self, view: Kept, units: set[bytes], error: TooSlowError, move: _Move) -> None:
        """It has held up the others: it goes on beside them."""
        _log.warning("the view '%s' takes too long for a step and goes on beside the others: %s", view.name, error)
        view.slow = True
        view.overruns += self._limit.passed
        before = [other for other in move.moved if other.building and self._reads(view, other.name)]
        if view.building and before:
            for other in before:
                other.slow = True
            raise _TogetherError
        self._leave(view, units, move)

    def _reads(self, view: Kept, name: str) -> bool:
        """Whether a view reads another one, at any depth."""
        below = {other.name: other for other in self.kept}
        return name in view.tables or any(self._reads(below[t], name) for t in view.tables if t in below)

    def _leave(self, view: Kept, units: set[bytes], move: _Move) -> None:
        self._held.mark(view.name, units)
        self._stand(view, move)
        move.alone.append(view.name)

    def _send_off(self, move: _Move) -> None:
        """Let those go that go alone, with the others of their company."""
        along = {view.name for view in self.kept if view.building or view.goes_alone}
        for company in self._stragglers.ready(move.alone, along):
            members = self._members(company, move)
            if members:
                self._stragglers.send(members, self._held.snapshot(), move.reached, move.accepted_us)
            for member in members:
                if member.building:
                    member.view.tell("rebuilding", None)

    def _members(self, company: Sequence[str], move: _Move) -> list[Straggler]:
        """Those of a company that are level, once those before them are computed."""
        places, newest, members = dict(move.places), dict(move.newest_us), []
        for view in (view for view in self.kept if view.name in company):
            found = None if view.tables.keys() & move.filling else self._level_places(view, places)
            if found is None or (view.failures and self._clock.monotonic() < view.retry_at):
                continue
            newest_us = view.newest_us(newest)
            dirty, lost = self._held.dirty(view.name), self._lost(view)
            members.append(Straggler(view, dirty, newest_us, found, view.building, lost=lost))
            places[view.name] = found
            newest |= {view.name: newest_us} if newest_us is not None else {}
        return members

    def _take_back(self, view: Kept, job: Job, move: _Move) -> None:
        """What became of a view in a job, at the place where the job's snapshot stood."""
        member, outcome = job.members[view.name], job.outcomes[view.name]
        units = self._touched(view, move, job)
        self._add(view, move, job)
        if isinstance(outcome, Exception):
            self._failed(view, units, outcome)
            self._stand(view, move)
            return
        self._held.clean(view.name, outcome.units - member.touched)
        self._held.mark(view.name, units & member.touched)
        self._settle(view, outcome.made, move, member)
        view.slow = view.slow and outcome.took_s >= _QUICK_S
        move.places[view.name] = member.places
        self._append(view, outcome.made.delta, member.newest_us, job.reached, job.accepted_us, move)
        job.reached[view.name] = move.reached[view.name]
        self._leave_out(view, outcome.units, outcome.made.failed, move)

    # What a step makes of a view

    def _level_places(self, view: Kept, at: Mapping[str, Mapping[str, Place]]) -> Mapping[str, Place] | None:
        """Where all that a view is made from stands; None: something is not there yet, or is not level."""
        places: dict[str, Place] = {}
        for table, name in view.tables.items():
            for source, place in at.get(table, {name: None}).items():
                if place is None or places.setdefault(source, place) != place:
                    return None
        return places if self._meetings.level(places) else None

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

    def _append(
        self,
        view: Kept,
        delta: Delta,
        newest_us: int | None,
        reached: Mapping[str, Reached],
        accepted_us: int | None,
        move: _Move,
    ) -> None:
        """A commit of the view, if it has changed or its frontier has moved. `reached` says how far the tables had
        come that it was computed from."""
        own = self._held.tables[view.name]
        own.apply(delta.old, delta.new)
        if view.building:
            self._held.remember({f"building/{view.name}": None})
        end = {name: [reached[table][0], list(reached[table][1])] for table, name in view.tables.items()}
        last = view.last
        offset = self._log.bounds(view.output).ends[0]
        move.reached[view.name] = (view.output.epoch, [offset])
        move.newest_us |= {view.name: newest_us} if newest_us is not None else {}
        move.moved.append(view)
        if delta.empty and last is not None and last.end == end and not view.building:
            return
        now_us = self._clock.now_us()
        meta = BatchMeta(
            batch=0 if last is None else last.batch + 1,
            start=last.end if last is not None else end,
            end=end,
            max_us=newest_us,
            complete_us=self._complete_us(view, end),
            accepted_us=accepted_us,
            planned_us=now_us,
            done_us=now_us,
        )
        move.deltas[view.name] = delta
        move.reached[view.name] = (view.output.epoch, [offset + 1])
        move.metas[view.name] = meta
        stored = move.bodies[view.name] = msgspec.to_builtins(meta)
        move.appends.append(Append(view.output, changelog(delta, own), stored, complete_us=meta.complete_us))
        move.appends += self._late_events(view, end, now_us)

    def _complete_us(self, view: Kept, end: Mapping[str, Any]) -> int | None:
        """Up to when the streams and views that a view reads are complete at its frontier; tables hold nothing."""
        known: list[int | None] = []
        for name, (epoch, offsets) in end.items():
            source = view.streams.get(name)
            stream = source.live() if source else self._log.find(name, epoch)
            if source and stream:
                known.append(source.feed.complete_us(commit_at(source.log, stream, offsets)))
            elif stream:
                last = self._log.last_commit(stream, offsets[0])
                known.append(last.complete_us if last else None)
        return least(known)

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
            if view.last.max_us is not None:
                move.newest_us[view.name] = view.last.max_us

    def _places_of(self, last: BatchMeta) -> dict[str, Place]:
        """Where the inputs stood that a commit was made from, through the commits of views between."""
        places: dict[str, Place] = {}
        for name, (epoch, offsets) in last.end.items():
            if any(source.input == name for source in self._inputs.sources.values()):
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
        step = {name: (move.reached[name][0], move.reached[name][1][0]) for name in move.metas}
        for body in move.bodies.values() if len(step) > 1 else ():
            body["step"] = step
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
