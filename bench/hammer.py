"""Posts as fast as a server answers, over many connections, from a process of its own and with hardly any work.

Each connection sends its next request when it has the reply to the last, or, at a given rate, when it is due: then what
is late counts from when it should have been sent. It reads the server's CPU time itself, at the
beginning and at the end of what it measures, so that both cover the same requests, and prints what it found as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import uvloop

from bench import processes
from bench.bodies import FORMS, bodies
from bench.percentile import spread

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass
class Tally:
    """Replies within the time that is measured."""

    measuring: bool = False
    over: bool = False
    good: int = 0
    bad: int = 0
    first_bad: str = ""
    latency_ms: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    """When each of them was sent, or should have been."""


class Connection(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self, request: Callable[[], bytes], tally: Tally, every_s: float = 0.0, first_s: float = 0.0) -> None:
        """`every_s` apart, from `first_s` after it is connected on; 0: as fast as it is answered."""
        self._request = request
        self._tally = tally
        self._every_s, self._due = every_s, first_s
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._began = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._every_s:
            self._due += time.perf_counter()
        self._next()

    def _next(self) -> None:
        wait_s = self._due - time.perf_counter() if self._every_s else 0.0
        if wait_s > 0:
            self._loop.call_later(wait_s, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if self._tally.over:
            self._transport.close()
            return
        self._began = self._due if self._every_s else time.perf_counter()
        self._due += self._every_s
        self._transport.write(self._request())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._buffer, 0, head)
        if length is None or len(self._buffer) < head + 4 + int(length[1]):
            return
        self._count()
        self._buffer = b""
        self._next()

    def _count(self) -> None:
        if not self._tally.measuring:
            return
        if self._buffer.startswith(b"HTTP/1.1 200"):
            self._tally.good += 1
            self._tally.latency_ms.append((time.perf_counter() - self._began) * 1000)
            self._tally.sent_s.append(self._began)
        else:
            self._tally.bad += 1
            self._tally.first_bad = self._tally.first_bad or self._buffer[-300:].decode(errors="replace")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def hammer(asked: argparse.Namespace) -> dict[str, float | str | list[float]]:
    tally = Tally()
    made = bodies(asked.form, asked.events, time.time_ns() // 1_000_000, asked.first_id)
    request = _requests(asked.path, FORMS[asked.form], made.body)
    loop = asyncio.get_running_loop()
    local = (asked.from_address, 0) if asked.from_address else None
    every_s = asked.connections / asked.rate if asked.rate else 0.0
    connected = [
        await loop.create_connection(
            lambda first_s=every_s * number / asked.connections: Connection(request, tally, every_s, first_s),
            "127.0.0.1",
            asked.port,
            local_addr=local,
        )
        for number in range(asked.connections)
    ]
    whole = time.perf_counter()
    await asyncio.sleep(asked.warm)
    tally.measuring = True
    began, own, theirs = time.perf_counter(), time.process_time(), processes.cpu_s(asked.pid)
    await asyncio.sleep(asked.seconds)
    tally.measuring = False
    seconds, own = time.perf_counter() - began, time.process_time() - own
    theirs = processes.cpu_s(asked.pid) - theirs
    tally.over = True
    await asyncio.wait_for(asyncio.gather(*(connection.done for _, connection in connected)), 30)
    latency = spread(tally.latency_ms)
    return {
        "requests": tally.good,
        "bad": tally.bad,
        "first_bad": tally.first_bad,
        "seconds": seconds,
        "whole_s": time.perf_counter() - whole,
        "client_cpu_s": own,
        "server_cpu_s": theirs,
        "p50_ms": latency.p50 if latency else 0.0,
        "p99_ms": latency.p99 if latency else 0.0,
        "p99_by_second_ms": _by_second(tally),
    }


def _by_second(tally: Tally) -> list[float]:
    """The p99 of each second: what one pause of the disk or of the machine did is told from what always happens."""
    seconds: dict[int, list[float]] = {}
    for at, took_ms in zip(tally.sent_s, tally.latency_ms, strict=True):
        seconds.setdefault(int(at - tally.sent_s[0]), []).append(took_ms)
    return [spread(found).p99 for _, found in sorted(seconds.items())]


def _requests(path: str, kind: str, body: Callable[[], bytes]) -> Callable[[], bytes]:
    size = str(len(body())).encode()
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: %s\r\n\r\n"
    filled = head % (path.encode(), kind.encode(), size)
    return lambda: filled + body()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "pid", "connections", "events", "first_id"):
        parser.add_argument(name, type=int)
    parser.add_argument("path")
    parser.add_argument("--form", choices=FORMS, default="lines")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second in all; 0: as fast as answered")
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--from", dest="from_address", help="the address to send from: another is another account")
    print(json.dumps(uvloop.run(hammer(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
