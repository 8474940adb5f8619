"""Runs an app on one machine: children that it keeps alive, and a terminal that tells what matters.

1. Children end with the supervisor, however it ends; whoever starts next waits for them.
2. A child that dies or hangs is started again alone; the others never notice more than silence.
3. SIGTERM, SIGINT and SIGHUP stop all within `STOP_S`, and those that others need last, within `STOP_LAST_S` more; a
   second SIGINT ends them at once.
4. `ready <address>` is printed on stdout once; everything else that it says goes to stderr.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.errors import revived
from penstock.run.child import Lifeline
from penstock.run.exit_codes import INTERRUPTED, OK
from penstock.run.keeper import ChildPlan, Keeper
from penstock.run.lifecycle import Bell
from penstock.run.ownership import write_json
from penstock.run.probe import EdgeProbe
from penstock.run.terminal import Terminal

TICK_S = 0.1
GAP_S = 3.0
"""A tick this late means that the supervisor was stopped or the machine asleep, not that children are
silent."""
STOP_S = 6.0
"""Children that have not ended by then are killed: `run` promises 10 s, and what follows takes its time, too."""
STOP_LAST_S = 3.0
ROTATE_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class FlowNews:
    """Tells what changed of each flow, once: an error, a rebuild, and that either is over."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._errors: dict[str, dict[str, Any]] = {}
        self._rebuilding: set[str] = set()

    def tell(self, flows: Mapping[str, Mapping[str, Any]]) -> None:
        """`flows` has the state and the error of each, by name."""
        errors = {name: flow["error"] for name, flow in flows.items() if flow.get("error")}
        for name, error in errors.items():
            if self._errors.get(name) != error:
                self._terminal.error(revived(error))
        for name in self._errors.keys() - errors.keys():
            self._terminal.note(f"the flow '{name}' runs again", "green")
        rebuilding = {name for name, flow in flows.items() if flow.get("state") == "rebuilding"}
        for name in sorted(rebuilding - self._rebuilding):
            self._terminal.note(f"'{name}' is rebuilt from the log; its old rows are served until that is done")
        for name in sorted(self._rebuilding - rebuilding - errors.keys()):
            self._terminal.note(f"'{name}' is rebuilt", "green")
        self._errors, self._rebuilding = errors, rebuilding


class Supervisor:
    """The main loop of `penstock run`. `url` gives the address once the edge has one."""

    def __init__(
        self,
        plans: Sequence[ChildPlan],
        *,
        state: Path,
        probe: EdgeProbe,
        terminal: Terminal,
        url: Callable[[], str | None],
        tell: Callable[[dict[str, Any]], None] = lambda state: None,
    ) -> None:
        self._lifeline = Lifeline()
        self._keepers = [Keeper(plan, self._lifeline, terminal) for plan in plans]
        needed = {plan.needs for plan in plans}
        self._last = [keeper for keeper in self._keepers if keeper.plan.name in needed]
        """Those that others need."""
        self._stopping_last = False
        self._state = state
        self._probe = probe
        self._terminal = terminal
        self._url = url
        self._tell = tell
        self._bell = Bell()
        self._asked = 0
        self._opened = False
        self._announced = False
        self._flow_news = FlowNews(terminal)
        self._written: dict[str, Any] = {}
        self._began = self._looked = self._rotated = time.monotonic()
        self._deadline: float | None = None

    def run(self) -> int:
        """Blocks until it was asked to stop (returns the exit code) or a child cannot live (raises why)."""
        before = self._listen()
        try:
            self._start_due()
            self._probe.start()
            return self._loop()
        except BaseException:
            self._stop_rest()
            raise
        finally:
            self._probe.close()
            self._write("stopped")
            self._lifeline.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start_due(self) -> None:
        """Start whatever has all that it needs and was never started."""
        up = {None, *(keeper.plan.name for keeper in self._keepers if keeper.state == "running")}
        for keeper in self._keepers:
            if not keeper.begun and keeper.plan.needs in up:
                keeper.start(time.monotonic())

    def _listen(self) -> dict[signal.Signals, Any]:
        """Signal handlers; a SIGHUP that `nohup` switched off stays off."""
        before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGCHLD)}
        for number in SIGNALS:
            if number != signal.SIGHUP or before[number] != signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: self._bell.ring())
        return before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1
        self._bell.ring()

    def _loop(self) -> int:
        while True:
            now = time.monotonic()
            self._forgive_gap(now)
            for keeper in self._keepers:
                keeper.tick(now)
            if not self._asked:
                self._start_due()
            self._stop_if_asked(now)
            if self._deadline is not None and self._all_stopped():
                return INTERRUPTED if self._asked > 1 else OK
            self._report(now)
            self._bell.wait(TICK_S)

    def _forgive_gap(self, now: float) -> None:
        if now - self._looked > GAP_S:
            for keeper in self._keepers:
                keeper.unseen(now - self._looked)
        self._looked = now

    def _stop_if_asked(self, now: float) -> None:
        if not self._asked:
            return
        if self._deadline is None:
            self._terminal.note("stopping; a second Ctrl-C ends everything at once")
        self._stop_in_order(now)

    def _stop_in_order(self, now: float) -> None:
        """Those that others need come last. Called until all have stopped."""
        first = [keeper for keeper in self._keepers if keeper not in self._last]
        if self._deadline is None:
            self._deadline = now + STOP_S
            for keeper in first:
                keeper.stop()
        if not self._stopping_last and (self._asked > 1 or all(keeper.state == "stopped" for keeper in first)):
            self._stopping_last = True
            self._deadline = now + STOP_LAST_S
            for keeper in self._last:
                keeper.stop()
        if self._asked > 1 or now > self._deadline:
            for keeper in self._keepers if self._stopping_last else first:
                keeper.kill()

    def _all_stopped(self) -> bool:
        return all(keeper.state == "stopped" for keeper in self._keepers)

    def _stop_rest(self) -> None:
        """One child cannot live: end the others in order before the user is told."""
        while not self._all_stopped():
            self._stop_in_order(time.monotonic())
            for keeper in self._keepers:
                keeper.tick(time.monotonic())
            time.sleep(0.05)

    def _report(self, now: float) -> None:
        """What changed since the last look: for the user, for `status`, and in the logs' sizes."""
        url = self._url()
        if url and self._probe.answers and not self._opened:
            self._opened = True
            if not self._probe.ready:
                self._terminal.note(f"the page is open at {url}; events are taken, and Spark is starting")
        if url and self._probe.ready and not self._announced:
            self._announced = True
            self._terminal.note(f"ready after {now - self._began:.1f} s", "green")
            self._terminal.data(f"ready {url}")
        self._flow_news.tell(self._probe.flows)
        self._write("stopping" if self._deadline else "ready" if self._announced else "starting")
        if now - self._rotated > ROTATE_S:
            self._rotated = now
            for keeper in self._keepers:
                keeper.log.rotate()

    def _write(self, state: str) -> None:
        body = {
            "pid": os.getpid(),
            "url": self._url(),
            "state": state,
            "processes": {keeper.plan.name: keeper.body() for keeper in self._keepers},
        }
        if body != self._written:
            self._written = body
            with suppress(OSError):  # a full disk: what it says is old until there is room
                write_json(self._state, body)
            self._tell(body)
