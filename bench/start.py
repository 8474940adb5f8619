"""How long `penstock run` takes until it is ready, and what each of its processes uses while nothing happens."""

from __future__ import annotations

import time

from bench import processes, server
from bench.options import Options
from bench.percentile import median
from bench.processes import Process
from bench.results import Figure, Result

SETTLE_S = 15.0
"""From ready to rest: the JVM compiles for a while, and Spark's Python workers come and go."""
ROLES = ("supervisor", "edge", "flows", "JVM", "Python workers", "guards")


def run(options: Options) -> Result:
    took: list[float] = []
    figures: list[Figure] = []
    for number in range(options.starts):
        options.note(f"start: {number + 1} of {options.starts}")
        with server.data_folder(options.folder) as folder, server.run("one", folder) as running:
            took.append(running.ready_s)
            if number == options.starts - 1:
                options.note("start: at rest")
                figures = _at_rest(running.pid, options.idle_s)
    ready = [
        Figure("run", f"to ready, median of {len(took)}", median(took), "s"),
        Figure("run", "to ready, slowest", max(took), "s"),
    ]
    return Result("start", ready + figures, {"idle seconds": options.idle_s})


def _at_rest(pid: int, seconds: float) -> list[Figure]:
    time.sleep(SETTLE_S)
    family = processes.family(pid)
    before = {process.pid: processes.cpu_s(process.pid) for process in family}
    began = time.monotonic()
    time.sleep(seconds)
    there = processes.survivors(family)
    elapsed = time.monotonic() - began
    cpu = {process.pid: 100 * (processes.cpu_s(process.pid) - before[process.pid]) / elapsed for process in there}
    memory = {process.pid: processes.memory_mib(process.pid) for process in there}
    figures: list[Figure] = []
    for role in ROLES:
        pids = [process.pid for process in there if _role(process, pid, there) == role]
        if pids:
            case = f"{role} ({len(pids)})" if len(pids) > 1 else role
            figures += [
                Figure(case, "resident memory", sum(memory[p][0] for p in pids), "MiB"),
                Figure(case, "its proportional share", sum(memory[p][1] for p in pids), "MiB"),
                Figure(case, "CPU at rest", sum(cpu[p] for p in pids), "%"),
            ]
    shares = sum(share for _, share in memory.values())
    return [
        *figures,
        Figure("all", "proportional memory", shares, "MiB"),
        Figure("all", "CPU at rest", sum(cpu.values()), "%"),
    ]


def _role(process: Process, supervisor: int, family: list[Process]) -> str:
    """What a process of `penstock run` is, by its command and its place in the family."""
    if process.pid == supervisor:
        return "supervisor"
    words = process.command.split()
    program = words[0].rpartition("/")[2] if words else ""
    if program == "java":
        return "JVM"
    for verb in ("edge", "flows"):
        if "penstock.cli.boot" in words and verb in words:
            return verb
    return "guards" if program == "sh" else "Python workers"
