"""Keeps one child alive: starts it, sees that it lives and that it moves, and starts it again when not.

Hung is not dead: a child that lives but shows no sign of it for a declared time is made to write down its
threads, killed with its whole family, and started again; that is counted apart. A child that ends with
`USER_ERROR` is not started again, since the next one would end the same way.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.errors import ChildFailedError, PenstockError, revived
from penstock.run.child import Child, Lifeline, LogFile
from penstock.run.exit_codes import USER_ERROR
from penstock.run.terminal import Terminal

DUMP_S = 1.0
"""Time that a hung child gets to write down its threads."""
LAST_LINES = 15
FIRST_S = 0.2
LONGEST_S = 10.0
HEALTHY_S = 30.0
"""A life this long forgives the deaths before it."""
INSTANT_S = 5.0
"""A shorter life is an instant death: nothing that waiting would cure."""
INSTANT_DEATHS = 5

State = Literal["starting", "running", "hung", "waiting", "stopping", "stopped"]


@dataclass(frozen=True)
class ChildPlan:
    """What there is to know of a child before it is started."""

    name: str
    command: Callable[[], Sequence[str]]
    """Asked at each start: an edge that was given any free port must come back on the same one."""
    log: Path
    error: Path
    """Where it writes the error that it ends with `USER_ERROR` for."""
    pulse: Callable[[], int]
    """A number that changes as long as the child does its work."""
    hung_s: float
    first_pulse_s: float = 120.0
    """How long it may take to start: a JVM on a busy machine needs more than a while."""
    needs: str | None = None
    """The child that must be up before this one is started, and is stopped after it."""


class Restarts:
    """When a child that died is started again: at once, then ever later, and not at all when it cannot live.

    >>> deaths = Restarts()
    >>> [deaths.after(1.0) for _ in range(5)]
    [0.2, 0.4, 0.8, 1.6, None]
    """

    def __init__(self) -> None:
        self.count = 0
        self._delay_s = FIRST_S
        self._instant = 0

    def after(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start; None: give up."""
        self._instant = self._instant + 1 if lived_s < INSTANT_S else 0
        if self._instant >= INSTANT_DEATHS:
            return None
        if lived_s >= HEALTHY_S:
            self._delay_s = FIRST_S
        delay, self._delay_s = self._delay_s, min(LONGEST_S, self._delay_s * 2)
        self.count += 1
        return delay


class Keeper:
    """One child through all its lives. Called from the supervisor's main thread alone."""

    def __init__(self, plan: ChildPlan, lifeline: Lifeline, terminal: Terminal) -> None:
        self.plan = plan
        self.log = LogFile(plan.log)
        self.hung = 0
        self.state: State = "stopped"
        self.restarts = Restarts()
        self._lifeline = lifeline
        self._terminal = terminal
        self._child: Child | None = None
        self._started = self._moved = self._due = 0.0
        self._pulse = 0
        self._exit: int | None = None
        self._killed = False

    @property
    def begun(self) -> bool:
        """Whether it was ever started."""
        return self._started > 0

    def start(self, now: float) -> None:
        self.plan.error.unlink(missing_ok=True)
        self._pulse = self.plan.pulse()
        self._child = Child(self.plan.command(), self.log, self._lifeline, os.environ)
        self.log.mark(f"{self.plan.name} starts as process {self._child.pid}")
        self._started = self._moved = now
        self.state = "starting"

    def tick(self, now: float) -> None:
        """Look at the child and do what is due. Raises the error that ends the whole run."""
        if self._child is None:
            if self.state == "waiting" and now >= self._due:
                self.start(now)
            return
        code = self._child.ended()
        if code is not None:
            self._ended(code, now)
        elif self.state == "hung" and now >= self._due:
            self._child.kill()
        elif self.state in ("starting", "running"):
            self._watch(now)

    def _watch(self, now: float) -> None:
        pulse = self.plan.pulse()
        if pulse != self._pulse:
            self._pulse, self._moved = pulse, now
            if self.state == "starting":
                self._up()
        allowed = self.plan.first_pulse_s if self.state == "starting" else self.plan.hung_s
        if now - self._moved > allowed:
            self._hangs(now)

    def _up(self) -> None:
        self.state = "running"
        if self.restarts.count and self._child:
            self._terminal.note(f"{self.plan.name} is back (pid {self._child.pid})", "green")

    def _hangs(self, now: float) -> None:
        assert self._child is not None
        self.hung += 1
        silent = now - self._moved
        seen = self._child.dump()
        self.log.mark(f"{self.plan.name} gave no sign of life for {silent:.0f} s (process state {seen}); its threads:")
        self._terminal.warn(
            f"{self.plan.name} hangs: no sign of life for {silent:.0f} s; its threads are in {self.plan.log}"
        )
        self.state, self._due = "hung", now + DUMP_S

    def _ended(self, code: int, now: float) -> None:
        self._child, self._exit = None, code
        if self.state == "stopping":
            self.state = "stopped"
            return
        manner = "hung and was killed" if self.state == "hung" else _manner(code)
        self.log.mark(f"{self.plan.name} {manner}")
        self.state = "stopped"
        if code == USER_ERROR:
            raise self._told()
        delay = self.restarts.after(now - self._started)
        if delay is None:
            raise self._given_up(code)
        self._terminal.warn(f"{self.plan.name} {manner}; starting it again in {delay:.1f} s ({self.plan.log})")
        self.state, self._due = "waiting", now + delay

    def _told(self) -> PenstockError:
        try:
            return revived(json.loads(self.plan.error.read_text()))
        except (OSError, ValueError):
            return self._given_up(USER_ERROR)

    def _given_up(self, code: int) -> PenstockError:
        self._terminal.tail(f"the end of {self.plan.log}", self.log.last_lines(LAST_LINES))
        return ChildFailedError(
            f"{self.plan.name} does not stay alive: it {_manner(code)}, "
            f"{INSTANT_DEATHS} times within seconds of its start",
            detail=f"its log is {self.plan.log}",
            hint="correct what its log says, then start again; no event was lost",
        )

    def stop(self) -> None:
        """Ask the child to end; `tick` notices when it has."""
        if self._child is not None:
            self._child.terminate()
        self.state = "stopping" if self._child is not None else "stopped"

    def kill(self) -> None:
        """End the child and its family at once; it is told once that this was needed."""
        if self._child is not None:
            if not self._killed:
                self._terminal.warn(f"{self.plan.name} does not stop by itself and is killed")
            self._killed = True
            self._child.kill()

    def unseen(self, seconds: float) -> None:
        """The supervisor itself was stopped or asleep for so long: no child can be blamed for that time."""
        self._moved += seconds

    def body(self) -> dict[str, Any]:
        """Its part of `run/supervisor.json`."""
        return {
            "state": self.state,
            "pid": self._child.pid if self._child else None,
            "restarts": self.restarts.count,
            "hung": self.hung,
            "last_exit": self._exit,
            "log": str(self.plan.log),
        }


def _manner(code: int) -> str:
    if code < 0:
        names = {int(s): s.name for s in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"
