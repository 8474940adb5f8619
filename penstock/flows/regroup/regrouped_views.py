"""The regrouped views of an app while it runs: their builds, their changelogs, and the steps that keep them current."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.declaration import TableDef, ViewDef
from penstock.errors import DiskFullError, LogUnavailableError, OverloadedError, StaleTermError
from penstock.flows import failure, flow_build
from penstock.flows.flow_run import Surroundings
from penstock.flows.plan import Planned, plain_columns
from penstock.flows.regroup.input_follower import InputChangelog, Source
from penstock.flows.regroup.input_streams import InputStream, table_name
from penstock.flows.regroup.kept_view import Kept
from penstock.flows.regroup.meetings import Meetings
from penstock.flows.regroup.regrouping import Regrouping
from penstock.flows.regroup.steps import Steps
from penstock.flows.regroup.sums import RunningSums
from penstock.flows.regroup.table_versions import InputVersions, input_of, versions_schema
from penstock.flows.regroup.unit_poison import skipped_units
from penstock.flows.regroup.units import Units
from penstock.flows.source import Feed
from penstock.flows.watermark import whole
from penstock.log import control_keys
from penstock.log.builds import Build, FlowState, State, batch_meta
from penstock.log.log import Stream

_log = logging.getLogger(__name__)


class RegroupedViews:
    """Called from the runner's thread; the steps have their own."""

    def __init__(self, planned: Mapping[str, Planned], around: Surroundings) -> None:
        self._planned = planned
        self._around = around
        self.names = [name for name, made in planned.items() if made.how not in ("folded", "ordered")]
        self._builds: dict[str, Build] = {}
        self._states: dict[str, State] = {}
        self.outputs: dict[str, Stream] = {}
        self._steps: Steps | None = None
        for name in self.names:
            self._tell(name, "starting", None)

    def begin(self, anew: frozenset[str] = frozenset()) -> None:
        """Choose each view's build, make its changelog, and start the steps."""
        if not self.names:
            return
        kept = [self._prepared(self._planned[name], anew=name in anew) for name in self.names]
        around = self._around
        self._steps = Steps(
            around.folder.held,
            self._sources(kept),
            kept,
            Meetings({name: made.node.inputs for name, made in self._planned.items()}, self.names, around.log),
            around.log,
            around.group,
            around.clock,
            changed=lambda: (around.log.revision(), around.edge.revision()),
            live=self._live,
            late=around.late,
            dead=around.dead,
        )
        self._steps.start()

    def stop(self) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.stop()

    def rebuild(self, name: str) -> None:
        """Compute a view from the beginning, under a new epoch; the others go on from where they are."""
        self.stop()
        self.begin(frozenset([name]))

    def look(self) -> None:
        """Steps that have ended by themselves begin again; what ended them is in the log."""
        if self._steps is not None and self._steps.failure is not None:
            failed = self._steps.failure
            self.stop()
            if isinstance(failed, StaleTermError) or not isinstance(failed, Exception):
                raise failed  # another process has taken over: this one must end
            self.begin()

    # Beginning

    def _prepared(self, made: Planned, *, anew: bool) -> Kept:
        around, name = self._around, made.node.name
        build = flow_build.continued(around.log.memory(), made, {}, around.folder.checkpoints)
        if build is None or anew:
            build = flow_build.new_build(made, {}, {}, around.clock)
            learned = {control_keys.build(name): msgspec.to_builtins(build)}
            around.group.submit([], learned).result()
        self._builds[name] = build
        spec = flow_build.stream_spec(made, build)
        output = around.group.run(lambda: around.log.create(spec)).result()
        self.outputs[name] = output
        last = around.log.last_commit(output)
        assert isinstance(made.node, ViewDef)
        assert made.units is not None
        streams = self._streams(made)
        grouping = self._regrouping(made, made.units, streams)
        return Kept(
            regrouping=grouping,
            output=output,
            last=batch_meta(last.meta) if last is not None and last.meta else None,
            tell=partial(self._tell, name),
            streams=streams,
            sums=RunningSums(grouping) if made.how == "added" else None,
            poisoned=skipped_units(around.log.memory(), name, build.epoch),
        )

    def _regrouping(self, made: Planned, units: Units, streams: Mapping[str, InputStream]) -> Regrouping:
        """A view over the tables that its inputs have in `held.db`, where a stream has just the columns it needs."""
        planner, node = self._around.planner, made.node
        assert isinstance(node, ViewDef)
        tables = {
            leaf.input: streams[leaf.input].name if leaf.input in streams else leaf.input for leaf in units.leaves
        }
        leaves = tuple(replace(leaf, input=tables[leaf.input]) for leaf in units.leaves)

        def call(frames: Mapping[str, DataFrame]) -> DataFrame:
            given = {name: frames[table] for name, table in tables.items()}
            given |= {name: whole(given[name], stream.feed) for name, stream in streams.items()}
            return planner.call(node, planner.with_versions(made.inputs, given))

        return Regrouping(node, replace(units, leaves=leaves), call, made.arrow, planner.spark)

    def _sources(self, kept: Sequence[Kept]) -> list[Source]:
        """What regrouped views read that is not one of them."""
        streams = {source.name: source for view in kept for source in view.streams.values()}
        read = {leaf.input for view in kept for leaf in view.regrouping.units.leaves} - set(self.names)
        return [streams[name] if name in streams else self._changing(name) for name in sorted(read)]

    def _changing(self, name: str) -> InputChangelog | InputVersions:
        table = self._around.planner.application.table(input_of(name))
        if table is None:
            return self._source(self._planned[name])
        rows = self._table(table)
        if name == table.name:
            return rows
        return InputVersions(table.name, versions_schema(rows.schema), rows.log, rows.live)

    def _streams(self, made: Planned) -> dict[str, InputStream]:
        """Streams and flows that a view reads, with the columns that it and those need that look back equally far."""
        assert isinstance(made.node, ViewDef)
        within_us, found = made.node.within_us, {}
        for name, source in made.inputs.items():
            if source.changes:
                continue
            sharing = [made] if made.bound_us is not None else self._looking_back(within_us, name)
            needed = tuple(sorted({c for view in sharing for c in view.needed}))
            stream = Stream(name, "-", source.partitions, source.unique, "events", (), source.schema, source.place)
            feed = Feed(stream, source.derived, needed, made.late_after[name], handed_on=source.handed_on)
            schema = plain_columns(from_arrow_schema(feed.shown_schema))
            log = self._around.log if source.derived else self._around.edge
            live = partial(self._live_stream, name) if source.derived else partial(log.find, name)
            table, hold_us = table_name(name, within_us), None
            if made.bound_us is not None:
                table, hold_us = f"{name}@{made.node.name}", 2 * made.bound_us + (made.late_after[name] or 0)
            found[name] = InputStream(table, feed, schema, within_us, log, live, hold_us)
        return found

    def _looking_back(self, within_us: int | None, stream: str) -> list[Planned]:
        """Views that hold the events of a stream equally long."""
        views = [self._planned[name] for name in self.names if stream in self._planned[name].inputs]
        return [
            made
            for made in views
            if isinstance(made.node, ViewDef) and made.node.within_us == within_us and made.bound_us is None
        ]

    def _live_stream(self, name: str) -> Stream | None:
        epoch = self._around.log.memory().get(control_keys.live(name))
        return None if epoch is None else self._around.log.find(name, epoch)

    def _table(self, table: TableDef) -> InputChangelog:
        """Its changelog is in the edge's log, and there is ever only one."""
        edge, readers = self._around.edge, (self._planned[name] for name in self.names)
        schema = next(made.inputs[table.name].schema for made in readers if table.name in made.inputs)
        return InputChangelog(table.name, schema, table.key, edge, partial(edge.find, table.name))

    def _source(self, made: Planned) -> InputChangelog:
        log, name = self._around.log, made.node.name
        return InputChangelog(name, made.arrow, made.node.key, log, partial(self._live_stream, name))

    def _live(self, view: Kept) -> Mapping[str, Any]:
        """A build is live from the commit on in which it is whole."""
        epoch = self._builds[view.name].epoch
        live = self._around.log.memory().get(control_keys.live(view.name))
        return {} if live == epoch else {control_keys.live(view.name): epoch}

    def _tell(self, name: str, state: State, error: BaseException | None) -> None:
        """Let the edge, and through it people, know; what they know already is not said again."""
        if self._states.get(name) == state and error is None:
            return
        self._states[name] = state
        node, stopped = self._planned[name].node, state == "stopped"
        told = failure.flow_error(node, error, None, "unknown", stopped=stopped) if error is not None else None
        body = FlowState(state=state, error=told.body() if told else None, run=self._around.run)
        try:
            self._around.group.submit([], {control_keys.flow(name): msgspec.to_builtins(body)})
        except (DiskFullError, LogUnavailableError, OverloadedError) as full:
            _log.error("the state of '%s' could not be written: %s", name, full)
