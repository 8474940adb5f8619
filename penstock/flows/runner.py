"""Runs all flows of an app in one Spark session: starts them in order, watches each alone, rebuilds what must be.

It is the only writer of `flows.db`. It holds the checkpoints' lock inside the JVM before it opens the log, so that
nothing of an earlier driver can still write.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from penstock import plain, spark_master
from penstock.clock import Clock, SystemClock
from penstock.config import Folder
from penstock.declaration import Application, Problem, is_state
from penstock.errors import DeclarationError, PenstockError, PlanError, StaleTermError
from penstock.flows.build_cleanup import BuildCleanup
from penstock.flows.cluster_session import check_workers, look_at_cluster
from penstock.flows.engine import jvm
from penstock.flows.flow_run import Flow, Surroundings
from penstock.flows.hang import EXIT_HUNG, HangWatch
from penstock.flows.ordered.alert_flow import AlertFlow
from penstock.flows.ordered.ordered_flow import OrderedFlow
from penstock.flows.plan import Planned, Planner, served_columns
from penstock.flows.regroup.hidden_views import shown_name
from penstock.flows.regroup.meetings import shared_cuts
from penstock.flows.regroup.regrouped_views import RegroupedViews
from penstock.flows.session import hold, open_session
from penstock.log import control_keys
from penstock.log.folder_log import DEAD, LATE
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Log, LogReader, Stream, StreamSpec, Turn
from penstock.log.opening import open_log, open_reader
from penstock.log.retention import compact_before
from penstock.views.read_rule import rule_problems

_log = logging.getLogger(__name__)

_LOOK_S = 0.1
_COPY_LOOK_S = 0.02
_CHORES_S = 5.0
_COMMIT_S = 120.0
"""How long a batch waits for its commit before it is run again: the first one of a rebuild can be large."""
_STOP_S = 3.0
"""What queries get to stop, half of what the supervisor gives to all of it; a batch that is cut off is repeated."""
_BEGIN_AGAIN_S = 5.0
_OLD_BUILD_S = 30.0
"""How long an old build's rows stay after another took over, so that the edge is done with them."""


def run(
    application: Application,
    folder: Folder,
    *,
    stop: threading.Event,
    beat: Callable[[], None] = lambda: None,
    run: str = "",
    turn: Turn = "free",
    beside: Callable[[GroupCommit], AbstractContextManager[None]] = lambda group: nullcontext(),
) -> None:
    """Run until `stop` is set; `beat` is called whenever the flows are looked at, `run` names this run in their states.
    `beside` is open for as long as the log is.

    Raises `DeclarationError` when the app cannot run as it is.
    """
    clock = SystemClock()
    began = clock.monotonic()
    spark = open_session(application.name)
    hold(spark, folder.flows_lock)
    if master := spark_master.cluster():
        check_workers(spark, master, folder.checkpoints)
    _log.info("Spark is up after %.1f s, engine: %s", clock.monotonic() - began, plain.mode(plain.SPARK))
    log = open_log(folder.flows_log, app=application.name, clock=clock, turn=turn)
    edge = open_reader(folder.edge_log, keep=True)
    writer = log.writer()
    named = run if writer is None else writer.name  # an edge on another machine knows no run
    group = GroupCommit(log, give_up_s=_COMMIT_S)
    try:
        with beside(group):
            planner = Planner(spark, application, folder)
            Runner(planner, log, group, edge, clock, stop, beat, named).run()
    finally:
        group.close()
        log.close()
        edge.close()
        # Spark's own way to end takes seconds, for folders and threads that end with its process anyway. Until then the
        # JVM holds the lock of the checkpoints, so that nobody else writes there.
        jvm.begun().kill()


class Runner:
    """The flows of one app while they run."""

    def __init__(
        self,
        planner: Planner,
        log: Log,
        group: GroupCommit,
        edge: LogReader,
        clock: Clock,
        stop: threading.Event,
        beat: Callable[[], None] = lambda: None,
        run: str = "",
    ) -> None:
        self.planner = planner
        self.application = planner.application
        self.folder = planner.folder
        self.log = log
        self.group = group
        self.edge = edge
        self.clock = clock
        self.stop = stop
        self.beat = beat
        self.named = run
        self.flows: dict[str, Flow] = {}
        """The queries of Spark: flows and folded views."""
        self.streams: dict[str, Stream] = {}
        self.chores_at = 0.0
        self.cleaned_at: float | None = None
        self.cleaning: Future[int] | None = None
        self.granting: tuple[dict[str, int], Future[Any]] | None = None
        self.compacting: dict[str, Future[int]] = {}
        self.waiting: dict[str, tuple[float, bool]] = {}
        """When a flow that could not begin is tried again, and whether it begins anew."""

    def run(self) -> None:
        self._make_flows()
        if not self._await_door():
            return
        self._begin(list(self.flows.values()))
        self.regrouped.begin()
        watch = HangWatch(self.folder, self.planner.spark, self.clock)
        while not self.stop.wait(_LOOK_S):
            now = self.clock.monotonic()
            self.beat()
            self.log.check_turn()
            if self.group.problem is not None:
                watch.excuse()
            for flow in self.flows.values():
                flow.look(now)
                watch.look(flow, now)
            self._stand_still(watch)
            self.regrouped.look()
            look_at_cluster(self.planner.spark)
            self._rebuild_what_must()
            self._begin_what_waits(now)
            if now >= self.chores_at:
                self.chores_at = now + _CHORES_S
                self._chores()
        self.regrouped.stop()
        self._stop_all(list(self.flows.values()))

    def _stand_still(self, watch: HangWatch) -> None:
        """Keep every query between two batches while `penstock export` copies what belongs together."""
        if not _copy_under_way(self.folder):
            return
        with ExitStack() as held:
            for sink in [flow.sink for flow in self.flows.values() if flow.sink is not None]:
                while not sink.lock.acquire(timeout=_LOOK_S):
                    self.beat()
                held.callback(sink.lock.release)
            self.folder.copy_paused.touch()
            held.callback(self.folder.copy_paused.unlink, missing_ok=True)
            while _copy_under_way(self.folder) and not self.stop.is_set():
                self.beat()
                watch.excuse()
                time.sleep(_COPY_LOOK_S)

    def _make_flows(self) -> None:
        began = self.clock.monotonic()
        planned, problems = self.planner.plan_all()
        _log.info("%d flows planned in %.1f s", len(planned), self.clock.monotonic() - began)
        problems += rule_problems(self.application, served_columns(planned))
        if errors := [p for p in (*self.application.problems(), *problems) if p.level == "error"]:
            raise problems_error(errors)
        around = Surroundings(
            planner=self.planner,
            folder=self.folder,
            log=self.log,
            group=self.group,
            edge=self.edge,
            late=self._ledger("late", LATE),
            dead=self._ledger("dead", DEAD),
            clock=self.clock,
            run=self.named,
            random=random.Random(),
            cuts=shared_cuts(
                {name: made.node.inputs for name, made in planned.items()},
                [name for name, made in planned.items() if made.how not in ("folded", "ordered")],
            ),
        )
        kept = [made for made in planned.values() if made.how in ("folded", "ordered") and not is_state(made.node)]
        self.flows = {made.node.name: flow_of(made, around) for made in kept}
        for flow in self.flows.values():
            flow.tell("starting")
        self.regrouped = RegroupedViews(planned, around)

    def _ledger(self, name: str, schema: object) -> Stream:
        spec = StreamSpec(name, schema, unique=True)
        return self.group.run(lambda: self.log.create(spec)).result()

    def _await_door(self) -> bool:
        """Wait until the edge has made the streams and tables that it takes events and rows for."""
        while not self.stop.is_set():
            found = {s.name: self.edge.find(s.name) for s in self.application.streams}
            if all(found.values()) and all(self.edge.find(table.name) for table in self.application.tables):
                self.streams = {name: stream for name, stream in found.items() if stream}
                return True
            time.sleep(0.05)
        return False

    # Rebuilding

    def _rebuild_what_must(self) -> None:
        """Rebuild flows whose checkpoint is lost or for which `penstock rebuild` asked, with the hidden views of a cut
        one, and what is downstream."""
        asked = self._granted()
        for name in asked:
            if name in self.regrouped.names:
                self.regrouped.rebuild(name)
        names = [name for name, flow in self.flows.items() if flow.lost or shown_name(name) in asked]
        for name in names:
            below = {n.name for n in self.application.downstream(name)}
            affected = [flow for flow in self.flows.values() if flow.name == name or flow.name in below]
            if not self._stop_all(affected):
                _log.error("'%s' does not stop for its rebuild: the process is ended, to be started again", name)
                os._exit(EXIT_HUNG)
            self._begin(affected, anew=True)

    def _begin(self, flows: list[Flow], *, anew: bool = False) -> None:
        """Prepare in the order of the DAG, then start. A flow that cannot begin stays stopped, with what reads it."""
        for flow in flows:
            flow.lost = False
            self.streams.pop(flow.name, None)
            missing = [name for name in flow.needs if name not in self.streams]
            try:
                if missing:
                    raise PlanError(
                        f"'{flow.name}' reads '{missing[0]}', which is stopped", hint="see that flow's error"
                    )
                self.streams[flow.name] = flow.prepare(self.streams, anew=anew)
            except StaleTermError:
                raise
            except PenstockError as error:
                flow.refuse(error)
                self._begin_again(flow, error, anew=anew)
        for flow in flows:
            flow.start()

    def _begin_again(self, flow: Flow, error: PenstockError, *, anew: bool) -> None:
        """Later, if that may help: where the disk was full, for example."""
        if error.retry:
            self.waiting[flow.name] = (self.clock.monotonic() + _BEGIN_AGAIN_S, anew)

    def _begin_what_waits(self, now: float) -> None:
        for name, (due, anew) in list(self.waiting.items()):
            if now >= due:
                del self.waiting[name]
                below = {n.name for n in self.application.downstream(name)}
                self._begin([f for f in self.flows.values() if f.name == name or f.name in below], anew=anew)

    def _granted(self) -> dict[str, int]:
        """What was asked for and is noted in the log as done: it is done now. The note is not waited for."""
        if self.granting is None:
            if asked := self._asked():
                note = {control_keys.rebuilt(name): number for name, number in asked.items()}
                self.granting = (asked, self.group.submit([], note))
            return {}
        asked, noted = self.granting
        if not noted.done():
            return {}
        self.granting = None
        if (error := noted.exception()) is not None:
            if isinstance(error, StaleTermError):
                raise error
            _log.warning("a rebuild could not be noted, and is tried again: %s", error)
            return {}
        return asked

    def _asked(self) -> dict[str, int]:
        done = self.log.memory()
        return {
            name: number
            for name in (*self.flows, *self.regrouped.names)
            if (number := self.edge.memory().get(control_keys.rebuild(name)))
            and number != done.get(control_keys.rebuilt(name))
        }

    def _stop_all(self, flows: list[Flow]) -> bool:
        """Whether all of them have stopped in time."""
        threads = [threading.Thread(target=flow.stop, name=f"stop {flow.name}", daemon=True) for flow in flows]
        for thread in threads:
            thread.start()
        deadline = self.clock.monotonic() + _STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - self.clock.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    # Chores

    def _chores(self) -> None:
        """What fails here is told and tried again: it must not end what people wait for."""
        settled = all(self._settled(flow) for flow in self.flows.values())
        if self.cleaned_at is None or (settled and any(f.switched_at > self.cleaned_at for f in self.flows.values())):
            self._clean()
        folded = [changelog for flow in self.flows.values() for changelog in flow.changelogs]
        for changelog in (*folded, *self.regrouped.outputs.values()):
            self._compact(changelog)

    def _settled(self, flow: Flow) -> bool:
        """Whether a flow serves its own build, and has for a while: until then old builds may still be read."""
        return flow.state == "running" and self.clock.monotonic() - flow.switched_at > _OLD_BUILD_S

    def _clean(self) -> None:
        """Remove what builds have left behind; the flows run on meanwhile."""
        if self.cleaning is not None and not self.cleaning.done():
            return
        first, self.cleaned_at = self.cleaned_at is None, self.clock.monotonic()
        leftovers = BuildCleanup(self.log, self.folder, self.application, self.clock.now_us(), starting=first)
        self.cleaning = self.group.sliced(leftovers.cleaning())
        self.cleaning.add_done_callback(self._cleaned)

    def _cleaned(self, done: Future[int]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.warning("what builds have left behind could not be removed: %s", error)

    def _compact(self, changelog: Stream) -> None:
        """Begin to compact a changelog, unless that is under way: it is not waited for."""
        last = self.compacting.get(changelog.name)
        if last is not None and not last.done():
            return
        if last is not None and (error := last.exception()) is not None:
            _log.warning("the changelog of '%s' could not be compacted: %s", changelog.name, error)
        try:
            before = compact_before(self.log, changelog, self.clock.now_us())
            if before is not None:
                self.compacting[changelog.name] = self.group.sliced(self.log.compacting(changelog, before))
            else:
                self.compacting.pop(changelog.name, None)
        except PenstockError as failure:
            _log.warning("the changelog of '%s' could not be compacted: %s", changelog.name, failure)


def flow_of(made: Planned, around: Surroundings) -> Flow:
    """A flow or view as it runs, by the way in which it is kept."""
    if made.how == "folded":
        return Flow(made, around)
    return AlertFlow(made, around) if made.fold is None else OrderedFlow(made, around)


def _copy_under_way(folder: Folder) -> bool:
    """Whether a process holds the lock of `penstock export`; one that died does not."""
    if not folder.copy_lock.exists():
        return False
    try:
        with folder.copy_lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def problems_error(problems: list[Problem]) -> DeclarationError:
    """What `check` found, as one error: each with its line and what to do."""
    texts = [f"{p.place}: {p.message}" + (f"\n      {p.hint}" if p.hint else "") for p in problems]
    return DeclarationError(
        f"the app has {len(problems)} error{'s' * (len(problems) > 1)}",
        detail="\n  ".join(texts),
        hint="run penstock check",
    )
