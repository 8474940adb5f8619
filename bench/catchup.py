"""How fast a flow works through events that wait in the log, and how fast `penstock verify` proves what came of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import narrow, server
from bench.options import Options
from bench.results import Figure, Result
from penstock.collect.collection import stream_spec
from penstock.config import Folder
from penstock.log.builds import batch_meta
from penstock.log.log import Append, Commit
from penstock.log.opening import open_log, open_reader
from penstock.run.app_file import load

COMMIT = 2_000
"""Events in one commit of the log: what the group commit makes of a busy door's NDJSON batches."""
COLD = 2
"""Batches that are left out of the warm rate."""
PATIENCE_S = 900.0
APP = server.APPS / "narrow.py"


def run(options: Options) -> Result:
    figures: list[Figure] = []
    for log in options.logs:
        with server.data_folder(options.folder, log, "narrow") as folder:
            options.note(f"catchup: writing {options.events:,} events{server.on(log)}")
            found = [fill(folder, options.events)]
            options.note("catchup: the flow")
            with server.run("narrow", folder) as running:
                commits = level(folder, options.events)
            found += _rates(commits, options.events)
            found.append(Figure("windowed count", "start to ready", running.ready_s, "s"))
            options.note("catchup: verify")
            found += _verify(folder)
            figures += [replace(figure, case=f"{figure.case}{server.on(log)}") for figure in found]
    settings = {"events": options.events, "events per commit": COMMIT, "sensors": narrow.SENSORS, "columns": 6}
    return Result("catchup", figures, settings)


def fill(folder: Folder, events: int, app: Path = APP) -> Figure:
    """Write straight into the edge's file, as the door would have."""
    application = load(str(app)).application
    declared = application.stream("readings")
    assert declared is not None
    log = open_log(folder.edge_log, app=application.name)
    began = time.monotonic()
    try:
        stream = log.create(stream_spec(declared))
        for batch in narrow.batches(declared, events, COMMIT):
            log.append([Append(stream, batch)])
    finally:
        log.close()
    return Figure("the log", "appended, durable", events / (time.monotonic() - began), "events/s")


def level(folder: Folder, events: int) -> list[Commit]:
    """The commits of the view, once it has absorbed everything."""
    log = open_reader(folder.flows_log)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            changelog = log.find("counts")
            last = log.last_commit(changelog) if changelog else None
            if changelog and last and _end(last) >= events:
                return log.commits(changelog, 0)
            time.sleep(0.2)
    finally:
        log.close()
    raise RuntimeError(f"the view has not absorbed {events} events within {PATIENCE_S:g} s")


def _end(commit: Commit) -> int:
    return int(batch_meta(commit.meta or {}).end["readings"][1][0])


def _rates(commits: Sequence[Commit], events: int) -> list[Figure]:
    """From when the first batch was planned to the last commit; warm: behind the cold batches."""
    began_us, last = batch_meta(commits[0].meta or {}).planned_us or 0, commits[-1]
    case = "windowed count"
    total = events / (last.written_us - began_us) * 1e6
    figures = [Figure(case, f"all {len(commits)} batches", total, "events/s", aim="500,000")]
    if len(commits) > COLD + 1:
        cold = commits[COLD - 1]
        warm = (events - _end(cold)) / (last.written_us - cold.written_us) * 1e6
        figures.append(Figure(case, f"warm, without the first {COLD}", warm, "events/s"))
    return [*figures, Figure(case, "changes written to the view", last.total_rows, "rows")]


def _verify(folder: Folder) -> list[Figure]:
    command = server.penstock(
        "verify", str(APP), "--data", str(folder.root), "--view", "counts", "--json", *server.log_words(folder)
    )
    with server.started(command, subprocess.PIPE) as (process, began):
        output, _ = process.communicate(timeout=PATIENCE_S)
    report = reported(output.decode())
    if report["result"] != "equal":
        raise RuntimeError(f"verify says that the view is {report}")
    return [
        Figure("verify", "recompute and compare", report["events"] / report["seconds"], "events/s", aim="2,000,000"),
        Figure("verify", "rows compared", report["rows"], "rows"),
        Figure("verify", "the whole command, with its JVM's start", time.monotonic() - began, "s"),
    ]


def reported(text: str) -> dict[str, Any]:
    """The line of JSON among the notes."""
    for line in text.splitlines():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError(f"verify reported nothing: {text[-2000:]}")
