"""What each part of the engine saves: runs with and without it in turns, by CPU time, wait and memory.

    python -m bench.parts --rounds 5 sink nursery

Without names it takes every part of `penstock.plain`. A figure is the median over the rounds of one run without the
part through the run with it just before: 1.10 means that the part saves a tenth. Other work on the machine moves both.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import processes, server, waterfall
from bench.percentile import median
from bench.server import Server
from penstock import plain
from penstock.log.folder_log import FolderLog

APP, VIEW, STREAM = "one", "sensors", "readings"
PAUSE_S = 0.05
SETTLE_S = 3.0
Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.parts", description=__doc__)
    parser.add_argument("parts", nargs="*", default=plain.SPARK, help=", ".join(plain.SPARK))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long small batches run")
    asked = parser.parse_args(arguments)
    console = Console(width=140)
    runs: dict[str, list[tuple[Figures, Figures]]] = {part: [] for part in asked.parts}
    for number in range(asked.rounds):
        for part in asked.parts:
            print(f"round {number + 1}: {part}", file=sys.stderr, flush=True)
            runs[part].append((measure("", asked.seconds), measure(part, asked.seconds)))
            console.print(table({part: pairs for part, pairs in runs.items() if pairs}))
    return 0


def table(runs: dict[str, list[tuple[Figures, Figures]]]) -> Table:
    names = list(next(iter(runs.values()))[0][0])
    shown = Table("without", "rounds", *names, title="without the part / with it")
    for part, pairs in runs.items():
        ratios = {name: [off[name] / on[name] for on, off in pairs] for name in names}
        cells = [f"{median(found):.2f} ({min(found):.2f}-{max(found):.2f})" for found in ratios.values()]
        shown.add_row(part, str(len(pairs)), *cells)
    middle = {name: median([on[name] for pairs in runs.values() for on, _ in pairs]) for name in names}
    shown.add_row("(with all)", "", *(f"{value:.3g}" for value in middle.values()))
    return shown


def measure(off: str, seconds: float) -> Figures:
    """One run without these parts, from its start to its end."""
    with _environment(off), server.data_folder(Path(os.environ.get("TMPDIR", "/tmp"))) as folder:
        began = time.monotonic()
        with server.run(APP, folder) as running:
            start = _cpu_s(running.pid)
            ready_s = time.monotonic() - began
            _post(running, 1, applied=True)
            rows, rows_s = _cpu_s(running.pid), time.monotonic() - began
            probe = _send(running, 2, SETTLE_S)
            before, batches = _cpu_s(running.pid), _batches(running)
            last = _send(running, probe, seconds)
            after, done = _cpu_s(running.pid), _batches(running)
            memory = sum(processes.memory_mib(p.pid)[1] for p in processes.family(running.pid))
            probes = waterfall.logged(folder, VIEW)
        fresh = waterfall.between([probes[n] for n in range(probe, last) if n in probes], "accepted", "in view")
        assert fresh is not None
        return {
            "ready s": ready_s,
            "start CPU s": start,
            "first row s": rows_s,
            "first row CPU s": rows,
            "batch CPU ms": 1000 * (after - before) / (done - batches),
            "fresh p50 ms": fresh.p50,
            "memory MiB": memory,
        }


@contextmanager
def _environment(off: str) -> Iterator[None]:
    os.environ[plain.VARIABLE] = off
    try:
        yield
    finally:
        del os.environ[plain.VARIABLE]


def _cpu_s(pid: int) -> float:
    """Of all that came from a process, also of what has ended since."""
    return sum(processes.cpu_with_ended_s(process.pid) for process in processes.survivors(processes.family(pid)))


def _send(running: Server, first: int, seconds: float) -> int:
    """One event after the other, each a small batch or part of one; gives the number of the next."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _post(running, first)
        first += 1
        time.sleep(PAUSE_S)
    return first


def _post(running: Server, probe: int, *, applied: bool = False) -> None:
    now = int(time.time() * 1000)
    event = {"sensor": f"s{probe % 7}", "kind": "a", "region": 1, "value": 1.0, "at": now, "probe": probe}
    connection = HTTPConnection("127.0.0.1", running.port, timeout=60)
    try:
        headers = {"Content-Type": "application/json"}
        path = f"/streams/{STREAM}" + ("?ack=applied&wait=50" if applied else "")
        connection.request("POST", path, json.dumps(event), headers)
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != 200 or (applied and json.loads(body)["level"] != "applied"):
            raise RuntimeError(f"{reply.status}: {body[:500]!r}")
    finally:
        connection.close()


def _batches(running: Server) -> int:
    log = FolderLog(running.folder)
    try:
        changelog = log.flows.find(VIEW)
        return 0 if changelog is None else log.flows.bounds(changelog).next_commit
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
