"""How many events the door makes durable, per second and per CPU-second, beside a server that does nothing at all."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench import disk, server
from bench.options import Options
from bench.percentile import spread
from bench.results import Figure, Result, of_spread
from penstock.config import Folder
from penstock.log.log import CONTROL
from penstock.log.opening import open_reader

BATCH = 500
BATCH_CONNECTIONS = 8
ARROW_BATCH = 50_000
ARROW_CONNECTIONS = 3


@dataclass(frozen=True)
class Case:
    """One way of sending."""

    name: str
    connections: int
    events: int
    path: str = "/streams/readings"
    aim: str = ""
    form: str = "lines"
    half: bool = False
    """Also at half of the rate that it reaches."""


CASES = (
    Case("single events, 64 connections", 64, 1, form="json", half=True),
    Case("single events, 256 connections", 256, 1, aim="12,000 per CPU-second", form="json", half=True),
    Case("single events, unique ids", 256, 1, "/streams/unique", form="json"),
    Case(f"batches of {BATCH}", BATCH_CONNECTIONS, BATCH, aim="200,000"),
    Case(f"batches of {BATCH}, unique ids", BATCH_CONNECTIONS, BATCH, "/streams/unique"),
    Case(f"CSV of {BATCH}", BATCH_CONNECTIONS, BATCH, form="csv"),
    Case(f"Arrow of {ARROW_BATCH}", ARROW_CONNECTIONS, ARROW_BATCH, aim="1,000,000", form="arrow"),
    Case(f"Arrow of {ARROW_BATCH}, unique ids", ARROW_CONNECTIONS, ARROW_BATCH, "/streams/unique", form="arrow"),
)


def run(options: Options) -> Result:
    seconds = options.seconds / 3
    figures: list[Figure] = []
    embedded: dict[str, float] = {}
    with (
        server.data_folder(options.folder) as folder,
        server.edge("narrow", folder) as edge,
        bare() as (pid, port),
        bare("--protocol") as least,
    ):
        for number, case in enumerate(CASES, 1):
            options.note(f"ingest: {case.name}")
            first_id = number * 10**12
            ours = measured(case, edge.port, edge.pid, first_id, seconds)
            if case.half:
                figures += _at_half(
                    case, edge, least, first_id + 10**11, seconds, ours["requests"] / ours["seconds"] / 2
                )
            theirs = measured(case, port, pid, first_id, seconds)
            figures += _told(case, ours, theirs)
            embedded[case.name] = _per_cpu_s(case, ours)
    if "kafka" in options.logs:
        figures += _on_kafka(options, seconds, embedded)
    settings = {"seconds": round(seconds, 1), "batch connections": BATCH_CONNECTIONS}
    return Result("ingest", figures, settings)


def _per_cpu_s(case: Case, found: dict[str, Any]) -> float:
    return float(case.events * found["requests"] / found["server_cpu_s"])


def _on_kafka(options: Options, seconds: float, embedded: dict[str, float]) -> list[Figure]:
    """The same with a broker beside the edge: as it is made, and with records left in the broker's page cache."""
    figures: list[Figure] = []
    with (
        server.data_folder(options.folder, "kafka", "narrow") as folder,
        server.edge("narrow", folder) as edge,
    ):
        for flush, number in itertools.product(("every record fsynced", "from page cache"), range(len(CASES))):
            case = CASES[number]
            if case.path != "/streams/readings" or case.form == "csv":
                continue
            if flush == "from page cache" and not case.half:
                continue
            _flush(folder, always=flush != "from page cache")
            name = f"{case.name}, on Kafka, {flush}"
            options.note(f"ingest: {name}")
            ours = measured(case, edge.port, edge.pid, (20 + number) * 10**12, seconds)
            per_cpu = _per_cpu_s(case, ours)
            figures += [
                Figure(name, "durable", case.events * ours["requests"] / ours["seconds"], "events/s"),
                Figure(name, "durable per CPU-second of the edge", per_cpu, "events"),
                Figure(name, "to the embedded log, per CPU-second", per_cpu / embedded[case.name], "ratio", aim="0.7"),
                Figure(name, "reply", ours["p50_ms"], "ms", ours["p99_ms"], ours["requests"]),
            ]
            if case.half:
                rate = ours["requests"] / ours["seconds"] / 2
                half = measured(case, edge.port, edge.pid, (40 + number) * 10**12, seconds, rate)
                figures.append(
                    Figure(f"{name}, half of it", "reply", half["p50_ms"], "ms", half["p99_ms"], half["requests"])
                )
    return figures


def _flush(folder: Folder, *, always: bool) -> None:
    """Whether the broker fsyncs each record of the edge's topics; a start of the app would refuse it without."""
    from penstock.log.logs.kafka import parse
    from penstock.log.logs.kafka_cluster import Cluster

    where = parse(folder.edge_log)
    with contextlib.closing(open_reader(folder.edge_log)) as log, contextlib.closing(Cluster(where.servers)) as cluster:
        streams = [where.topic(stream.name, stream.epoch) for stream in log.streams() if stream.name != CONTROL]
        for topic in (where.journal, *streams):
            cluster.set_topic(topic, {"flush.messages": "1" if always else str(2**63 - 1)})


def measured(
    case: Case, port: int, pid: int, first_id: int, seconds: float, rate: float | None = None
) -> dict[str, Any]:
    """Hammer a server, or send at a rate; the client is a process of its own."""
    numbers = map(str, (port, pid, case.connections, case.events, first_id))
    command = [sys.executable, "-m", "bench.hammer", *numbers, case.path]
    command += ["--form", case.form, "--seconds", str(seconds), "--rate", str(rate or 0.0)]
    with server.started(command, subprocess.PIPE) as (process, _):
        output, _ = process.communicate(timeout=seconds + 60)
    text = output.decode()
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        raise RuntimeError(f"the client broke: {text[-2000:]}") from None
    if found["bad"] or not found["requests"]:
        raise RuntimeError(f"the server refused {found['bad']} requests, as: {found['first_bad']}")
    return found


def _told(case: Case, ours: dict[str, Any], theirs: dict[str, Any]) -> list[Figure]:
    rate, bare_rate = (case.events * each["requests"] / each["seconds"] for each in (ours, theirs))
    per_cpu, bare_per_cpu = (case.events * each["requests"] / each["server_cpu_s"] for each in (ours, theirs))
    return [
        Figure(case.name, "durable", rate, "events/s", aim=case.aim),
        Figure(case.name, "durable per CPU-second of the edge", per_cpu, "events"),
        Figure(case.name, "reply", ours["p50_ms"], "ms", ours["p99_ms"], ours["requests"]),
        Figure(case.name, "CPU of the edge", 100 * ours["server_cpu_s"] / ours["seconds"], "%"),
        Figure(case.name, "CPU of the client", 100 * ours["client_cpu_s"] / ours["seconds"], "%"),
        Figure(case.name, "bare aiohttp, no disk", bare_rate, "events/s"),
        Figure(case.name, "bare aiohttp per CPU-second", bare_per_cpu, "events"),
        Figure(case.name, "CPU of the client, bare", 100 * theirs["client_cpu_s"] / theirs["seconds"], "%"),
        Figure(case.name, "edge to bare, per CPU-second", per_cpu / bare_per_cpu, "ratio"),
    ]


def _at_half(
    case: Case, edge: server.Server, least: tuple[int, int], first_id: int, seconds: float, rate: float
) -> list[Figure]:
    """And what the machine, the client and the disk alone take for as many: a reply waits for a commit and a half."""
    name, stream = f"{case.name}, half of it", case.path.rpartition("/")[2]
    before = _written(edge, stream)
    found = measured(case, edge.port, edge.pid, first_id, seconds, rate)
    commits, size = (after - then for after, then in zip(_written(edge, stream), before, strict=True))
    pid, port = least
    nothing = measured(case, port, pid, first_id, seconds, rate)
    per_second, each = commits / found["whole_s"], size // commits + _AROUND_BYTES
    synced = disk.measured(edge.folder.root, per_second, each, seconds)
    return [
        Figure(name, "sent", rate, "events/s"),
        Figure(name, "reply", found["p50_ms"], "ms", found["p99_ms"], found["requests"], aim="p99 below 10"),
        Figure(name, "p99 of the median second", statistics.median(found["p99_by_second_ms"]), "ms"),
        Figure(name, "CPU of the edge", 100 * found["server_cpu_s"] / found["seconds"], "%"),
        Figure(name, "commits", per_second, "per second"),
        Figure(name, "reply of a bare protocol", nothing["p50_ms"], "ms", nothing["p99_ms"], nothing["requests"]),
        *of_spread(name, "write and fsync of such a commit alone", spread(synced), "ms"),
    ]


_AROUND_BYTES = 3 * 8192
"""What SQLite writes around a block: a page of each table that it is entered in."""


def _written(edge: server.Server, stream: str) -> tuple[int, int]:
    """Commits and bytes of a stream until now."""
    with contextlib.closing(open_reader(edge.folder.edge_log)) as log:
        found = log.find(stream)
        assert found is not None
        bounds = log.bounds(found)
        return bounds.next_commit, bounds.bytes


@contextlib.contextmanager
def bare(*options: str) -> Iterator[tuple[int, int]]:
    """The server that does nothing: its process and its port."""
    with server.started([sys.executable, "-m", "bench.bare", *options], subprocess.PIPE) as (process, _):
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if not line.strip().isdigit():
            raise RuntimeError(f"the bare server did not start: {line}{process.stdout.read().decode()[-2000:]}")
        yield process.pid, int(line)
