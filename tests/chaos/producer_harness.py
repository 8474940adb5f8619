"""Kills a producer and an edge, and breaks the network between them, at seeded moments; then counts every event.

    python -m tests.chaos.producer_harness --rounds 50 --seed 1
    python -m tests.chaos.producer_harness --rounds 50 --seed 1 --spark     (and the view's count; verify)
    python -m tests.chaos.producer_harness --rounds 50 --seed 1 --node      (the producer of `client/`)

The stream has no `id=`. Every event that `send` returned for, and so every event whose handle told a success, is in the
stream exactly once, and no other event is there twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from tests.chaos.proxy import FAULTS, Proxy
from tests.running import Running

HERE = Path(__file__).parent
LIFE = 1_000_000
"""Events of one life of the producer are numbered from a multiple of this."""
PATIENCE_S = 60.0
PYTHON = (sys.executable, "-m", "tests.chaos.producer_child")
NODE = ("node", str(HERE.parents[1] / "client" / "scripts" / "chaos-child.mjs"))
CHOICES = ("half_open", "producer", "cut_reply", "edge", "stall", "both", *FAULTS, "edge", "producer")
"""The order of the first rounds; beyond them the seed chooses."""


@dataclass
class Findings:
    """What the producers' callers were told, and what was done to them."""

    stored: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    rounds: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    events: int = 0


class EdgeAlone:
    """`penstock edge` as a process of its own, on the same port in each of its lives."""

    def __init__(self, data: Path) -> None:
        self.data, self.port = data, 0
        self._process: asyncio.subprocess.Process | None = None
        data.mkdir(parents=True, exist_ok=True)

    async def start(self) -> None:
        address = self.data / "run" / "edge.json"
        address.unlink(missing_ok=True)
        words = ["edge", HERE / "door_app.py", "--data", self.data, "--port", self.port, "--parent", os.getpid()]
        command = [sys.executable, "-m", "penstock.cli.main", *map(str, words)]
        with (self.data.parent / "edge.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        await until(lambda: address.exists() and self._alive(), "the edge to listen")
        self.port = json.loads(address.read_text())["port"]

    def _alive(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, (self.data.parent / "edge.log").read_text()[-3000:]
        return True

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        await self.kill()


class WholeApp:
    """`penstock run` with a view; its supervisor starts a killed edge again."""

    def __init__(self, data: Path) -> None:
        data.parent.mkdir(parents=True, exist_ok=True)
        self._running = Running(HERE / "counted_app.py", data)

    @property
    def port(self) -> int:
        return self._running.port

    async def start(self) -> None:
        if self._running.process is None:
            await asyncio.to_thread(self._running.start)

    async def kill(self) -> None:
        pid = self._running.pid("edge")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    async def check_view(self, found: Findings) -> None:
        """The view's count is that of the stream, once it has absorbed all of it."""
        deadline, count = time.monotonic() + PATIENCE_S, 0
        while count != found.events and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            rows = (await asyncio.to_thread(self._running.json, "/views/parts")).get("rows", [])
            count = sum(row["events"] for row in rows)
        if count != found.events:
            found.wrong.append(f"the view counts {count} events, the stream has {found.events}")

    async def stop(self) -> None:
        await asyncio.to_thread(self._running.stop)

    def verify(self) -> int:
        words = ["verify", self._running.app, "--data", self._running.data]
        return subprocess.run([sys.executable, "-m", "penstock.cli.main", *map(str, words)], check=False).returncode


class Sending:
    """The producer's process in all its lives, and what it said."""

    def __init__(self, program: Sequence[str], url: str, folder: Path, found: Findings) -> None:
        self._program, self._url, self._folder, self._found = program, url, folder, found
        self._lives = 0
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]
        self.is_open = self.drained = False

    async def start(self) -> None:
        self.is_open = self.drained = False
        words = [*self._program, self._url, self._folder, self._lives * LIFE]
        self._lives += 1
        with (self._folder.parent / "producer.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=log
            )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while (line := await self._process.stdout.readline()).endswith(b"\n"):
            word, n, *rest = line.decode().split(maxsplit=2)
            match word:
                case "stored":
                    self._found.stored.add(int(n))
                case "taken":
                    self._found.taken.add(int(n))
                case "failed":
                    self._found.failed.append(f"{n}: {rest}")
                case "open":
                    self.is_open = True
                case "drained":
                    self.drained = True

    async def kill(self) -> None:
        self._process.kill()
        await self._reading
        await self._process.wait()

    async def finish(self) -> None:
        await until(lambda: self.is_open, "the producer to open its folder")
        self._process.terminate()
        await asyncio.wait_for(self._reading, PATIENCE_S + 5)
        await self._process.wait()


async def play(rounds: int, seed: int, folder: Path, spark: bool = False, node: bool = False) -> Findings:
    """The given number of rounds, then peace, then the reckoning."""
    random, found = Random(seed), Findings()
    server = WholeApp(folder / "data") if spark else EdgeAlone(folder / "data")
    await server.start()
    try:
        async with Proxy(server.port, random) as proxy:
            sending = Sending(NODE if node else PYTHON, proxy.url, folder / "outbox", found)
            await sending.start()
            for number in range(rounds):
                await one_round(random, CHOICES[number] if number < len(CHOICES) else "", server, proxy, sending, found)
            await sending.finish()
            if not sending.drained:
                found.wrong.append("the producer did not get rid of everything in peace")
        await reckon(server, found)
        if isinstance(server, WholeApp):
            await server.check_view(found)
    finally:
        await server.stop()
    if isinstance(server, WholeApp) and await asyncio.to_thread(server.verify):
        found.wrong.append("verify is not clean")
    return found


async def one_round(
    random: Random, fault: str, server: EdgeAlone | WholeApp, proxy: Proxy, sending: Sending, found: Findings
) -> None:
    """Break one thing at a random moment, mend it at another, and see that events are taken again."""
    fault = fault or random.choice(CHOICES)
    await asyncio.sleep(random.uniform(0.02, 0.5))
    found.rounds.append(fault)
    network = next((name for name in FAULTS if name == fault), None)
    if network is not None:
        proxy.begin(network)
        await asyncio.sleep(random.uniform(0.05, 1.2))
        proxy.end()
    if fault in ("producer", "both"):
        await sending.kill()
    if fault in ("edge", "both"):
        await server.kill()
        await asyncio.sleep(random.uniform(0, 0.2))
        await server.start()
    if fault in ("producer", "both"):
        await sending.start()
    taken = len(found.taken)
    await until(lambda: len(found.taken) > taken, f"events to be taken again after '{fault}'")


async def reckon(server: EdgeAlone | WholeApp, found: Findings) -> None:
    """Compare the stream with what was told."""
    there: Counter[int] = Counter()
    after = "start"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        while True:
            async with session.get("/streams/steps", params={"after": after, "limit": "10000"}) as reply:
                page = await reply.json()
            if not page["events"]:
                break
            there.update(event["n"] for event in page["events"])
            after = page["next"]
    found.events = there.total()
    twice = sorted(n for n, count in there.items() if count > 1)
    found.wrong += [f"{len(twice)} events are there more than once: {twice[:10]}"] * bool(twice)
    for name, told in (("told as taken", found.taken), ("kept on disk", found.stored)):
        lost = sorted(told - there.keys())
        found.wrong += [f"{len(lost)} events that were {name} are not there: {lost[:10]}"] * bool(lost)
    found.wrong += [f"{len(found.failed)} events failed: {found.failed[:3]}"] * bool(found.failed)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:g} s for {what}")
        await asyncio.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--node", action="store_true", help="the producer of client/, which must be built")
    parser.add_argument("--spark", action="store_true", help="run the whole app and check its view too")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-producer-"))
    print(f"seed {options.seed}, {options.rounds} rounds in {folder}", flush=True)
    found = asyncio.run(play(options.rounds, options.seed, folder, options.spark, options.node))
    print(f"{dict(Counter(found.rounds))}")
    print(f"{len(found.stored)} kept, {len(found.taken)} told as taken, {found.events} in the stream")
    for wrong in found.wrong:
        print(f"WRONG: {wrong}")
    if found.wrong:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
