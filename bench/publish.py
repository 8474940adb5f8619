"""How many messages per second a publishing WebSocket acknowledges, each when its events are on the disk."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

import aiohttp
import uvloop

from bench import processes, server
from bench.options import Options
from bench.percentile import spread
from bench.results import Figure, Result

EVENT = '{"id":%d,"sensor":"s%d","value":0.5}'


@dataclass(frozen=True)
class Case:
    """`window`: messages that one socket has under way."""

    name: str
    sockets: int
    window: int
    events: int


CASES = (
    Case("1 socket, one message at a time", 1, 1, 1),
    Case("1 socket, window of 256", 1, 256, 1),
    Case("16 sockets, window of 64", 16, 64, 1),
    Case("8 sockets, 50 events in each message", 8, 32, 50),
)


@dataclass
class Tally:
    until_s: float
    acked: int = 0

    def __post_init__(self) -> None:
        self.latency_ms: list[float] = []


def run(options: Options) -> Result:
    seconds = options.seconds / 6
    figures: list[Figure] = []
    with server.data_folder(options.folder) as folder, server.edge("ways", folder) as edge:
        for case in CASES:
            options.note(f"publish: {case.name}")
            figures += uvloop.run(_measured(case, edge, seconds))
    return Result("publish", figures, {"seconds": round(seconds, 1)})


async def _measured(case: Case, edge: server.Server, seconds: float) -> list[Figure]:
    tally = Tally(time.perf_counter() + seconds)
    cpu_s, own_s = processes.cpu_s(edge.pid), time.process_time()
    began = time.perf_counter()
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(_publish(session, edge, case, tally) for _ in range(case.sockets)))
    took_s = time.perf_counter() - began
    cpu_s, own_s = processes.cpu_s(edge.pid) - cpu_s, time.process_time() - own_s
    found = spread(tally.latency_ms)
    assert found is not None
    return [
        Figure(case.name, "durable", tally.acked * case.events / took_s, "events/s"),
        Figure(case.name, "durable per CPU-second of the edge", tally.acked * case.events / cpu_s, "events"),
        Figure(case.name, "ack", found.p50, "ms", found.p99, found.count),
        Figure(case.name, "CPU of the client", 100 * own_s / took_s, "%"),
    ]


async def _publish(session: aiohttp.ClientSession, edge: server.Server, case: Case, tally: Tally) -> None:
    events = ",".join(EVENT % (number, number % 1_000) for number in range(case.events))
    sent: deque[float] = deque()
    number = 0
    async with session.ws_connect(f"{edge.url}/streams/readings/publish", compress=0) as socket:
        await socket.receive()
        while sent or time.perf_counter() < tally.until_s:
            while len(sent) < case.window and time.perf_counter() < tally.until_s:
                sent.append(time.perf_counter())
                await socket.send_str(f'{{"type":"publish","id":{number},"events":[{events}]}}')
                number += 1
            answer = await socket.receive()
            if not isinstance(answer.data, str) or not answer.data.startswith('{"type":"ack"'):
                raise RuntimeError(f"no ack but {answer}")
            tally.acked += 1
            tally.latency_ms.append((time.perf_counter() - sent.popleft()) * 1000)
