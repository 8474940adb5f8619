"""Thousands of WebSocket clients, a few of which are stopped or read a byte a second: nobody else may notice.

    python -m tests.chaos.slow_readers --clients 2000
    python -m tests.chaos.slow_readers --clients 2000 --bytes 262144 --cut-s 25    # the same in 100 seconds

The edge, the readers, the crawling readers and two groups of stopped ones (SIGSTOP) are processes of their own. First
all read; then the slow ones stop, until the server has told each that it is behind. One stopped group goes on at once,
and must come to the present on the connection that it has. The other sleeps until it is cut, and must resume or be
reset.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pyarrow as pa

from penstock.change import OP, UPSERT, Column
from penstock.config import Folder, Limits
from penstock.log.builds import BatchMeta, Build, FlowState
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log
from penstock.sockets.pipe import WRITE_HIGH_BYTES

APP = Path(__file__).with_name("slow_app.py")
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("sent", pa.float64()), ("pad", pa.string())])
ROWS = 4
READY_S = 60.0


@dataclass(frozen=True)
class Play:
    """What is played."""

    clients: int = 2_000
    stopped: int = 20
    crawling: int = 20
    per_s: float = 2.5
    """Batches."""
    message_bytes: int = 8_000
    quiet_s: float = 10.0
    limits: Limits = field(default_factory=Limits)

    @property
    def slow(self) -> int:
        return self.stopped + self.crawling

    @property
    def bound_bytes(self) -> int:
        """What may wait in the edge: for a slow one the queue, the transport and a frame more in each, and for
        everybody else the message that is on its way."""
        each = self.limits.subscriber_bytes + WRITE_HIGH_BYTES + 3 * self.message_bytes
        return self.slow * each + (self.clients - self.slow) * self.message_bytes


@dataclass
class Findings:
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    """Before, and while the slow ones are slow."""
    unsent_bytes: float = 0
    rss_mib: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    slow: list[dict[str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Feed:
    """Writes the changelog as flows would, at a steady pace."""

    def __init__(self, folder: Folder, play: Play) -> None:
        folder.root.mkdir(parents=True, exist_ok=True)
        self.log = open_log(folder.flows_log, app="slow")
        spec = StreamSpec(
            "board", SCHEMA.append(pa.field(OP, pa.int8())), counts="commits", compact_by=("k",), epoch="e"
        )
        self.stream = self.log.create(spec)
        columns = (Column("k", "bigint"), Column("n", "bigint"), Column("sent", "double"), Column("pad", "string"))
        build = Build(epoch="e", fingerprint="f", kind="view", columns=columns, proof="exact", started_us=0)
        told = {"build/board": msgspec.to_builtins(build), "live/board": "e"}
        self.log.append([], told | {"flow/board": msgspec.to_builtins(FlowState(state="running"))})
        self.pad = "x" * (play.message_bytes // ROWS)
        self.n = 0

    def commit(self) -> None:
        self.n += 1
        rows = [{"k": k, "n": self.n, "sent": time.time(), "pad": self.pad, OP: UPSERT} for k in range(ROWS)]
        batch = pa.RecordBatch.from_pylist(rows, schema=self.stream.schema)
        meta = msgspec.to_builtins(BatchMeta(batch=self.n, start={}, end={}))
        self.log.append([Append(self.stream, batch, meta=meta)])

    async def run(self, per_s: float) -> None:
        while True:
            await asyncio.to_thread(self.commit)
            await asyncio.sleep(1 / per_s)


class Process:
    """A child that answers each line by a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *arguments: str) -> Process:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", *arguments]
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=2**24))

    async def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line.encode() + b"\n")
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), 60))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def stop(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Scrape:
    """The edge's metrics."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url, self._session = f"http://127.0.0.1:{port}/metrics", session

    async def __call__(self) -> dict[str, float]:
        async with self._session.get(self._url) as reply:
            lines = (await reply.text()).splitlines()
        totals: dict[str, float] = {}
        for line in lines:
            if found := re.match(r"(penstock_serve_\w+)(?:\{.*\})? (\S+)$", line):
                totals[found[1]] = totals.get(found[1], 0.0) + float(found[2])
        return totals

    async def until(self, name: str, least: float, within_s: float, seen: Any = None) -> bool:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            totals = await self()
            if seen is not None:
                seen(totals)
            if totals.get(name, 0.0) >= least:
                return True
            await asyncio.sleep(0.25)
        return False


async def play(what: Play, data: Path) -> Findings:
    found = Findings()
    async with AsyncExitStack() as stack:
        port = _free_port()
        folder = Folder(data)
        feed = Feed(folder, what)
        stack.callback(feed.log.close)
        feed.commit()
        edge = await Process.start("tests.chaos.slow_readers", "--edge", str(port), str(data), _limits(what.limits))
        stack.push_async_callback(edge.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        scrape = Scrape(port, session)
        await _ready(session, port)
        counts = [what.clients - what.slow, what.crawling, what.stopped // 2, what.stopped - what.stopped // 2]
        readers, crawling, waking, sleeping = children = [
            await Process.start("tests.chaos.slow_clients", str(port), str(count), *(["--small"] if number else []))
            for number, count in enumerate(counts)
        ]
        for child in children:
            stack.push_async_callback(child.stop)
        if not await scrape.until("penstock_serve_subscribers", what.clients, READY_S):
            found.wrong.append(f"not all have joined: {await scrape()}")
            return found
        feeding = asyncio.create_task(feed.run(what.per_s))
        try:
            await _measured(found, readers, edge, what.quiet_s)
            await _slow(what, found, scrape, edge, readers, crawling, waking, sleeping)
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        await _settled(found, children, feed.n)
        found.metrics = {k: v for k, v in (await scrape()).items() if k.endswith("_total")}
    _judge(what, found)
    return found


async def _measured(found: Findings, readers: Process, edge: Process, seconds: float) -> None:
    await readers.ask("mark")
    await asyncio.sleep(seconds)
    figures = await readers.ask("mark")
    found.p50.append(figures["p50"])
    found.p99.append(figures["p99"])
    found.rss_mib.append(_rss_mib(edge))


async def _slow(
    what: Play,
    found: Findings,
    scrape: Scrape,
    edge: Process,
    readers: Process,
    crawling: Process,
    waking: Process,
    sleeping: Process,
) -> None:
    await crawling.ask("crawl")
    for child in (waking, sleeping):
        child.signal(signal.SIGSTOP)

    def seen(totals: dict[str, float]) -> None:
        found.unsent_bytes = max(found.unsent_bytes, totals["penstock_serve_unsent_bytes"])

    await readers.ask("mark")
    fill_s = (what.limits.subscriber_bytes + 2**20) / (what.message_bytes * what.per_s)
    if not await scrape.until("penstock_serve_stalls_total", what.slow, 3 * fill_s + 30, seen):
        found.wrong.append("not every slow client was told that it is behind")
    waking.signal(signal.SIGCONT)
    left = what.slow - what.stopped // 2
    if not await scrape.until("penstock_serve_subscribers_cut_total", left, what.limits.subscriber_cut_s + 30, seen):
        found.wrong.append("not every client that stayed slow was cut")
    figures = await readers.ask("mark")
    found.p50.append(figures["p50"])
    found.p99.append(figures["p99"])
    found.rss_mib.append(_rss_mib(edge))
    sleeping.signal(signal.SIGCONT)
    await crawling.ask("read")


async def _settled(found: Findings, children: list[Process], n: int) -> None:
    """Everybody comes to the last batch, and has never seen half of one."""
    for number, child in enumerate(children):
        deadline, figures = time.monotonic() + 30, await child.ask("mark")
        while min(figures["n"]) < n and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            figures = await child.ask("mark")
        if min(figures["n"]) < n:
            found.wrong.append(f"process {number} is at {min(figures['n'])} of {n}")
        found.wrong += figures["wrong"]
        if number == 0:
            found.wrong += [f"a reader saw {seen}" for seen in figures["seen"] if set(seen) - _HEALTHY][:3]
        else:
            found.slow += figures["seen"]


_HEALTHY = {"snapshot", "changes", "position"}


def _judge(what: Play, found: Findings) -> None:
    if found.unsent_bytes > what.bound_bytes:
        found.wrong.append(f"{found.unsent_bytes:.0f} bytes waited, more than {what.bound_bytes}")
    for seen in found.slow:
        if not seen.get("stall") and not seen.get("connections"):
            found.wrong.append(f"a slow client was neither told nor cut: {seen}")


async def _ready(session: aiohttp.ClientSession, port: int) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/views/board") as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rss_mib(edge: Process) -> float:
    text = Path(f"/proc/{edge.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


def _limits(limits: Limits) -> str:
    return json.dumps({name: getattr(limits, name) for name in _SET})


_SET = ("subscriber_bytes", "subscriber_stall_s", "subscriber_cut_s")


def run_edge(port: int, data: Path, limits: str) -> None:
    """The edge as `penstock edge` runs it, with these limits."""
    from penstock.run import edge, security
    from tests.chaos.slow_app import app

    made = replace(Limits(), **json.loads(limits))
    security.Limits = lambda: made  # type: ignore[assignment, misc]
    edge.run(app.declared(), Folder(data), "127.0.0.1", port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2_000)
    parser.add_argument("--stopped", type=int, default=20)
    parser.add_argument("--crawling", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=Limits().subscriber_bytes, help="what may wait for a connection")
    parser.add_argument("--cut-s", type=float, default=Limits().subscriber_cut_s, help="and for how long")
    parser.add_argument("--edge", nargs=3)
    asked = parser.parse_args()
    if asked.edge:
        run_edge(int(asked.edge[0]), Path(asked.edge[1]), asked.edge[2])
        return
    limits = Limits(subscriber_bytes=asked.bytes, subscriber_cut_s=asked.cut_s)
    what = Play(asked.clients, asked.stopped, asked.crawling, limits=limits)
    with tempfile.TemporaryDirectory() as data:
        found = asyncio.run(play(what, Path(data) / "data"))
    ms = [f"{1000 * value:.1f}" for value in (*found.p50, *found.p99)]
    print(f"{what.clients} clients, {what.stopped} stopped, {what.crawling} at a byte a second")
    print(f"p50 before {ms[0]} ms, during {ms[1]} ms; p99 before {ms[2]} ms, during {ms[3]} ms")
    print(f"waiting at most {found.unsent_bytes / 2**20:.1f} MiB of {what.bound_bytes / 2**20:.1f} MiB")
    print(f"resident memory of the edge {found.rss_mib[0]:.0f} MiB before, {found.rss_mib[1]:.0f} MiB during")
    print({name: value for name, value in sorted(found.metrics.items()) if value and "serve" in name})
    ends: dict[str, int] = {}
    for seen in found.slow:
        for name in seen:
            ends[name] = ends.get(name, 0) + 1
    print(f"slow clients that saw: {ends}")
    print("wrong:", found.wrong or "nothing")
    os._exit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
