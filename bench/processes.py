"""Looks at processes from outside, through /proc: what they use, what they are, and who came from whom."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one of the same number by when it began."""

    pid: int
    parent: int
    began: int
    command: str


def all_processes() -> Iterator[Process]:
    """Everything that runs and is not a zombie."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = _stat(int(entry.name))
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if fields[0] not in "ZX":
            yield Process(int(entry.name), int(fields[1]), int(fields[19]), command)


def family(pid: int) -> list[Process]:
    """A process and all that came from it, parents before their children."""
    everyone = list(all_processes())
    found = [process for process in everyone if process.pid == pid]
    for parent in found:
        found.extend(process for process in everyone if process.parent == parent.pid)
    return found


def survivors(before: list[Process]) -> list[Process]:
    """Those that still run."""
    now = set(all_processes())
    began = {(process.pid, process.began) for process in now}
    return [process for process in before if (process.pid, process.began) in began]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process with all its threads, in user and in kernel mode."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def cpu_with_ended_s(pid: int) -> float:
    """The same, and that of its children that have ended."""
    return sum(int(field) for field in _stat(pid)[11:15]) / _TICKS_S


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory, and the proportional share of it: pages of forked workers are counted once."""
    sizes = {"Rss": 0, "Pss": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0])
    return sizes["Rss"] / 1024, sizes["Pss"] / 1024


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; the name before them may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
