"""The regrouped views of an app while it runs: their builds, their changelogs, and the steps that keep them current."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from penstock.declaration import TableDef, ViewDef
from penstock.errors import DiskFullError, StaleTermError
from penstock.flows import failure, flow_build
from penstock.flows.flow_run import Surroundings
from penstock.flows.plan import Planned
from penstock.flows.regroup.meetings import Meetings
from penstock.flows.regroup.regrouping import Regrouping
from penstock.flows.regroup.steps import InputChangelog, Kept, Steps
from penstock.log import control_keys
from penstock.log.builds import Build, FlowState, State, batch_meta
from penstock.log.log import Stream

_log = logging.getLogger(__name__)


class RegroupedViews:
    """Called from the runner's thread; the steps have their own."""

    def __init__(self, planned: Mapping[str, Planned], around: Surroundings) -> None:
        self._planned = planned
        self._around = around
        self.names = [name for name, made in planned.items() if made.how != "folded"]
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
            self._sources(),
            kept,
            Meetings({name: made.node.inputs for name, made in self._planned.items()}, self.names, around.log),
            around.log,
            around.group,
            around.clock,
            changed=lambda: (around.log.revision(), around.edge.revision()),
            live=self._live,
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
        call = partial(around.planner.call, made.node)
        return Kept(
            regrouping=Regrouping(made.node, made.units, call, made.arrow, around.planner.spark),
            output=output,
            last=batch_meta(last.meta) if last is not None and last.meta else None,
            tell=partial(self._tell, name),
        )

    def _sources(self) -> list[InputChangelog]:
        """What regrouped views read that is not one of them."""
        names = {i for name in self.names for i in self._planned[name].inputs if i not in self.names}
        tables = {table.name: table for table in self._around.planner.application.tables}
        return [
            self._table(tables[name]) if name in tables else self._source(self._planned[name]) for name in sorted(names)
        ]

    def _table(self, table: TableDef) -> InputChangelog:
        """Its changelog is in the edge's log, and there is ever only one."""
        edge, readers = self._around.edge, (self._planned[name] for name in self.names)
        schema = next(made.inputs[table.name].schema for made in readers if table.name in made.inputs)
        return InputChangelog(table.name, schema, table.key, edge, partial(edge.find, table.name))

    def _source(self, made: Planned) -> InputChangelog:
        log, name = self._around.log, made.node.name

        def live() -> Stream | None:
            epoch = log.memory().get(control_keys.live(name))
            return None if epoch is None else log.find(name, epoch)

        return InputChangelog(name, made.arrow, made.node.key, log, live)

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
        told = failure.flow_error(self._planned[name].node, error, None, "unknown") if error is not None else None
        body = FlowState(state=state, error=told.body() if told else None, run=self._around.run)
        try:
            self._around.group.submit([], {control_keys.flow(name): msgspec.to_builtins(body)})
        except DiskFullError as full:
            _log.error("the state of '%s' could not be written: %s", name, full)
