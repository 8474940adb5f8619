"""Many subscribers in one process of their own, on bare sockets, so that the edge's CPU is what is measured.

    python -m bench.listeners PORT websocket|sse|longpoll|stream CONNECTIONS same|market|own SUBSCRIPTIONS COUNTS_FILE

`stream` is a WebSocket on the stream `ticks`, the others are on the view. A message has a field `accepted`, the moment
when its batch was made: it is counted and timed by that, in whatever frame it comes. How many came and how many
connections have begun stands in COUNTS_FILE (two 8-byte numbers), for whoever paces the load. `forget` on stdin begins
anew, `report` prints JSON.
"""

from __future__ import annotations

import json
import mmap
import re
import resource
import select
import socket
import struct
import sys
import time
from calendar import timegm
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bench.percentile import spread

ACCEPTED = re.compile(rb'"accepted":"([0-9T:-]{19})\.(\d{3})Z"')
POSITION = re.compile(rb'"position":"([^"]+)"')
TAIL = 64
"""Bytes that may hold the beginning of a match."""
MOST_TIMES = 400_000
PATIENCE_S = 10.0
PING, PONG = b"\x89\x00", b"\x8a\x80" + bytes(4)
"""Of the edge, which leaves whoever does not answer."""
SAME = "volume >= 0"


class Listener:
    """One connection."""

    def __init__(self, kind: str, number: int, port: int, where: list[dict[str, Any]], counts: Counts) -> None:
        self._kind, self._counts = kind, counts
        self._tail = b""
        self._where = where
        self._since = b""
        self.begun = False
        self.socket = _connected(port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(self._hello())
        self.socket.setblocking(False)

    def _hello(self) -> bytes:
        query = urlencode({"where": self._where[0]["where"], "params": json.dumps(self._where[0]["params"])})
        if self._kind in ("websocket", "stream"):
            of = b"streams/ticks" if self._kind == "stream" else b"views/quotes"
            head = b"GET /%b/socket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n" % of
            head += (
                b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            asked = [{"type": "subscribe", "id": f"s{i}", **where} for i, where in enumerate(self._where)]
            return head + b"".join(_masked(json.dumps(each).encode()) for each in asked)
        path = f"/views/quotes/events?{query}" if self._kind == "sse" else f"/views/quotes?{query}"
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()

    def read(self, now: float) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError(f"the edge closed a {self._kind} connection")
        self._counts.bytes += len(data)
        self._counts.reads += 1
        if PING in data:
            self.socket.send(PONG)
        if self._kind == "longpoll":
            self._polled(data, now)
            return
        data = self._tail + data
        self._tail = data[max(self._times(data, now), len(data) - TAIL) :]
        if not self.begun and (b'"snapshot"' in data or self._kind == "stream"):
            self._begin()

    def _times(self, data: bytes, now: float) -> int:
        end = 0
        for found in ACCEPTED.finditer(data):
            end = found.end()
            self._counts.add(found[1], found[2], now)
        return end

    def _begin(self) -> None:
        self.begun = True
        self._counts.begun += 1

    def _polled(self, data: bytes, now: float) -> None:
        """Ask again from the position behind each whole reply."""
        self._tail += data
        head, found, body = self._tail.partition(b"\r\n\r\n")
        if not found:
            return
        status = head.split(b" ", 2)[1]
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1]) if status == b"200" else 0  # type: ignore[index]
        if len(body) < length:
            return
        self._tail = b""
        self._times(body[:length], now)
        if status == b"200":
            self._since = POSITION.findall(body[:length])[-1] if self.begun else POSITION.search(body)[1]  # type: ignore[index]
        if not self.begun:
            self._begin()
        query = urlencode({**_query(self._where[0]), "since": self._since.decode(), "wait": 30})
        self.socket.send(f"GET /views/quotes?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())


def _connected(port: int) -> socket.socket:
    """A connection; the edge may need a moment before it takes more."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _asked(filters: str, number: int) -> dict[str, Any]:
    """What one subscription asks: all the same, each another threshold on one of 50 markets, or each its own symbol."""
    if filters == "own":
        return {"where": "symbol = :s", "params": {"s": f"s{number}"}}
    if filters == "market":
        return {"where": "market = :m AND volume > :v", "params": {"m": f"m{number % 50}", "v": -number}}
    return {"where": SAME, "params": {}}


def _query(where: dict[str, Any]) -> dict[str, str]:
    return {"where": where["where"], "params": json.dumps(where["params"])}


def _masked(data: bytes) -> bytes:
    """A text frame of a client; its mask is zero."""
    size = bytes((0x80 | len(data),)) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data


class Counts:
    """What has come, and when."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:  # whoever paces the load has made it, and reads it already
            self._shared = mmap.mmap(file.fileno(), 16)
        self.total = self.begun = 0
        self._known: dict[bytes, float] = {}
        self.forget()

    def forget(self) -> None:
        self.messages = self.bytes = self.reads = 0
        self.times: list[float] = []
        self.last: dict[float, tuple[int, float]] = {}
        self.began, self.cpu = time.monotonic(), time.process_time()

    def add(self, second: bytes, milli: bytes, now: float) -> None:
        self.total += 1
        self.messages += 1
        made = self._seconds(second) + int(milli) / 1_000
        if len(self.times) < MOST_TIMES:
            self.times.append((now - made) * 1_000)
        self.last[made] = (self.last.get(made, (0, 0.0))[0] + 1, now)

    def _seconds(self, text: bytes) -> float:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = timegm(time.strptime(text.decode(), "%Y-%m-%dT%H:%M:%S"))
        return known

    def publish(self) -> None:
        struct.pack_into("<qq", self._shared, 0, self.total, self.begun)

    def report(self, connections: int) -> dict[str, Any]:
        took = time.monotonic() - self.began
        each, last = (
            spread(self.times),
            spread([(at - made) * 1_000 for made, (n, at) in self.last.items() if n >= connections]),
        )
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "reads": self.reads,
            "seconds": took,
            "cpu_s": time.process_time() - self.cpu,
            "ms": None if each is None else [each.p50, each.p99],
            "last_ms": None if last is None else [last.p50, last.p99],
        }


def main() -> None:
    port, kind, connections, filters, subscriptions, path = sys.argv[1:7]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    counts, poll = Counts(Path(path)), select.epoll()
    listeners: dict[int, Listener] = {}
    for number in range(int(connections)):
        first = number * int(subscriptions)
        wheres = [_asked(filters, first + i) for i in range(int(subscriptions))]
        listener = Listener(kind, number, int(port), wheres, counts)
        listeners[listener.socket.fileno()] = listener
        poll.register(listener.socket, select.EPOLLIN)
        _read(poll, listeners, counts, 0)
    poll.register(sys.stdin, select.EPOLLIN)
    while True:
        if _read(poll, listeners, counts, 1.0):
            line = sys.stdin.readline()
            if not line:
                return
            print(json.dumps(counts.report(int(connections))) if line.strip() == "report" else "{}", flush=True)
            if line.strip() == "forget":
                counts.forget()


def _read(poll: select.epoll, listeners: dict[int, Listener], counts: Counts, wait_s: float) -> bool:
    """Whether somebody asks on stdin."""
    asked = False
    for number, _ in poll.poll(wait_s):
        listener = listeners.get(number)
        if listener is None:
            asked = True
        else:
            listener.read(time.time())
    counts.publish()
    return asked


if __name__ == "__main__":
    main()
