"""What a crowd costs: memory of idle connections, and what slow senders and a flooding one do to a normal producer.

The normal producer sends one event after the other over four connections. A slow sender has begun a large body and
brings a little of it now and then, a thousand of them together 1 MB/s. The flood is another account: batches of 2,000
events over 32 connections, as fast as they are answered.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvloop

from bench import processes, server
from bench.ingest import Case, measured
from bench.options import Options
from bench.results import Figure, Result

IDLE = 5_000
SLOW = 1_000
SLOW_BYTES_S = 1_000
"""What each of them brings."""
BODY_BYTES = 1_000_000
FLOOD_EVENTS = 2_000
FIRST_ID = 10**12
"""Ids of one length: the client sends all bodies with one head."""
NORMAL = Case("a normal producer", 4, 1)
_HEAD = (
    b"POST /streams/readings HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
)


def run(options: Options) -> Result:
    seconds = options.seconds / 4
    with server.data_folder(options.folder) as folder, server.edge("narrow", folder) as edge:
        figures = uvloop.run(_all(options, edge, seconds))
    return Result("crowd", figures, {"seconds": round(seconds, 1)})


async def _all(options: Options, edge: server.Server, seconds: float) -> list[Figure]:
    options.note("crowd: idle connections")
    figures = await _idle(edge)
    await _normal(edge, 1.0)  # warm
    options.note("crowd: a normal producer alone")
    alone = await _normal(edge, seconds)
    options.note(f"crowd: the same beside {SLOW} slow senders")
    async with _slow(edge) as slow:
        crowded = await _normal(edge, seconds)
        still = sum(not task.done() for task in slow)
        for task in slow:
            if task.done() and task.exception() is not None:
                options.note(f"crowd: a slow sender failed: {task.exception()!r}")
                break
    options.note("crowd: the same beside a flood")
    flood = _flooding(edge, seconds + 4)
    await asyncio.sleep(2.0)
    flooded = await _normal(edge, seconds)
    output, _ = await asyncio.to_thread(flood.communicate)
    sent = json.loads(output)
    for name, found in (("alone", alone), (f"beside {still} slow senders", crowded), ("beside a flood", flooded)):
        figures.append(Figure(name, "reply", found["p50_ms"], "ms", found["p99_ms"], found["requests"]))
    figures += [
        Figure("slow senders", "p99 against alone", crowded["p99_ms"] / alone["p99_ms"], "ratio", aim="2"),
        Figure("flood", "p99 against alone", flooded["p99_ms"] / alone["p99_ms"], "ratio"),
        Figure("flood", "taken of it", sent["requests"] * FLOOD_EVENTS / sent["seconds"], "events/s"),
    ]
    return figures


async def _idle(edge: server.Server) -> list[Figure]:
    before, _ = processes.memory_mib(edge.pid)
    held = []
    for _ in range(IDLE // 100):
        held += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", edge.port) for _ in range(100)))
    await asyncio.sleep(1.0)
    after, _ = processes.memory_mib(edge.pid)
    for _, writer in held:
        writer.close()
    await asyncio.sleep(1.0)
    each = (after - before) * 1024 / IDLE
    return [
        Figure(f"{IDLE} idle connections", "resident memory", after, "MiB"),
        Figure(f"{IDLE} idle connections", "each", each, "KiB"),
    ]


async def _normal(edge: server.Server, seconds: float) -> dict[str, Any]:
    return await asyncio.to_thread(measured, NORMAL, edge.port, edge.pid, FIRST_ID, seconds)


@asynccontextmanager
async def _slow(edge: server.Server) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(_trickle(edge.port, number)) for number in range(SLOW)]
    await asyncio.sleep(3.0)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _trickle(port: int, number: int) -> None:
    await asyncio.sleep(number / SLOW)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(_HEAD % BODY_BYTES)
        while not writer.is_closing():
            writer.write(b" " * SLOW_BYTES_S)
            await writer.drain()
            await asyncio.sleep(1.0)


def _flooding(edge: server.Server, seconds: float) -> subprocess.Popen[bytes]:
    """Another address, and so another account."""
    numbers = map(str, (edge.port, edge.pid, 32, FLOOD_EVENTS, 2 * FIRST_ID))
    command = [sys.executable, "-m", "bench.hammer", *numbers, "/streams/readings"]
    options = ["--seconds", str(seconds), "--warm", "0.1", "--from", "127.0.0.2"]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, cwd=server.ROOT)
