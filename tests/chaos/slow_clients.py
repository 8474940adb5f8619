"""Many WebSocket clients in a process of their own, which can be stopped as a whole or made to read a byte a second.

    python -m tests.chaos.slow_clients PORT COUNT [--small]

Commands come as lines on stdin, and each is answered by a line of JSON: `mark` (figures since the last mark), `crawl`
(a byte a second), `read` (as fast as it comes).
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import uvloop

RECEIVE_BYTES = 16 * 1024
"""SO_RCVBUF: what the client's kernel takes must not hide that nobody reads."""
REQUEST = (
    b"GET /views/board/socket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

# Thousands of clients share one process: they look for what they need instead of reading all of a message.
_KIND = re.compile(rb'"type":"(\w+)"')
_POSITION = re.compile(rb'"position":"([^"]+)"')
_ROW = re.compile(rb'"k":(\d+),"n":(\d+)')
_SENT = re.compile(rb'"sent":([\d.]+)')


class Client:
    """One subscriber: it checks every message, and resumes when it is cut."""

    def __init__(self, port: int, small: bool) -> None:
        """`small`: its kernel takes little that it has not read."""
        self.port, self.small = port, small
        self.crawling = False
        self.rows: dict[int, int] = {}
        self.position: str | None = None
        self.seen: Counter[str] = Counter()
        self.latencies: list[float] = []
        self.wrong: list[str] = []
        self._buffer, self._pongs = bytearray(), bytearray()

    async def live(self) -> None:
        while True:
            raw = socket.socket()
            if self.small:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            raw.setblocking(False)
            with suppress(OSError), raw:
                await self._read(raw)
            self.seen["connections"] += 1
            await asyncio.sleep(0.2)

    async def _read(self, raw: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", self.port))
        body = json.dumps({"type": "subscribe", "id": "s", "since": self.position}).encode()
        head = (
            bytes((0x81, 0x80 | len(body))) if len(body) < 126 else bytes((0x81, 0xFE)) + len(body).to_bytes(2, "big")
        )
        await loop.sock_sendall(raw, REQUEST + head + bytes(4) + body)
        self._buffer.clear()
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await loop.sock_recv(raw, 4096) or _gone()
        del self._buffer[: self._buffer.index(b"\r\n\r\n") + 4]
        while True:
            self._parse()
            if self._pongs:
                await loop.sock_sendall(raw, bytes(self._pongs))
                self._pongs.clear()
            if self.crawling:
                await asyncio.sleep(1)
            self._buffer += await loop.sock_recv(raw, 1 if self.crawling else 262_144) or _gone()

    def _parse(self) -> None:
        at, buffer = 0, self._buffer
        while len(buffer) - at >= 2:
            length, start = buffer[at + 1], at + 2
            if len(buffer) < at + (10 if length == 127 else 4 if length == 126 else 2):
                break
            if length == 126:
                length, start = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
            elif length == 127:
                length, start = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
            if len(buffer) < start + length:
                break
            self._take(buffer[at] & 0x0F, bytes(buffer[start : start + length]))
            at = start + length
        del buffer[:at]

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == 0x8:
            self.seen[f"close {int.from_bytes(payload[:2], 'big')}"] += 1
            raise ConnectionResetError
        if opcode == 0x9:
            self._pongs += bytes((0x8A, 0x80 | len(payload))) + bytes(4) + payload
        if opcode != 0x1:
            return
        now, kind = time.time(), _KIND.search(payload)
        assert kind is not None
        self.seen[kind[1].decode()] += 1
        self.rows.update((int(k), int(n)) for k, n in _ROW.findall(payload))
        if kind[1] == b"changes" and (sent := _SENT.search(payload)):
            self.latencies.append(now - float(sent[1]))
        if len(set(self.rows.values())) > 1:
            self.wrong.append(f"half a batch: {self.rows}")
        if position := _POSITION.search(payload):
            self.position = position[1].decode()


def _gone() -> bytes:
    raise ConnectionResetError("the server has ended it")


def figures(clients: list[Client]) -> dict[str, Any]:
    latencies = sorted(latency for client in clients for latency in client.latencies)
    for client in clients:
        client.latencies.clear()
    at = lambda share: latencies[min(len(latencies) - 1, int(len(latencies) * share))] if latencies else None  # noqa: E731
    seen = [dict(client.seen) for client in clients]
    wrong = [text for client in clients for text in client.wrong]
    facts = {"p50": at(0.5), "p99": at(0.99), "messages": len(latencies), "wrong": wrong[:3]}
    return facts | {"n": [max(client.rows.values(), default=-1) for client in clients], "seen": seen}


async def main() -> None:
    port, count, small = int(sys.argv[1]), int(sys.argv[2]), "--small" in sys.argv
    clients = [Client(port, small) for _ in range(count)]
    tasks = []
    for number, client in enumerate(clients):
        tasks.append(asyncio.create_task(client.live()))
        if number % 100 == 99:
            await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if line in ("crawl", "read"):
            for client in clients:
                client.crawling = line == "crawl"
        print(json.dumps(figures(clients) if line == "mark" else {}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    uvloop.run(main())
