"""Many endpoints of webhooks in one process of their own, so that the edge's CPU is what is measured.

    python -m bench.takers PORT WEBHOOKS COUNTS_FILE

It makes the webhooks on the edge at PORT (shape `batch`, each with a path of its own) and answers 200 to everything. It
counts, times and reports as `bench.listeners` does, so that a crowd of webhooks can stand beside one of sockets: the
same numbers in COUNTS_FILE, `forget` and `report` on stdin. A webhook has begun when it was made.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
import urllib.request
from pathlib import Path

from bench.listeners import ACCEPTED, SAME, Counts

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Taker(asyncio.Protocol):
    """One connection of the edge: a request at a time, each answered when it is whole."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._counts.bytes += len(data)
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._data = b""
        self._transport.write(_OK)
        if (made := ACCEPTED.search(body)) is not None:
            self._counts.add(made[1], made[2], time.time())
            self._counts.publish()


def leave(edge: int, port: int, number: int) -> None:
    """A webhook on the edge that comes here."""
    body = {"url": f"http://127.0.0.1:{port}/{number}", "view": "quotes", "shape": "batch", "where": SAME}
    request = urllib.request.Request(
        f"http://127.0.0.1:{edge}/webhooks", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=30).close()


async def serve(edge: int, webhooks: int, counts: Counts) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Taker(counts), "127.0.0.1", 0, backlog=1_024)
    port = server.sockets[0].getsockname()[1]
    for number in range(webhooks):
        await asyncio.to_thread(leave, edge, port, number)
        counts.begun += 1
        counts.publish()
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        print(json.dumps(counts.report(webhooks)) if line == "report" else "{}", flush=True)
        if line == "forget":
            counts.forget()


def main() -> None:
    edge, webhooks, path = sys.argv[1:4]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(serve(int(edge), int(webhooks), Counts(Path(path))))


if __name__ == "__main__":
    main()
