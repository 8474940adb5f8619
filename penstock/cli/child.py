"""One child process with all that hangs on it: its process group, its JVM, the JVM's workers, and its log.

A child is the leader of a process group of its own, so that Ctrl-C in a terminal reaches the supervisor
alone, and so that nothing of it can be missed when it must go. Its group is cleared before the child is
reaped: until then its number cannot be given to anybody else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.guard import Lifeline
from penstock.cli.rotation import LogFile


@dataclass(frozen=True)
class Process:
    """A line of /proc: what is needed to find a child's family."""

    pid: int
    name: str
    state: str
    parent: int
    group: int


def processes() -> Iterator[Process]:
    """All processes of the machine that are not zombies; none where there is no /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, parent, group = rest.split()[:3]
        if state not in "ZX":
            yield Process(int(entry.name), name, state, int(parent), int(group))


def family(group: int) -> list[Process]:
    """The members of a process group and everything below them, whatever group that moved to."""
    everyone = list(processes())
    found = {p.pid: p for p in everyone if p.group == group}
    while more := {p.pid: p for p in everyone if p.parent in found and p.pid not in found}:
        found |= more
    return list(found.values())


class Child:
    """A started child, until `ended` says how it ended. Made and asked by the supervisor's main thread
    alone."""

    def __init__(self, command: Sequence[str], log: LogFile, lifeline: Lifeline, env: Mapping[str, str]) -> None:
        output = log.open()
        try:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                env=dict(env),
            )
        finally:
            os.close(output)
        self.pid = self._popen.pid
        self._guard = lifeline.guard(self.pid)
        self.code: int | None = None

    def terminate(self) -> None:
        """Ask it to end; the JVM is the child's own business."""
        if self.code is None:
            os.kill(self.pid, signal.SIGTERM)

    def dump(self) -> str:
        """Let it write its threads to its log, and its JVM too; returns what state the kernel sees it in."""
        state = "gone"
        for process in family(self.pid):
            if process.pid == self.pid:
                state = process.state
                _signal(process.pid, signal.SIGUSR1)
            elif process.name == "java":
                _signal(process.pid, signal.SIGQUIT)
        return state

    def kill(self) -> None:
        """End it and all of its family now; also those that are stopped."""
        if self.code is not None:
            return
        for process in family(self.pid):
            _signal(process.pid, signal.SIGKILL)
        _signal(self.pid, signal.SIGKILL)

    def ended(self) -> int | None:
        """Its exit code (negative: the signal that killed it) once it has ended; else None. What is left of its group
        has nothing to put in order, and is gone then."""
        if self.code is None and self._is_zombie():
            self.kill()
            self._guard.wait()
            self.code = self._popen.wait()
        return self.code

    def _is_zombie(self) -> bool:
        """Whether it has ended; it is not reaped, so that its number stays taken."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
