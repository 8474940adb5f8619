"""An alert as it runs: follows a view's changelog and raises or clears, key by key, once each.

1. It sees every row that the view has published, in the order of its commits. One commit of the log holds what was
   raised and cleared, what is raised then, and how far the view was read: so nothing is told twice, whatever dies.
2. Its stream is the record and is never rebuilt. Where the view begins anew, each key is judged once, by its row there:
   a row that is not there any more clears.
3. `hold` goes by the clock: a condition must be true for so long, without a row between that is not. What is held is
   not in the log; after a start it begins again.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from penstock import schema as columns_
from penstock.change import DELETE, OP, UPSERT, Column, Key, Row
from penstock.declaration import AlertDef, FlowDef
from penstock.flows import flow_build
from penstock.flows.flow_run import Surroundings
from penstock.flows.ordered.ordered_flow import ThreadedFlow
from penstock.flows.ordered.ordered_plan import RAISED_AT, alert_view_facts
from penstock.flows.plan import Planned
from penstock.flows.sink import flow_events
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, batch_meta, build_of
from penstock.log.log import Append, EndsAt, LogReader, Stream
from penstock.schema import simple_type
from penstock.stateful import EPOCH
from penstock.views.unpack import frozen, ops_of, rows_of
from penstock.views.where.filter import compile_where

_log = logging.getLogger(__name__)

_LOOK_S = 0.005
_US = dt.timedelta(microseconds=1)


class AlertRule:
    """When a row raises and when it clears."""

    def __init__(self, alert: AlertDef, schema: pa.Schema) -> None:
        columns = [Column(f.name, simple_type(f.type)) for f in schema]
        self._when = compile_where(alert.when, columns).test
        self._until = None if alert.until is None else compile_where(alert.until, columns).test

    def raises(self, row: Row) -> bool:
        return self._when(row)

    def clears(self, row: Row) -> bool:
        return self._until(row) if self._until is not None else not self._when(row)


@dataclass(frozen=True)
class Told:
    """One alert that was raised or cleared."""

    key: Key
    what: str
    since_us: int
    row: Row | None
    """The row that caused it; None: it is gone."""


class Alerts:
    """What is raised, and what is held until it may be. Changed by rows, in their order, and by the clock."""

    def __init__(self, rule: AlertRule, hold_us: int, raised: Mapping[Key, tuple[Row, int]]) -> None:
        self._rule = rule
        self._hold_us = hold_us
        self.raised: dict[Key, tuple[Row, int]] = dict(raised)
        """Row and since when."""
        self._held: dict[Key, tuple[Row, int]] = {}
        self.changed: dict[Key, tuple[Row, int] | None] = {}
        """What the alert's view shows otherwise since it was last asked."""

    def see(self, key: Key, row: Row | None, now_us: int) -> Told | None:
        """A row of the view, or that it is gone."""
        there = self.raised.get(key)
        if there is not None:
            if row is None or self._rule.clears(row):
                del self.raised[key]
                self.changed[key] = None
                return Told(key, "cleared", there[1], row)
            self.raised[key] = self.changed[key] = (row, there[1])
            return None
        if row is None or not self._rule.raises(row):
            self._held.pop(key, None)
            return None
        since_us = self._held.get(key, (row, now_us))[1]
        self._held[key] = (row, since_us)
        return None if now_us - since_us < self._hold_us else self._raise(key, now_us)

    def due(self, now_us: int) -> Iterator[Told]:
        """What was held for long enough."""
        for key in [key for key, (_, since_us) in self._held.items() if now_us - since_us >= self._hold_us]:
            yield self._raise(key, now_us)

    def is_due(self, now_us: int) -> bool:
        return any(now_us - since_us >= self._hold_us for _, since_us in self._held.values())

    def _raise(self, key: Key, now_us: int) -> Told:
        row, _ = self._held.pop(key)
        self.raised[key] = self.changed[key] = (row, now_us)
        return Told(key, "raised", now_us, row)


class AlertFlow(ThreadedFlow):
    """One alert of the app, from start to stop."""

    def __init__(self, made: Planned, around: Surroundings) -> None:
        super().__init__(made, around)
        assert isinstance(made.node, FlowDef)
        assert made.node.alert is not None
        self.alert = made.node.alert
        (self.view,) = made.inputs
        self.schema = made.inputs[self.view].schema
        self.view_key = made.node.key
        self.shown_made = alert_view(made)
        self.also = self.shown_made.node.name
        self.shown: Stream | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """It follows whichever build of its view is served, and waits until one is."""
        return ()

    @property
    def changelogs(self) -> list[Stream]:
        return [] if self.shown is None else [self.shown]

    def prepare(self, streams: Mapping[str, Stream], *, anew: bool = False) -> Stream:
        """The build that there is goes on, whatever changed but the columns."""
        around, outputs = self.around, []
        for made in (self.made, self.shown_made):
            name, memory = made.node.name, around.log.memory()
            stored = memory.get(control_keys.build(name))
            build = flow_build.new_build(made, {}, {}, around.clock)
            if stored is not None and build_of(stored).columns == build.columns:
                build = msgspec.structs.replace(build, epoch=build_of(stored).epoch)
            if stored is None or build_of(stored).fingerprint != build.fingerprint or anew:
                learned = {control_keys.build(name): msgspec.to_builtins(build), control_keys.live(name): build.epoch}
                around.group.submit([], learned).result()
            spec = flow_build.stream_spec(made, build)
            outputs.append(around.group.run(partial(around.log.create, spec)).result())
            if made is self.made:
                self.build = build
        self.output, self.shown = outputs
        return outputs[0]

    # The thread

    def _run(self) -> None:
        assert self.output is not None
        log, clock = self.around.log, self.around.clock
        last = log.last_commit(self.output)
        self.last = batch_meta(last.meta) if last is not None and last.meta else None
        alerts = Alerts(AlertRule(self.alert, self.schema), self.alert.hold_us, self._raised())
        reached: tuple[str, int] | None = None
        if self.last is not None:
            epoch, (offset,) = self.last.end[self.view]
            reached = (epoch, offset)
            self._hold_again(alerts, reached)
        seen: Any = object()
        while not self._stopping.is_set():
            now = (log.revision(), self.around.edge.revision())
            if now == seen and not alerts.is_due(clock.now_us()):
                time.sleep(_LOOK_S)
                continue
            seen = now
            reached = self._step(alerts, reached)
            self._level = reached is not None or self._live_view() is None

    def _step(self, alerts: Alerts, reached: tuple[str, int] | None) -> tuple[str, int] | None:
        """Take what the view has published since; gives how far it was read."""
        view, now_us = self._live_view(), self.around.clock.now_us()
        if view is None:
            return reached
        reader = self._reader_of()
        bounds = reader.bounds(view)
        told: list[Told] = []
        follows = reached is not None and reached[0] == view.epoch and bounds.starts[0] <= reached[1]
        if not follows:
            told += self._judge_all(alerts, rows_at(reader, view, bounds.ends[0]), now_us)
        elif reached is not None and reached[1] < bounds.ends[0]:
            names = [f.name for f in self.schema]
            for block in reader.read(view, 0, reached[1], bounds.ends[0]):
                for key, row in ops_of(block.batch, names, self.view_key).items():
                    told += _some(alerts.see(key, row, now_us))
        told += alerts.due(now_us)
        end = (view.epoch, bounds.ends[0])
        if told or alerts.changed or end != reached:
            self._commit(told, alerts, end, now_us)
        self.failures = 0
        return end

    def _judge_all(self, alerts: Alerts, rows: Mapping[Key, Row], now_us: int) -> Iterator[Told]:
        """Each key once, by the row that it has now."""
        for key in [*rows, *(key for key in list(alerts.raised) if key not in rows)]:
            yield from _some(alerts.see(key, rows.get(key), now_us))

    def _hold_again(self, alerts: Alerts, reached: tuple[str, int]) -> None:
        """What was held when the process ended is held from now on: only rows that would raise matter."""
        view = self._reader_of().find(self.view, reached[0])
        if self.alert.hold_us == 0 or view is None or self._reader_of().bounds(view).starts[0] > reached[1]:
            return
        now_us = self.around.clock.now_us()
        for key, row in rows_at(self._reader_of(), view, reached[1]).items():
            if key not in alerts.raised:
                alerts.see(key, row, now_us)

    def _reader_of(self) -> LogReader:
        table = self.around.planner.application.table(self.view)
        return self.around.edge if table is not None else self.around.log

    def _live_view(self) -> Stream | None:
        if self._reader_of() is self.around.edge:
            return self.around.edge.find(self.view)
        epoch = self.around.log.memory().get(control_keys.live(self.view))
        return None if epoch is None else self.around.log.find(self.view, epoch)

    def _raised(self) -> dict[Key, tuple[Row, int]]:
        assert self.shown is not None
        rows = rows_at(self.around.log, self.shown, self.around.log.bounds(self.shown).ends[0])
        return {key: (row[:-1], (row[-1] - EPOCH) // _US) for key, row in rows.items()}

    # The commit

    def _commit(self, told: Sequence[Told], alerts: Alerts, end: tuple[str, int], now_us: int) -> None:
        assert self.output is not None
        assert self.shown is not None
        changed, alerts.changed = alerts.changed, {}
        stored = {self.view: [end[0], [end[1]]]}
        meta = BatchMeta(
            batch=0 if self.last is None else self.last.batch + 1,
            start=stored if self.last is None else self.last.end,
            end=stored,
            planned_us=now_us,
            done_us=self.around.clock.now_us(),
        )
        number = self.around.log.bounds(self.output).next_commit
        said = msgspec.to_builtins(meta)
        appends = [
            Append(self.output, self._events(told, now_us), said, requires=(EndsAt(self.output, number),)),
            Append(self.shown, self._changes(changed), said, follows=True),
        ]
        for outcome in self.around.group.submit(appends).result():
            if isinstance(outcome, Exception):
                raise outcome
        self.last = meta
        for one in told:
            _log.info("the alert '%s' is %s for %s", self.also, one.what, one.key)

    def _events(self, told: Sequence[Told], now_us: int) -> pa.RecordBatch:
        rows = [told_row(one, self.schema.names, self.view_key, now_us) for one in told]
        return flow_events(pa.Table.from_pylist(rows, schema=self.made.arrow), self.made, now_us)

    def _changes(self, changed: Mapping[Key, tuple[Row, int] | None]) -> pa.RecordBatch:
        assert self.shown is not None
        names, rows = self.schema.names, list[dict[str, Any]]()
        for key, there in changed.items():
            if there is None:
                rows.append({**dict(zip(self.view_key, key, strict=True)), OP: DELETE})
            else:
                row = dict(zip(names, there[0], strict=True))
                rows.append({**row, RAISED_AT: EPOCH + there[1] * _US, OP: UPSERT})
        return pa.RecordBatch.from_pylist(rows, schema=self.shown.schema)


def told_row(told: Told, names: Sequence[str], key: Sequence[str], now_us: int) -> dict[str, Any]:
    """What was raised or cleared as an event of the alert's stream."""
    return {
        **dict(zip(key, _key_values(told, names, key), strict=True)),
        "alert": told.what,
        "since": EPOCH + told.since_us * _US,
        "row": None if told.row is None else dict(zip(names, told.row, strict=True)),
        columns_.TIME: EPOCH + now_us * _US,
    }


def played_alert(made: Planned, log: LogReader, changelog: Stream, end: int) -> tuple[pa.Table, pa.Table]:
    """An alert over all that a view has published up to here: what it tells, and what is raised then. The time of each
    commit is the clock: this is how a test that has the clock in its hand sees an alert."""
    assert isinstance(made.node, FlowDef)
    assert made.node.alert is not None
    ((_, source),) = made.inputs.items()
    names, key = source.schema.names, made.node.key
    alerts, told = Alerts(AlertRule(made.node.alert, source.schema), made.node.alert.hold_us, {}), []
    for block in log.read(changelog, 0, log.bounds(changelog).starts[0], end):
        now_us = block.written_us
        seen = [_some(alerts.see(k, row, now_us)) for k, row in ops_of(block.batch, names, key).items()]
        told += [told_row(one, names, key, now_us) for some in (*seen, list(alerts.due(now_us))) for one in some]
    raised = [{**dict(zip(names, row, strict=True)), RAISED_AT: EPOCH + us * _US} for row, us in alerts.raised.values()]
    return pa.Table.from_pylist(told, schema=made.arrow), pa.Table.from_pylist(raised, schema=alert_view(made).arrow)


def _some(told: Told | None) -> list[Told]:
    return [] if told is None else [told]


def _key_values(told: Told, names: Sequence[str], key: Sequence[str]) -> list[Any]:
    if told.row is None:
        return list(told.key)
    return [told.row[list(names).index(name)] for name in key]


def rows_at(log: LogReader, changelog: Stream, end: int) -> dict[Key, Row]:
    """The rows of a view when its changelog ended here."""
    names = [f.name for f in changelog.schema if f.name != OP]
    ops: dict[Key, Row | None] = {}
    for block in log.read(changelog, 0, log.bounds(changelog).starts[0], end):
        ops |= ops_of(block.batch, names, changelog.compact_by)
    return {key: row for key, row in ops.items() if row is not None}


# Planning


def alert_view(made: Planned) -> Planned:
    """What is raised, as a view beside the stream of what was raised and cleared."""
    assert isinstance(made.node, FlowDef)
    assert made.node.alert is not None
    (source,) = made.inputs.values()
    return replace(made, node=made.node.alert.shown, **alert_view_facts(source.schema))


def check_record(events: pa.Table, raised: Mapping[Key, Row], rows: Mapping[Key, Row], made: Planned) -> list[str]:
    """Whether raised and cleared alternate key by key, and agree with what is raised and with the view's rows."""
    assert isinstance(made.node, FlowDef)
    assert made.node.alert is not None
    (source,) = made.inputs.values()
    rule, now, wrong = AlertRule(made.node.alert, source.schema), dict[Key, str](), list[str]()
    for batch in events.to_batches():
        for *values, what in rows_of(batch, [*made.node.key, "alert"]):
            key = tuple(frozen(value) for value in values)
            if now.get(key, "cleared") == what:
                wrong.append(f"{key} is {what} twice in a row")
            now[key] = what
    for key in {k for k, what in now.items() if what == "raised"} ^ set(raised):
        wrong.append(f"{key} is raised in the stream or in the view, and not in both")
    wrong += [f"{key} is raised and has no row" for key in raised if key not in rows]
    wrong += [f"{key} is raised by a row that clears" for key in raised if key in rows and rule.clears(rows[key])]
    if made.node.alert.hold_us == 0:
        wrong += [f"{key} is not raised" for key, row in rows.items() if key not in raised and rule.raises(row)]
    return sorted(wrong)
