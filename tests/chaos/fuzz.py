"""Throws mutated requests at an edge and sees that it answers, forgets them and goes on.

    python -m tests.chaos.fuzz --requests 100000 --seed 1
    python -m tests.chaos.fuzz --seed 1 --only 4711            # one of them again, with the reply

1. No reply is a 500, and nothing is logged as an error of the server's.
2. Every connection ends within a deadline once our side has said that it sends no more.
3. The memory of the process does not grow beyond `GROWTH_BYTES`, measured without the pages of the log's file.
4. Afterwards a normal request is taken, and received = accepted + duplicates + dead, in `/metrics` and in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.chaos.fuzz_requests import Shot, shot

APP = Path(__file__).with_name("fuzz_app.py")
AT_ONCE = 48
END_S = 60.0
"""Longer than any wait that a request asks for."""
WHOLE_S, BROKEN_S = 10.0, 0.1
"""How long an answer is waited for before we say that nothing more comes: a broken request may get none."""
GROWTH_BYTES = 96 * 1024**2
"""Above what the process had after the first twentieth: bodies of 16 MiB are unpacked meanwhile, ids are remembered,
and the allocator gives nothing back at once."""
STREAMS = ("orders", "steps", "strict")
WHOLE = ("post", "get", "replay")
"""Attacks that are HTTP as it should be, whatever they ask for: each gets an answer."""


class Target:
    """An edge in a process of its own, without flows."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._log = (folder / "edge.log").open("wb")
        words = ["edge", APP, "--data", self._data, "--port", 0, "--parent", os.getpid()]
        command = [sys.executable, "-m", "penstock.cli.main", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        address = self._data / "run" / "edge.json"
        deadline = time.monotonic() + 60
        while not address.exists():
            assert self.process.poll() is None, "the edge did not start"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.port = int(json.loads(address.read_text())["port"])
        self.url = f"http://127.0.0.1:{self.port}"

    def bytes(self) -> int:
        """What the process holds of its own: pages of files, such as the log's, do not count."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]

    def get(self, path: str) -> bytes:
        with urlopen(self.url + path, timeout=30) as reply:
            return bytes(reply.read())

    def said(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text(errors="replace")

    def stop(self) -> int:
        """Ends it in order, and gives its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._log.close()


@dataclass
class Findings:
    """What was seen."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Of the process, after each twentieth and at the end."""
    seconds: float = 0.0

    def line(self) -> str:
        statuses = ", ".join(f"{status or 'closed'}: {count:,}" for status, count in sorted(self.statuses.items()))
        memory = " ".join(f"{size / 1024**2:.0f}" for size in self.memory)
        return f"{self.requests:,} requests in {self.seconds:.0f} s; {statuses}; memory in MiB: {memory}"


async def throw(port: int, one: Shot) -> bytes:
    """Send it, say that nothing more comes, and read until the server closes. Raises TimeoutError when it does not."""
    async with asyncio.timeout(END_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await _exchange(reader, writer, one)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one: Shot) -> bytes:
    reply = b""
    with suppress(OSError):
        for part in one.parts:
            writer.write(part)
            await writer.drain()
            if len(one.parts) > 1:
                await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(WHOLE_S if one.what in WHOLE else BROKEN_S):
                reply = await reader.read(65536)
        writer.write_eof()
        while part := await reader.read(65536):
            reply += part if len(reply) < 1_000_000 else b""
    return reply


def statuses(reply: bytes) -> list[int]:
    """Of every response on the connection; 0 for a connection that was closed without one."""
    return [int(found) for found in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", reply, re.M)] or [0]


async def _worker(target: Target, seed: int, numbers: Any, found: Findings, requests: int) -> None:
    for number in numbers:
        one = shot(seed, number)
        try:
            reply = await throw(target.port, one)
        except TimeoutError:
            found.wrong.append(f"request {number} ({one.what}): the connection did not end within {END_S:g} s")
            continue
        found.requests += 1
        seen = statuses(reply)
        found.statuses.update(seen)
        if any(status in (500, 501, 502) for status in seen):
            found.wrong.append(f"request {number} ({one.what}): {reply[:300]!r}")
        if seen == [0] and one.what in WHOLE:
            found.wrong.append(f"request {number} ({one.what}): no answer, though it was whole")
        if found.requests % max(1, requests // 20) == 0:
            found.memory.append(target.bytes())
        if len(found.wrong) > 20:
            return


async def fuzz(target: Target, requests: int, seed: int) -> Findings:
    """All of it; what is wrong is in `Findings.wrong`."""
    found = Findings()
    began = time.monotonic()
    numbers = iter(range(requests))
    await asyncio.gather(*(_worker(target, seed, numbers, found, requests) for _ in range(AT_ONCE)))
    found.seconds = time.monotonic() - began
    await asyncio.to_thread(reckon, target, found)
    return found


def reckon(target: Target, found: Findings) -> None:
    """What must hold when it is over."""
    found.memory.append(target.bytes())
    if found.memory[-1] - found.memory[0] > GROWTH_BYTES:
        found.wrong.append(f"memory grew from {found.memory[0]:,} to {found.memory[-1]:,} bytes")
    body = json.dumps([{"n": 1, "at": int(time.time() * 1000)}]).encode()
    with urlopen(
        Request(f"{target.url}/streams/strict", body, {"Content-Type": "application/json"}), timeout=60
    ) as reply:
        if json.load(reply)["accepted"] != 1:
            found.wrong.append("a normal request is not taken any more")
    found.wrong += [f"connections are still open: {held}" for held in [_connections(target)] if held > 2]
    deadline = time.monotonic() + END_S
    while (counts := _counts(target)) and time.monotonic() < deadline:  # ack=none may still be written
        time.sleep(0.2)
    found.wrong += counts
    found.wrong += _complaints(target.said())


def _complaints(log: str) -> list[str]:
    """Errors of the server's own that it has logged, a few of each kind; that nobody answers at a webhook's made-up
    address is none."""
    traces = [trace.strip().splitlines() for trace in log.split("Traceback (most recent call last):")[1:]]
    ends = Counter(next((line for line in trace if line and not line.startswith(" ")), "?") for trace in traces)
    failed = [line for line in log.splitlines() if "Failed " in line and " WebhookFailed " not in line]
    return [f"{count} times in the log: {end}" for end, count in ends.most_common(10)] + failed[:5]


def _connections(target: Target) -> int:
    """Sockets to clients that the process holds after a moment."""
    for _ in range(50):
        lines = Path(f"/proc/{target.process.pid}/net/tcp").read_text().splitlines()[1:]
        mine = [line.split() for line in lines if line.split()[1].endswith(f":{target.port:04X}")]
        held = [words for words in mine if words[3] in ("01", "08")]  # ESTABLISHED, CLOSE_WAIT
        if len(held) <= 2:
            break
        time.sleep(0.2)
    return len(held)


def _counts(target: Target) -> list[str]:
    metrics: Counter[tuple[str, str]] = Counter()
    for what, stream, value in re.findall(
        r'^penstock_collect_events_(\w+)_total\{stream="(\w+)",way="\w+"\} ([\d.e+]+)',
        target.get("/metrics").decode(),
        re.M,
    ):
        metrics[stream, what] += round(float(value))
    totals = {s["stream"]: s["totals"] for s in json.loads(target.get("/streams"))["streams"]}
    wrong = []
    for stream in STREAMS:
        seen = {what: metrics[stream, what] for what in ("received", "accepted", "duplicate", "dead", "shed")}
        if seen["received"] != seen["accepted"] + seen["duplicate"] + seen["dead"] + seen["shed"]:
            wrong.append(f"{stream}: received is not the sum of the rest: {seen}")
        log = totals[stream]
        pairs = [
            (seen["accepted"], log["accepted"]),
            (seen["duplicate"], log["duplicates"]),
            (seen["dead"], log["dead"]),
        ]
        if any(metric != logged for metric, logged in pairs):
            wrong.append(f"{stream}: the metrics say {seen}, the log {log}")
    if totals["dead"]["accepted"] != sum(totals[stream]["dead"] for stream in STREAMS):
        wrong.append(f"dead letters: {totals['dead']['accepted']} are stored")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one request")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder))
        try:
            if asked.only is not None:
                one = shot(asked.seed, asked.only)
                print(one.what, one.parts, asyncio.run(throw(target.port, one)), target.said(), sep="\n\n")
                return
            found = asyncio.run(fuzz(target, asked.requests, asked.seed))
            print(found.line())
        finally:
            code = target.stop()
        if code != 0:
            found.wrong.append(f"the edge ended with {code}")
    for wrong in found.wrong:
        print(f"WRONG: {wrong}")
    sys.exit(bool(found.wrong))


if __name__ == "__main__":
    main()
