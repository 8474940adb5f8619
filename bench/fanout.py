"""What it costs to tell many: messages per CPU-second of the edge, with one filter for all and with one for each.

A fake writer of the changelog stands for the flows; it makes a batch when the listeners have got the one before the
last, so that nobody falls behind and nothing is merged. The listeners are a process of their own on bare sockets.
CPU is that of the edge process alone. Latency is from before the batch's commit (its fsync is in it) to the listener.
"""

from __future__ import annotations

import json
import mmap
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import processes, server
from bench.changelog import Changelog, changelog
from bench.options import Options
from bench.results import Figure, Result

CLIENTS = 1_000
STORED = 10_000
"""Filters that are stored, on sockets of 1,000 subscriptions each."""
BESIDE = 200
"""Clients of each transport, side by side."""
MARKETS = 50
"""Of the symbols s0, s1, ...: a batch of the first 50 has one row of each."""
SHARED_ROWS = 20
"""Rows of a batch where all have one filter."""
AHEAD = 3
"""Batches on their way at once."""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Case:
    """What 1,000 WebSockets ask, and how many rows a batch must have to be news to each."""

    filters: str
    name: str
    rows: int
    aim: str = ""


def run(options: Options) -> Result:
    seconds = options.seconds / 3
    figures = [
        *_crowd(options, seconds, Case("same", "one filter for all", SHARED_ROWS, "150,000")),
        *_crowd(options, seconds, Case("market", "a filter each, rows shared by 20", MARKETS, "100,000")),
        *_crowd(options, seconds, Case("own", "a filter and a row each", CLIENTS)),
        *_stored(options, seconds),
        *_transports(options, seconds),
    ]
    settings = {"seconds": round(seconds, 1), "clients": CLIENTS, "rows with one filter": SHARED_ROWS}
    return Result("fanout", figures, settings)


# The listeners


class Crowd:
    """Listeners in a process of their own."""

    def __init__(self, process: subprocess.Popen[str], counts: mmap.mmap, connections: int) -> None:
        self._process, self._counts, self.connections = process, counts, connections

    @property
    def counted(self) -> tuple[int, int]:
        """Messages so far, and connections that have begun."""
        total, begun = struct.unpack_from("<qq", self._counts, 0)
        return total, begun

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the listeners ended: the edge closed a connection?")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def listening(
    edge: server.Server, kind: str, connections: int, filters: str, subscriptions: int = 1
) -> Iterator[Crowd]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts"
        path.write_bytes(bytes(16))
        words = [str(edge.port), kind, str(connections), filters, str(subscriptions), str(path)]
        command = [sys.executable, "-m", "bench.listeners", *words]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=server.ROOT, text=True, bufsize=1
        )
        try:
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 16) as counts:
                crowd = Crowd(process, counts, connections)
                _until(lambda: crowd.counted[1] >= connections, "all listeners have begun", process)
                time.sleep(1.0)
                yield crowd
        finally:
            process.kill()
            process.wait()


def _until(reached: Callable[[], bool], what: str, process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.0005)


# Driving


def _flood(log: Changelog, crowd: Crowd, rows: int, each: int, seconds: float) -> None:
    """Batch after batch, at most `AHEAD` of them on their way; `each`: messages that one leads to."""
    start, _ = crowd.counted
    wanted, deadline = start, time.monotonic() + seconds
    while time.monotonic() < deadline:
        _until_counted(crowd, wanted - AHEAD * each)
        log.commit(range(rows))
        wanted += each
    _until_counted(crowd, wanted)


def _until_counted(crowd: Crowd, messages: int) -> None:
    _until(lambda: crowd.counted[0] >= messages, "the messages of a batch")


def _paced(log: Changelog, crowd: Crowd, rows: int, each: int, seconds: float, batches_s: float) -> None:
    """Batches at a fixed speed, whether the listeners have got them or not."""
    start, began, sent = crowd.counted[0], time.monotonic(), 0
    while (due := began + sent / batches_s) < began + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        log.commit(range(rows))
        sent += 1
    _until_counted(crowd, start + int(sent * each * 0.99))


def _measured(edge: server.Server, crowd: Crowd, load: Callable[[], None]) -> tuple[dict[str, Any], float]:
    crowd.ask("forget")
    cpu = processes.cpu_s(edge.pid)
    load()
    return crowd.ask("report"), processes.cpu_s(edge.pid) - cpu


# The cases


@contextmanager
def _edge(options: Options, symbols: int) -> Iterator[tuple[server.Server, Changelog]]:
    with (
        server.data_folder(options.folder) as folder,
        changelog(folder, symbols) as log,
        server.edge("quotes", folder, "serve") as edge,
    ):
        yield edge, log


def _crowd(options: Options, seconds: float, case: Case) -> list[Figure]:
    name = f"{CLIENTS} WebSockets, {case.name}"
    options.note(f"fanout: {name}")
    with _edge(options, CLIENTS) as (edge, log):
        before = processes.memory_mib(edge.pid)[0]
        with listening(edge, "websocket", CLIENTS, case.filters) as crowd:
            each = (processes.memory_mib(edge.pid)[0] - before) * 1024 / CLIENTS
            _flood(log, crowd, case.rows, CLIENTS, min(2.0, seconds))
            found, cpu = _measured(edge, crowd, lambda: _flood(log, crowd, case.rows, CLIENTS, seconds))
            per_cpu, per_s = found["messages"] / cpu, found["messages"] / found["seconds"]
            half = 0.5 * per_s / CLIENTS
            paced, _ = _measured(edge, crowd, lambda: _paced(log, crowd, case.rows, CLIENTS, seconds, half))
    last = paced["last_ms"] or (float("nan"), float("nan"))
    return [
        Figure(name, "messages per CPU-second", per_cpu, "messages/s", count=found["messages"], aim=case.aim),
        Figure(name, "messages per second", per_s, "messages/s"),
        Figure(name, "listeners' own CPU", found["cpu_s"] / found["seconds"] * 100, "%"),
        Figure(name, "latency at half of that", paced["ms"][0], "ms", paced["ms"][1], paced["messages"]),
        Figure(name, f"change to the last of {CLIENTS}", last[0], "ms", last[1]),
        Figure(name, "memory per idle connection", each, "KiB"),
    ]


def _stored(options: Options, seconds: float) -> list[Figure]:
    """One change at a time, which one of the filters passes, beside thousands of others and beside none."""
    figures = []
    for count in (1, STORED):
        options.note(f"fanout: {count:,} stored filters")
        with _edge(options, STORED) as (edge, log):
            sockets, subscriptions = max(1, count // 1_000), min(count, 1_000)
            with listening(edge, "websocket", sockets, "own", subscriptions) as crowd:
                _all_stored(edge, count)
                _flood(log, crowd, 1, 1, 1.0)
                commits = log.commits
                found, cpu = _measured(edge, crowd, lambda log=log, crowd=crowd: _flood(log, crowd, 1, 1, seconds))
        name = f"{count:,} stored filter{'s' if count > 1 else ''}, one passes"
        figures.append(
            Figure(name, "CPU per change", cpu / (log.commits - commits) * 1e6, "us", count=log.commits - commits)
        )
        figures.append(Figure(name, "latency", found["ms"][0], "ms", found["ms"][1]))
    return figures


def _all_stored(edge: server.Server, count: int) -> None:
    """Wait until so many queries are followed."""

    def stored() -> bool:
        body = server.metric(edge.port, "penstock_serve_queries", view="quotes")
        return body is not None and body >= count

    deadline = time.monotonic() + PATIENCE_S
    while not stored():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} filters were not stored in time")
        time.sleep(0.2)


def _transports(options: Options, seconds: float) -> list[Figure]:
    figures = []
    for kind in ("websocket", "sse", "longpoll"):
        options.note(f"fanout: {BESIDE} clients over {kind}")
        with _edge(options, CLIENTS) as (edge, log), listening(edge, kind, BESIDE, "same") as crowd:
            _flood(log, crowd, SHARED_ROWS, BESIDE, 1.0)
            found, cpu = _measured(
                edge, crowd, lambda log=log, crowd=crowd: _flood(log, crowd, SHARED_ROWS, BESIDE, seconds)
            )
            half = 0.5 * found["messages"] / found["seconds"] / BESIDE
            paced, _ = _measured(
                edge,
                crowd,
                lambda log=log, crowd=crowd, half=half: _paced(log, crowd, SHARED_ROWS, BESIDE, seconds, half),
            )
        name = f"{BESIDE} over {kind}"
        figures += [
            Figure(name, "messages per CPU-second", found["messages"] / cpu, "messages/s", count=found["messages"]),
            Figure(name, "latency at half of the full speed", paced["ms"][0], "ms", paced["ms"][1]),
            Figure(name, f"bytes per message of {SHARED_ROWS} rows", found["bytes"] / found["messages"], "bytes"),
        ]
    options.note("fanout: webhooks: not measured (they deliver one after the other, each with its own reply)")
    return figures
