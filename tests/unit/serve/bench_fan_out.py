"""Measures what one batch to many subscribers costs the edge; run it by hand.

    PYTHONPATH=tests/unit/views python tests/unit/serve/bench_fan_out.py

The clients live in another process and only read, so that the CPU time is the edge's own.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from edge import eventually, flows_and_edge
from fake_flows import topic

CLIENTS, BATCHES, ROWS = 1_000, 50, 20

_CLIENT = r"""
import asyncio, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
request = (b"GET /views/topics/socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
subscribe = b'{"type":"subscribe","id":"s"}'
class Reader(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(request + bytes((0x81, 0x80 | len(subscribe))) + bytes(4) + subscribe)
async def main():
    loop = asyncio.get_running_loop()
    for _ in range(count):
        await loop.create_connection(Reader, "127.0.0.1", port)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


async def main() -> None:
    with tempfile.TemporaryDirectory() as path:
        async with flows_and_edge(Path(path)) as (flows, running):
            stream = flows.build()
            flows.commit(stream, [topic(f"t{i}", i) for i in range(ROWS)])
            await running.at_offset(1)
            arguments = [sys.executable, "-c", _CLIENT, str(running.server.port), str(CLIENTS)]
            clients = await asyncio.create_subprocess_exec(*arguments)
            try:
                joined = running.serving.hub._subscribers_by_view
                await eventually(lambda: joined().get(("topics",)) == CLIENTS, "joined")
                cpu, began = time.process_time(), time.perf_counter()
                for number in range(BATCHES):
                    rows = [topic(f"t{i}", number * 100 + i + 1) for i in range(ROWS)]
                    await asyncio.to_thread(flows.commit, stream, rows)
                sent = lambda: running.observer.value("penstock_serve_messages_total", view="topics")  # noqa: E731
                await eventually(lambda: sent() >= CLIENTS * BATCHES, "sent")
                spent, took = time.process_time() - cpu, time.perf_counter() - began
                total = CLIENTS * BATCHES
                print(
                    f"{total} messages of {ROWS} rows: {spent:.2f} CPU s, {took:.2f} s, {total / spent:.0f} per CPU s"
                )
                print(
                    "cut:",
                    running.observer.value(
                        "penstock_serve_subscribers_cut_total", transport="websocket", policy="conflate"
                    ),
                )
            finally:
                clients.kill()
                await clients.wait()


if __name__ == "__main__":
    uvloop.run(main())
