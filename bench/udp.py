"""How many events per second arrive by UDP, what of them is lost and who lost it, at rising speeds."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from bench import processes, server
from bench.options import Options
from bench.results import Figure, Result

EVENT = b'{"id":%d,"sensor":"s%d","value":0.5}'
SETTLE_S = 3.0


@dataclass(frozen=True)
class Case:
    """`rate` is in datagrams per second; None: as fast as one process sends."""

    name: str
    rate: int | None
    events: int


CASES = (
    Case("10,000 datagrams/s", 10_000, 1),
    Case("30,000 datagrams/s", 30_000, 1),
    Case("flat out", None, 1),
    Case("flat out, 20 events in each", None, 20),
)


def run(options: Options) -> Result:
    seconds = options.seconds / 6
    figures: list[Figure] = []
    with server.data_folder(options.folder) as folder, server.edge("ways", folder) as edge:
        for case in CASES:
            options.note(f"udp: {case.name}")
            figures += _measured(case, edge, seconds)
    return Result("udp", figures, {"seconds": round(seconds, 1)})


def _measured(case: Case, edge: server.Server, seconds: float) -> list[Figure]:
    before, cpu_s = _totals(edge), processes.cpu_s(edge.pid)
    sent, took_s = _send(case, before["port"], seconds)
    after = _settled(edge)
    cpu_s = processes.cpu_s(edge.pid) - cpu_s
    accepted, shed, lost = (after[name] - before[name] for name in ("accepted", "shed", "kernel_drops"))
    return [
        Figure(case.name, "sent", sent / took_s, "events/s"),
        Figure(case.name, "taken", accepted / took_s, "events/s"),
        Figure(case.name, "taken per CPU-second of the edge", accepted / cpu_s, "events"),
        Figure(case.name, "shed by the edge", 100 * shed / sent, "%"),
        Figure(case.name, "dropped by the kernel", 100 * lost * case.events / sent, "%"),
        Figure(case.name, "not accounted for", sent - accepted - shed - lost * case.events, "events"),
    ]


def _send(case: Case, port: int, seconds: float) -> tuple[int, float]:
    """Events sent, and in how many seconds."""
    sent, began = 0, time.perf_counter()
    data = b"\n".join(EVENT % (number, number % 1_000) for number in range(case.events))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(("127.0.0.1", port))
        while (passed := time.perf_counter() - began) < seconds:
            if case.rate is not None and sent > passed * case.rate:
                time.sleep(0.0005)
                continue
            for _ in range(20):
                made.send(data)
                sent += 1
    return sent * case.events, time.perf_counter() - began


def _settled(edge: server.Server) -> dict[str, int]:
    """The totals, once they stand still."""
    seen: dict[str, int] = {}
    while (now := _totals(edge)) != seen:
        seen = now
        time.sleep(SETTLE_S)
    return now


def _totals(edge: server.Server) -> dict[str, int]:
    status = server.get(edge.port, "/status")
    (udp,) = status["udp"]
    totals = next(s["totals"] for s in status["streams"] if s["stream"] == "readings")
    return {**totals, "kernel_drops": udp["kernel_drops"] or 0, "port": udp["port"]}
