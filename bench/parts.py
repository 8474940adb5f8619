"""What each part of the engine saves: runs with and without it, side by side, by CPU time, wait and memory.

    python -m bench.parts --rounds 5 sink nursery

Without names it takes every part of `flows/engine`. Each round has a start (`penstock run` until it is ready, and until
the first event is in its view) and small batches (one event each, one behind the other). A figure is the median over
the rounds of the run without the part through the run with it: 1.10 means that the part saves a tenth. Both run at the
same time, so that other work on the machine moves both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import processes, server
from bench.percentile import median
from bench.server import Server
from penstock import plain
from penstock.config import Folder

APP, VIEW, STREAM = "one", "sensors", "readings"
WARM_BATCHES = 60
LONGEST_S = 400.0
Figures = dict[str, float]
Runs = dict[str, list[tuple[Figures, Figures]]]
"""By part: pairs of what was measured with it and without."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.parts", description=__doc__)
    parser.add_argument("parts", nargs="*", default=plain.SPARK, help=", ".join(plain.SPARK))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=200, help="small batches of each run; 0: only the start")
    parser.add_argument("--no-start", dest="start", action="store_false", help="only the small batches")
    parser.add_argument("--add-to", type=Path, help="a file of earlier rounds, which these are added to")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.child:
        print(json.dumps(_run_batches(asked.child, asked.batches)))
        return 0
    runs: Runs = json.loads(asked.add_to.read_text()) if asked.add_to and asked.add_to.exists() else {}
    for number in range(asked.rounds):
        for part in asked.parts:
            print(f"round {number + 1}: {part}", file=sys.stderr, flush=True)
            on, off = _pair(part, measure_start) if asked.start else ({}, {})
            if asked.batches:
                more = _pair(part, lambda off: measure_batches(off, asked.batches))
                on, off = on | more[0], off | more[1]
            runs.setdefault(part, []).append((on, off))
            if asked.add_to:
                asked.add_to.write_text(json.dumps(runs))
    Console(width=160).print(table(runs))
    return 0


def table(runs: Runs) -> Table:
    pairs = [pair for found in runs.values() for pair in found]
    names = list(dict.fromkeys(name for on, _ in pairs for name in on))
    shown = Table("without", *names, title="without the part / with it: median (smallest to largest) of so many rounds")
    for part, found in runs.items():
        ratios = [[off[name] / on[name] for on, off in found if name in on] for name in names]
        shown.add_row(part, *(_cell(ratio) for ratio in ratios))
    middle = [median([on[name] for on, _ in pairs if name in on]) for name in names]
    shown.add_row("(with all)", *(f"{value:.3g}" for value in middle))
    return shown


def _cell(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) {len(ratios)}" if ratios else ""


def _pair(part: str, measure: Callable[[str], Figures]) -> tuple[Figures, Figures]:
    """With it and without it, at the same time."""
    with ThreadPoolExecutor() as both:
        on, off = both.submit(measure, ""), both.submit(measure, part)
        return on.result(), off.result()


# The start


def measure_start(off: str) -> Figures:
    with server.data_folder(Path(tempfile.gettempdir())) as folder:
        began = time.monotonic()
        with server.run(APP, folder, **{plain.VARIABLE: off}) as running:
            ready, ready_s = _cpu_s(running.pid), time.monotonic() - began
            _post(running)
            return {
                "ready s": ready_s,
                "ready CPU s": ready,
                "first row s": time.monotonic() - began,
                "first row CPU s": _cpu_s(running.pid),
            }


def _post(running: Server) -> None:
    event = {"sensor": "a", "kind": "a", "region": 1, "value": 1.0, "at": int(time.time() * 1000), "probe": 1}
    connection = HTTPConnection("127.0.0.1", running.port, timeout=70)
    try:
        path = f"/streams/{STREAM}?ack=applied&wait=60"
        connection.request("POST", path, json.dumps(event), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != 200 or json.loads(body)["level"] != "applied":
            raise RuntimeError(f"{reply.status}: {body[:500]!r}")
    finally:
        connection.close()


def _cpu_s(pid: int) -> float:
    """Of all that came from a process, also of what has ended since."""
    return sum(processes.cpu_with_ended_s(process.pid) for process in processes.survivors(processes.family(pid)))


# Small batches


def measure_batches(off: str, batches: int) -> Figures:
    """In a process of its own, which has a JVM of its own."""
    with server.data_folder(Path(tempfile.gettempdir())) as folder:
        command = [sys.executable, "-m", "bench.parts", "--child", str(folder.root), "--batches", str(batches)]
        env = {**os.environ, plain.VARIABLE: off}
        done = subprocess.run(command, cwd=server.ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures


def _run_batches(root: Path, batches: int) -> Figures:
    """One event for each commit of the stream and for each batch; the first ones do not count."""
    from bench.apps.one import Reading, app
    from penstock.clock import SystemClock
    from penstock.flows import flow_run
    from penstock.flows.plan import Planner
    from penstock.flows.runner import Runner
    from penstock.flows.session import open_session
    from penstock.log.group_commit import GroupCommit
    from penstock.log.log import Append, StreamSpec
    from penstock.log.opening import open_log
    from tests.flows.world import batch_of

    folder, application, clock = Folder(root), app.declared(), SystemClock()
    spark = open_session("parts")
    stream = application.streams[0]
    edge, flows = (open_log(place, app=application.name) for place in (folder.edge_log, folder.flows_log))
    target = edge.create(StreamSpec(stream.name, stream.stored))
    for number in range(WARM_BATCHES + batches):
        at = clock.now_us() // 1000
        event = Reading(sensor=f"s{number % 7}", kind="a", region=1, value=1.0, at=at, probe=number + 1)
        edge.append([Append(target, batch_of(stream, [event]))])
    flow_run.MAX_ROWS = 1
    stop, group = threading.Event(), GroupCommit(flows)
    runner = Runner(Planner(spark, application, folder), flows, group, edge, clock, stop)
    work = threading.Thread(target=runner.run)
    work.start()

    def done() -> int:
        output = flows.find(VIEW)
        return 0 if output is None else flows.bounds(output).next_commit

    def wait(for_batches: int) -> tuple[int, float, float]:
        deadline = time.monotonic() + LONGEST_S
        while (now := done()) < for_batches:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{now} batches of {for_batches}")
            time.sleep(0.02)
        return now, _cpu_s(os.getpid()), time.monotonic()

    first, cpu, began = wait(WARM_BATCHES)
    last, cpu_after, ended = wait(WARM_BATCHES + batches)
    memory = sum(processes.memory_mib(process.pid)[1] for process in processes.family(os.getpid()))
    stop.set()
    work.join()
    group.close()
    return {
        "batch CPU ms": 1000 * (cpu_after - cpu) / (last - first),
        "batch ms": 1000 * (ended - began) / (last - first),
        "memory MiB": memory,
    }


if __name__ == "__main__":
    sys.exit(main())
