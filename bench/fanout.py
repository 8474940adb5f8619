"""What it costs to tell many: messages per CPU-second of the edge, with one filter for all and with one for each.

A fake writer of the changelog stands for the flows; it makes a batch when the listeners have got the one before the
last, so that nobody falls behind and nothing is merged. Batches that come while the edge writes leave in one write, so
that how many messages a client read at once is told beside what they cost, at full and at half speed. The listeners are
a process of their own on bare sockets. CPU is that of the edge process alone. Latency is from before the batch's commit
(its fsync is in it) to the listener.

Beside it stands the least that it can cost, on the same machine in the same minute: a process that does nothing but
`transport.write` of one prebuilt frame of that size to as many sockets (`bench/bare_sockets.py`).

Some cases alone, which is how a long run is cut into pieces: `python -m bench fanout --cases same,market`.
"""

from __future__ import annotations

import http.client
import json
import mmap
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

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


CROWDS = (
    Case("same", "one filter for all", SHARED_ROWS, "150,000"),
    Case("market", "a filter each, rows shared by 20", MARKETS, "100,000"),
    Case("own", "a filter and a row each", CLIENTS),
)
TRANSPORTS = ("websocket", "sse", "longpoll", "webhook")
CASES = (*(case.filters for case in CROWDS), "stored", *TRANSPORTS, "stream")


def run(options: Options) -> Result:
    seconds = options.seconds / 3
    asked = options.cases or CASES
    if unknown := set(asked) - set(CASES):
        raise SystemExit(f"fanout has no case {', '.join(sorted(unknown))}; it has {', '.join(CASES)}")
    figures: list[Figure] = []
    for case in CROWDS:
        if case.filters in asked:
            figures += _crowd(options, seconds, case)
    if "stored" in asked:
        figures += _stored(options, seconds)
    figures += _transports(options, seconds, [kind for kind in TRANSPORTS if kind in asked])
    if "stream" in asked:
        figures += _stream(options, seconds)
    settings = {"seconds": round(seconds, 1), "clients": CLIENTS, "rows with one filter": SHARED_ROWS}
    return Result("fanout", figures, settings)


# The listeners


class Load(Protocol):
    """Who makes batches."""

    def commit(self, symbols: Sequence[int]) -> None: ...


class Heard(Protocol):
    """Who is listened to."""

    @property
    def pid(self) -> int: ...

    @property
    def port(self) -> int: ...


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
def listening(edge: Heard, kind: str, connections: int, filters: str, subscriptions: int = 1) -> Iterator[Crowd]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts"
        path.write_bytes(bytes(16))
        words = ["bench.listeners", str(edge.port), kind, str(connections), filters, str(subscriptions), str(path)]
        if kind == "webhook":
            words = ["bench.takers", str(edge.port), str(connections), str(path)]
        command = [sys.executable, "-m", *words]
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


def _flood(log: Load, crowd: Crowd, rows: int, each: int, seconds: float) -> None:
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


def _paced(log: Load, crowd: Crowd, rows: int, each: int, seconds: float, batches_s: float) -> None:
    """Batches at a fixed speed, whether the listeners have got them or not."""
    start, began, sent = crowd.counted[0], time.monotonic(), 0
    while (due := began + sent / batches_s) < began + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        log.commit(range(rows))
        sent += 1
    _until_counted(crowd, start + int(sent * each * 0.99))


def _measured(edge: Heard, crowd: Crowd, load: Callable[[], None]) -> tuple[dict[str, Any], float]:
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
            paced, at_half = _measured(edge, crowd, lambda: _paced(log, crowd, case.rows, CLIENTS, seconds, half))
    bare = _bare(found["bytes"] // found["messages"], min(3.0, seconds))
    last = paced["last_ms"] or (float("nan"), float("nan"))
    return [
        Figure(name, "messages per CPU-second", per_cpu, "messages/s", count=found["messages"], aim=case.aim),
        Figure(name, "the same of a bare loop of writes", bare, "messages/s"),
        Figure(name, "share of the bare loop", per_cpu / bare * 100, "%"),
        Figure(name, "messages that a client read at once", found["messages"] / found["reads"], "messages"),
        Figure(name, "the same at half speed", paced["messages"] / paced["reads"], "messages"),
        Figure(name, "messages per CPU-second at half speed", paced["messages"] / at_half, "messages/s"),
        Figure(name, "messages per second", per_s, "messages/s"),
        Figure(name, "listeners' own CPU", found["cpu_s"] / found["seconds"] * 100, "%"),
        Figure(name, "latency at half of that", paced["ms"][0], "ms", paced["ms"][1], paced["messages"]),
        Figure(name, f"change to the last of {CLIENTS}", last[0], "ms", last[1]),
        Figure(name, "memory per idle connection", each, "KiB"),
    ]


class _Bare:
    """A process that only writes, driven as a changelog is."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._lines = process.stdin
        self.pid, self.port = process.pid, int(process.stdout.readline())

    def commit(self, symbols: Sequence[int]) -> None:
        self._lines.write("\n")
        self._lines.flush()


def _bare(frame_bytes: int, seconds: float) -> float:
    """Messages per CPU-second of a loop that writes one prebuilt frame to all."""
    command = [sys.executable, "-m", "bench.bare_sockets", str(frame_bytes)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=server.ROOT, text=True, bufsize=1)
    try:
        bare = _Bare(process)
        with listening(bare, "websocket", CLIENTS, "same") as crowd:
            _flood(bare, crowd, 0, CLIENTS, 1.0)
            found, cpu = _measured(bare, crowd, lambda: _flood(bare, crowd, 0, CLIENTS, seconds))
    finally:
        process.kill()
        process.wait()
    return float(found["messages"] / cpu)


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


class _Door:
    """Posts events to the stream `ticks`, driven as a changelog is; what the edge does to take them is measured too."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def commit(self, symbols: Sequence[int]) -> None:
        made = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = {"price": 100.0, "volume": 1, "accepted": made}
        events = [event | {"symbol": f"s{number}", "market": f"m{number % MARKETS}"} for number in symbols]
        self._http.request("POST", "/streams/ticks", json.dumps(events), {"Content-Type": "application/json"})
        reply = self._http.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.read()!r}")
        reply.read()


def _stream(options: Options, seconds: float) -> list[Figure]:
    """Followers of a stream, each with a filter of its own: every batch of events is news to all of them."""
    name = f"{CLIENTS} followers of a stream, a filter each"
    options.note(f"fanout: {name}")
    with (
        server.data_folder(options.folder) as folder,
        server.edge("quotes", folder) as edge,
        listening(edge, "stream", CLIENTS, "market") as crowd,
    ):
        door = _Door(edge.port)
        _flood(door, crowd, MARKETS, CLIENTS, min(2.0, seconds))
        found, cpu = _measured(edge, crowd, lambda: _flood(door, crowd, MARKETS, CLIENTS, seconds))
    return [
        Figure(name, "messages per CPU-second", found["messages"] / cpu, "messages/s", count=found["messages"]),
        Figure(name, "messages per second", found["messages"] / found["seconds"], "messages/s"),
        Figure(name, "latency at full speed", found["ms"][0], "ms", found["ms"][1]),
    ]


def _transports(options: Options, seconds: float, kinds: Sequence[str]) -> list[Figure]:
    figures = []
    for kind in kinds:
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
    return figures
