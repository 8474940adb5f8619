"""Runs a trial's flows as the real streaming queries, with pauses and crashes where the test wants them.

The logs and checkpoints lie in a folder of their own, in memory where the machine offers that. A crash is what a kill
of the driver does to the log: whoever ran before cannot write any more, and a new run begins from the log and the
checkpoints. It can be had just before a batch is written, or just behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from penstock.config import Folder
from penstock.declaration import Application, Problem
from penstock.errors import FlowError, StaleTermError
from penstock.flows.plan import Planned, Planner
from penstock.flows.runner import Runner
from penstock.flows.session import open_session
from penstock.log import control_keys
from penstock.log.builds import BatchMeta, batch_meta
from penstock.log.group_commit import GroupCommit, Results
from penstock.log.log import Append, Log, LogReader, Stream
from penstock.log.opening import open_log, open_reader
from penstock.testing.batch_twin import closed_us, plans_of
from penstock.testing.trial_door import TrialDoor

Moment = Literal["now", "before commit", "after commit"]
LEVEL_S = 120.0
"""How long queries may take to absorb what was sent: for a machine that is busy."""
_LOOK_S = 0.01


class PreparedPlanner(Planner):
    """Plans an app once for all trials of it."""

    def plan_all(self) -> tuple[dict[str, Planned], list[Problem]]:
        plans = plans_of(self.application)
        self._shapes |= plans.planner._shapes
        return dict(plans.planned), []


class CrashingGroup(GroupCommit):
    """A writer that a test can make fail at the next batch."""

    def __init__(self, log: Log, crash: Moment | None) -> None:
        super().__init__(log)
        self.crash = crash
        self.crashed = False

    def submit(self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None) -> Future[Results]:
        batch = any(append.meta is not None for append in appends)
        if self.crashed or (batch and self.crash == "before commit"):
            raise self._fall()
        written = super().submit(appends, remember)
        if batch and self.crash == "after commit":
            written.result()
            raise self._fall()
        return written

    def _fall(self) -> StaleTermError:
        self.crashed = True
        return StaleTermError("the test has crashed this run")


class Queries:
    """The flows of one trial."""

    def __init__(self, application: Application, folder: Folder, door: TrialDoor) -> None:
        self.application = application
        self.folder = folder
        self.door = door
        self.log: LogReader = open_reader(folder.flows_log)
        self._planned = plans_of(application).planned
        self._runs = 0
        self._crash: Moment | None = None
        self._run: _Run | None = None
        self._paused = False

    def close(self) -> None:
        self.pause()
        self.log.close()

    def sent(self) -> None:
        """Running queries find it by themselves."""

    def pause(self) -> None:
        """Stop reading until `resume`: what is sent meanwhile is read at once then."""
        self._paused = True
        if self._run is not None:
            self._run.end()
            self._run = None

    def resume(self) -> None:
        self._paused = False

    def crash(self, moment: Moment) -> None:
        """Let the run fall, now or at its next batch; the next look begins another one."""
        if moment == "now":
            if self._run is not None:
                self._run.fall()
                self._run = None
        elif self._run is not None:
            self._run.group.crash = moment
        else:
            self._crash = moment

    def reopen(self, door: TrialDoor) -> None:
        """The door is another one, on the same log."""
        self.door = door

    def catch_up(self) -> None:
        """Wait until everything that was sent is absorbed, by as many runs as it takes."""
        if self._paused:
            return
        deadline = time.monotonic() + LEVEL_S
        while True:
            if self._run is None:
                self._runs += 1
                self._run = _Run(self, f"trial {self._runs}", self._crash)
                self._crash = None
            if self._run.over():
                self._bury(self._run)
                self._run = None
                continue
            if self._run.group.crash is None and all(self._level(made) for made in self._planned.values()):
                return
            self._refuse_stopped(self._run.name)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the flows did not absorb everything in {LEVEL_S:.0f} s")
            time.sleep(_LOOK_S)

    def _bury(self, run: _Run) -> None:
        """A run has ended by itself: a crash leads to another one, anything else is the test's to see."""
        run.end()
        if run.failure is not None and not run.group.crashed:
            raise run.failure

    def _refuse_stopped(self, run: str) -> None:
        for name in self._planned:
            state = self.log.memory().get(control_keys.flow(name), {})
            if state.get("run") == run and state["state"] == "stopped" and state.get("error"):
                error = state["error"]
                raise FlowError(error["message"], detail=error.get("detail"), hint=error.get("hint"))

    # What is absorbed

    def _level(self, made: Planned) -> bool:
        inputs = {name: self.stream(name) for name in made.inputs}
        sizes = {name: self._log_of(name).bounds(stream).ends if stream else None for name, stream in inputs.items()}
        output = self.stream(made.node.name)
        last = self.log.last_commit(output) if output is not None else None
        if last is None or last.meta is None:
            return all(size is not None and not any(size) for size in sizes.values())
        meta = batch_meta(last.meta)
        return all(self._absorbed(meta, name, stream) for name, stream in inputs.items()) and self._closed(made, meta)

    def _absorbed(self, meta: BatchMeta, name: str, stream: Stream | None) -> bool:
        if stream is None or meta.end[name][0] != stream.epoch:
            return False
        return bool(list(self._log_of(name).bounds(stream).ends) == meta.end[name][1])

    def _closed(self, made: Planned, meta: BatchMeta) -> bool:
        """Spark closes windows in a batch of its own, behind the one that lets them close."""
        if made.mode != "append" or not made.aggregates:
            return True
        streams = {name: self.stream(name) for name in made.inputs}
        found = {name: stream for name, stream in streams.items() if stream is not None}
        due = closed_us(made, found, {n: self._log_of(n).bounds(s).ends for n, s in found.items()}, self._log_of)
        return due is None or (meta.watermark_us or 0) >= due

    def stream(self, name: str) -> Stream | None:
        """Of the door, or the build of a flow or view that is served."""
        if name in self.door.streams:
            return self.door.streams[name]
        epoch = self.log.memory().get(control_keys.live(name))
        return None if epoch is None else self.log.find(name, epoch)

    def _log_of(self, name: str) -> LogReader:
        return self.door.log if name in self.door.streams else self.log


class _Run:
    """One driver's life, in a thread of its own."""

    def __init__(self, queries: Queries, name: str, crash: Moment | None) -> None:
        door, folder = queries.door, queries.folder
        self.name = name
        self.failure: BaseException | None = None
        self._spark = open_session("tests")
        self._log = open_log(folder.flows_log, app=queries.application.name, clock=door.clock)
        self._edge = open_reader(folder.edge_log)
        self.group = CrashingGroup(self._log, crash)
        self._stop = threading.Event()
        planner = PreparedPlanner(self._spark, queries.application, folder)
        runner = Runner(planner, self._log, self.group, self._edge, door.clock, self._stop, run=name)
        self._thread = threading.Thread(target=self._keeping, args=(runner,), name=name, daemon=True)
        self._thread.start()

    def _keeping(self, runner: Runner) -> None:
        try:
            runner.run()
        except Exception as error:
            self.failure = error

    def over(self) -> bool:
        return not self._thread.is_alive()

    def fall(self) -> None:
        """Nothing of this run is written any more."""
        self.group.crashed = True
        self.end()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        for query in self._spark.streams.active:  # of a run that has fallen; another trial has none now
            query.stop()
        self.group.close()
        self._log.close()
        self._edge.close()
