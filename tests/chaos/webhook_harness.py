"""Kills an edge right after an endpoint has said 2xx: what it had not written down comes again, with the same id.

    python -m tests.chaos.webhook_harness --seed 1 --kills 20

The endpoints live in this process. At seeded deliveries one of them answers and kills the edge (SIGKILL) a moment
later, mostly before the progress is in the log. The harness plays the flows: it writes the view's changelog itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from aiohttp import web

from penstock.config import Folder

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/unit/views"))
APP = Path(__file__).parent / "webhook_app.py"
DEADLINE_S = 60.0
HOOKS: tuple[dict[str, Any], ...] = (
    {"view": "topics", "shape": "change"},
    {"view": "topics", "shape": "batch"},
    {"stream": "rsvps", "shape": "change"},
    {"stream": "rsvps", "shape": "batch"},
)


class Edge:
    """`penstock edge`, which dies and comes back."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self._folder.run / "edge.json").unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "penstock.cli.main", "edge", str(APP), "--port", "0"]
        with (self._folder.root.parent / "edge.out").open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--data", str(self._folder.root)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )

    async def url(self) -> str:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with suppress(OSError, ValueError):
                    told = json.loads((self._folder.run / "edge.json").read_bytes())
                    return f"http://127.0.0.1:{told['port']}"
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.wait(DEADLINE_S)


class Endpoints:
    """What each webhook has delivered, in order."""

    def __init__(self, edge: Edge, seeded: Random) -> None:
        self._edge, self._seeded = edge, seeded
        self.heard: dict[str, list[tuple[str, Any]]] = {str(n): [] for n in range(len(HOOKS))}
        self.kill_in: int | None = None
        """How many deliveries from now the edge is killed."""

    async def take(self, request: web.Request) -> web.Response:
        self.heard[request.match_info["n"]].append((request.headers["webhook-id"], await request.json()))
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in <= 0:
                self.kill_in = None
                asyncio.get_running_loop().call_later(self._seeded.uniform(0, 0.06), self._edge.kill)
        return web.Response()


def once(heard: list[tuple[str, Any]]) -> list[Any]:
    """What a receiver applies: each id once. A repetition must be the same."""
    known: dict[str, Any] = {}
    for id, body in heard:
        if known.setdefault(id, body) != body:
            raise AssertionError(f"{id} came with another content")
    return list(known.values())


async def play(seed: int, kills: int, parent: Path) -> tuple[int, int]:
    """How many deliveries there were, and how many of them were repetitions."""
    from fake_flows import FakeFlows, topic

    folder, seeded = Folder(parent / "data"), Random(seed)
    folder.run.mkdir(parents=True)
    flows = FakeFlows(folder.flows_log)
    build = flows.build()
    edge = Edge(folder)
    endpoints = Endpoints(edge, seeded)
    site = web.Application()
    site.router.add_post("/{n}", endpoints.take)
    runner = web.AppRunner(site, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    number = 0
    try:
        edge.start()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
            url = await edge.url()
            for n, fields in enumerate(HOOKS):
                async with http.post(f"{url}/webhooks", json={"url": f"http://127.0.0.1:{port}/{n}", **fields}) as made:
                    assert made.status == 201, await made.text()
            for _ in range(kills):
                endpoints.kill_in = seeded.randrange(1, 30)
                with suppress(aiohttp.ClientError, TimeoutError):
                    while True:
                        number += 1
                        flows.commit(build, [topic("jazz", number), topic("golf", -number)])
                        await send(http, url, number)
                await asyncio.to_thread(edge.end)
                edge.start()
                url = await edge.url()
                await send(http, url, number)  # its answer was lost
            await settled(endpoints, number)
    finally:
        edge.end()
        await runner.cleanup()
        flows.close()
    return check(endpoints, number)


async def send(http: aiohttp.ClientSession, url: str, number: int) -> None:
    """One event, which counts once however often it is sent."""
    event, headers = {"topic": "jazz", "n": number}, {"Idempotency-Key": f"event {number}"}
    async with http.post(f"{url}/streams/rsvps", json=event, headers=headers) as reply:
        assert reply.status == 200, await reply.text()


def told(endpoints: Endpoints, n: int) -> list[int]:
    """The numbers that a receiver has applied, in order."""
    bodies = once(endpoints.heard[str(n)])
    if HOOKS[n].get("view"):
        rows = [row for b in bodies for row in ([b["row"]] if HOOKS[n]["shape"] == "change" else b["upserts"])]
        return [row["rsvps"] for row in rows if row["topic"] == "jazz"]
    return [event["n"] for b in bodies for event in (b.get("events") or [b["event"]])]


async def settled(endpoints: Endpoints, number: int) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while any(len(told(endpoints, n)) < number for n in range(len(HOOKS))):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def check(endpoints: Endpoints, number: int) -> tuple[int, int]:
    for n, fields in enumerate(HOOKS):
        assert told(endpoints, n) == list(range(1, number + 1)), f"{fields}: skipped, doubled or out of order"
    heard = sum(map(len, endpoints.heard.values()))
    return heard, heard - sum(len(once(each)) for each in endpoints.heard.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        heard, repeated = asyncio.run(play(asked.seed, asked.kills, Path(parent)))
    print(f"seed {asked.seed}: {asked.kills} kills, {heard} deliveries, {repeated} of them repeated")


if __name__ == "__main__":
    main()
