"""One regrouped view while it is kept current: where it stands, and its units computed within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext

from penstock.errors import TooMuchError
from penstock.flows.keep import row_times, too_old
from penstock.flows.regroup.cells import ALL
from penstock.flows.regroup.held import Table
from penstock.flows.regroup.input_streams import InputStream
from penstock.flows.regroup.meetings import Place
from penstock.flows.regroup.regrouping import Delta, Regrouping, joined, without
from penstock.flows.regroup.sums import FromRows, RunningSums, UnitSet
from penstock.flows.regroup.table_versions import input_of
from penstock.flows.regroup.unit_poison import TooSlowError, compute_units
from penstock.log.builds import BatchMeta, State
from penstock.log.log import Stream

_LOOK_S = 0.1
_STEP_ROWS = 100_000
"""From how many rows all sums of a view are computed within a step."""

Tables = Mapping[str, Table]


@dataclass
class Kept:
    """A regrouped view and how it is. Belongs to the thread of the steps."""

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
    slow: bool = False
    """It took too long in a step, and goes alone until that is quick."""
    overruns: int = 0
    """How often it has held up a step. Each time it is given half as long the next time."""
    streams: Mapping[str, InputStream] = field(default_factory=dict)
    """Those of its inputs that are streams or flows."""
    sums: RunningSums | None = None
    """Of a view that is kept by adding."""
    poisoned: Mapping[bytes, str] = field(default_factory=dict)
    """Units that it leaves out, because each alone makes it fail, and why."""

    @property
    def name(self) -> str:
        return self.regrouping.view.name

    @property
    def is_whole(self) -> bool:
        """It has no units: any change computes all of it."""
        return not self.regrouping.units.columns and self.sums is None and self.regrouping.units.first is None

    @property
    def goes_alone(self) -> bool:
        return self.is_whole or self.slow or self.failures > 0

    @property
    def tables(self) -> dict[str, str]:
        """The tables that it is computed from, and the input that each is of."""
        streams = {source.name: name for name, source in self.streams.items()}
        return {t: streams.get(t) or input_of(t) for t in {leaf.input: None for leaf in self.regrouping.units.leaves}}

    def newest_us(self, known: Mapping[str, int]) -> int | None:
        """The time that `keep=` is measured by: the smallest of its inputs' largest; what has gone stays gone."""
        newest = min((known[table] for table in self.tables if table in known), default=None)
        before = self.last.max_us if self.last else None
        return newest if newest is None or before is None else max(newest, before)

    def all_units(self, tables: Tables) -> set[bytes]:
        grouping, own = self.regrouping, tables[self.name]
        units = own.values(own.index(grouping.own_index)) | (set() if grouping.units.columns else {ALL})
        for leaf, home in grouping.units.homes.items():
            table = tables[grouping.units.leaves[leaf].input]
            units |= table.values(table.index(home)) if home else set()
        return units

    def computed(
        self,
        units: set[bytes],
        newest_us: int | None,
        tables: Tables,
        query: Callable[[], AbstractContextManager[None]],
        most_slices: int | None = None,
        lost: UnitSet = None,
    ) -> Computed:
        """What became of these units. Each query runs within `query`; more slices than may be are `TooSlowError` at
        once. `lost` are the units whose sums do not hold, None all of them."""
        own, grouping, sums = tables[self.name], self.regrouping, self.sums
        from_rows: list[pa.Table] = []
        if units and self.is_whole:
            _refuse_too_much(self, tables)
        keep_us = grouping.view.keep_us
        limit_us = None if keep_us is None or newest_us is None else newest_us - keep_us

        def compute(some: set[bytes]) -> pa.Table:
            with query():
                if sums is None:
                    result = grouping.computed(grouping.needed(some, tables), some)
                else:
                    result, found = sums.computed(some, lost, tables)
                    from_rows.append(found)
            return result if limit_us is None else result.filter(pc.invert(too_old(row_times(result), limit_us)))

        if sums is not None and lost is None and most_slices is not None:
            rows = sum(len(tables[name]) for name in self.tables)
            if rows > _STEP_ROWS:
                raise TooSlowError(f"sums of {rows:,} rows are too many for a step")
        suspects = units & self.poisoned.keys()
        fresh = units - suspects
        slices = list(grouping.slices(fresh, tables) if sums is None else sums.slices(fresh))
        if most_slices is not None and len(slices) > most_slices:
            raise TooSlowError(f"{len(units):,} units are too many for a step")
        results = compute_units(compute, slices, suspects, self.failures)
        gone = [(set(results.failed), own.shape.schema.empty_table())] if results.failed else []
        delta = joined(grouping.differences([*results.parts, *gone], own), own)
        delta = delta if limit_us is None else without(delta, own.before(limit_us), own)
        if sums is None:
            return Computed(delta, results.failed)
        known = FromRows(None if lost is None else lost & units, _joined_sums(from_rows, tables[sums.name]))
        return Computed(delta, results.failed, known)


@dataclass(frozen=True)
class Computed:
    """What became of some units of a view."""

    delta: Delta
    failed: dict[bytes, str]
    """Why those failed that did so alone."""
    sums: FromRows | None = None
    """Of a view that is kept by adding, the sums that were lost."""


def _joined_sums(parts: list[pa.Table], table: Table) -> pa.Table:
    return pa.concat_tables([table.shape.schema.empty_table(), *parts])


def _refuse_too_much(kept: Kept, tables: Tables) -> None:
    view, rows = kept.regrouping.view, sum(len(tables[name]) for name in kept.tables)
    if rows > view.whole_rows:
        raise TooMuchError(
            f"'{view.name}' has no units: any change computes all of it, and its inputs have {rows:,} rows",
            detail=f"it may be computed from {view.whole_rows:,}",
            hint='give its rows a column that leads to what they are made from, or allow more: whole="1 million rows"',
        )


class TimeLimit:
    """Cuts off what Spark computes for one thread when its time is over."""

    def __init__(self, context: SparkContext, group: str) -> None:
        """`group` names Spark's jobs of that thread, and of no other."""
        self._context = context
        self._group = group
        self._ends_s = 0.0
        self._cut = False

    def begin(self) -> None:
        """Called in the thread whose jobs it is about, before any of them."""
        self._context.setJobGroup(self._group, self._group, interruptOnCancel=True)

    def restart(self, seconds: float) -> None:
        self._ends_s = time.monotonic() + seconds

    def cut(self) -> None:
        """End what runs, and whatever would be run later; from any thread."""
        self._cut = True

    @property
    def passed(self) -> bool:
        return self._cut or time.monotonic() >= self._ends_s

    @contextmanager
    def query(self, seconds: float | None = None) -> Iterator[None]:
        """Run a query in what is left of the time, or in so many seconds. Raises `TooSlowError` when it was cut off."""
        if seconds is not None:
            self.restart(seconds)
        if self.passed:
            raise TooSlowError("there is no time left")
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done,), name="time-limit", daemon=True)
        watch.start()
        try:
            yield
        except Exception as error:
            if self.passed:
                raise TooSlowError("it was cut off") from error
            raise
        finally:
            done.set()
            watch.join()  # else it could cut off the next query

    def _watch(self, done: threading.Event) -> None:
        """What begins late is cut off too: a query may be several jobs, and time may pass between them."""
        while not done.wait(_LOOK_S if self.passed else min(_LOOK_S, max(0.0, self._ends_s - time.monotonic()))):
            if self.passed:
                self._context.cancelJobGroup(self._group)
