"""One child process with all that hangs on it: its process group, its JVM, the JVM's workers, and its log.

A child is the leader of a process group of its own, so that Ctrl-C in a terminal reaches the supervisor
alone, and so that nothing of it can be missed when it must go. Its group is cleared before the child is
reaped: until then its number cannot be given to anybody else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FULL_BYTES = 8 * 1024**2
KEPT = 3
"""Older files beside the current one: `edge.log.1` is the newest of them."""


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


class Lifeline:
    """The supervisor's end of a pipe: the kernel closes it when the supervisor ends, however it ends, and only then.

    At the other end, in each child's process group, a guard waits: a shell that then kills the whole group. That ends
    the JVM too, which is a child of the child, and it works when a process is stopped.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def guard(self, group: int) -> subprocess.Popen[bytes]:
        """Start the guard of a process group. It is a member of the group, so that the number cannot be
        reused."""
        return subprocess.Popen(
            ["/bin/sh", "-c", "read _; kill -KILL 0"],
            stdin=self._read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=group,
        )

    def close(self) -> None:
        """Ends every group that still has a guard."""
        os.close(self._read)
        os.close(self._write)


class LogFile:
    """One child's log, which stays readable and bounded: a full file is moved aside.

    The child writes to the file itself, with its raw stderr and that of its JVM, so its last words are there however it
    or the supervisor dies, and a supervisor that is stopped holds up nobody. The price: what is written in the instant
    between copying a full file and emptying it is lost.
    """

    def __init__(self, path: Path, full_bytes: int = FULL_BYTES) -> None:
        self.path = path
        self._full_bytes = full_bytes
        self._began = 0

    def open(self) -> int:
        """A descriptor for a child's stdout and stderr; the caller closes it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._began = os.fstat(descriptor).st_size
        return descriptor

    def mark(self, text: str) -> None:
        """A line of the supervisor's own among the child's."""
        with (
            contextlib.suppress(OSError),
            self.path.open("a") as file,
        ):  # a full disk must not end who watches over the rest
            file.write(f"--- {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")

    def rotate(self) -> None:
        """Called now and then: moves the content aside when there is too much of it."""
        if not self.path.exists() or self.path.stat().st_size < self._full_bytes:
            return
        for number in range(KEPT, 1, -1):
            older = self._older(number - 1)
            if older.exists():
                older.replace(self._older(number))
        with contextlib.suppress(OSError):  # a full disk: the newest lines are worth more than the older ones
            shutil.copyfile(self.path, self._older(1))
        os.truncate(self.path, 0)
        self._began = 0

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def last_lines(self, count: int) -> list[str]:
        """The end of what the newest child wrote."""
        with self.path.open("rb") as file:
            file.seek(self._began)
            return [line.decode(errors="replace").rstrip() for line in deque(file, count)]


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
            if process.name == "java":
                _signal(process.pid, signal.SIGQUIT)
            elif process.pid == self.pid:
                _signal(process.pid, signal.SIGUSR1)
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
