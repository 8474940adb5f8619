"""Kills an edge at seeded moments while senders repeat requests under their keys: each must count once.

    python -m tests.chaos.keys_harness --seed 1 --kills 50

Senders know nothing of the kills: they send again, with the same key, until they are answered. The stream has no
`id`, so that only the key can keep an event from being taken twice.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import aiohttp
import pyarrow as pa

from penstock.config import Folder
from penstock.log.opening import open_reader

SENDERS = 8
DEADLINE_S = 60.0
ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "keys_app.py"
Rows = list[dict[str, object]]


class Edge:
    """`penstock edge` without a JVM, which dies and comes back."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self._folder.run / "edge.json").unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "penstock.cli.main", "edge", str(APP), "--port", "0"]
        output = (self._folder.root.parent / "edge.out").open("ab")
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with output:
            self._process = subprocess.Popen(
                [*command, "--data", str(self._folder.root)], cwd=ROOT, env=environment, stdout=output, stderr=output
            )

    def url(self) -> str | None:
        """Where it listens now, if it does."""
        try:
            told = json.loads((self._folder.run / "edge.json").read_bytes())
        except (OSError, ValueError):
            return None
        return f"http://127.0.0.1:{told['port']}/streams/steps"

    def end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(DEADLINE_S)


def as_json(rows: Rows) -> tuple[str, bytes]:
    return "application/json", json.dumps(rows).encode()


def as_csv(rows: Rows) -> tuple[str, bytes]:
    return "text/csv", ("request,n\n" + "".join(f"{row['request']},{row['n']}\n" for row in rows)).encode()


def as_arrow(rows: Rows) -> tuple[str, bytes]:
    table, sink = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return "application/vnd.apache.arrow.stream", sink.getvalue()


CONTENTS: tuple[Callable[[Rows], tuple[str, bytes]], ...] = (as_json, as_csv, as_arrow)


class Senders:
    """Send one request after another, each until it is answered."""

    def __init__(self, edge: Edge, seed: int) -> None:
        self._edge, self._seed = edge, seed
        self.sizes: dict[int, int] = {}
        """By request, how many events its sender was told are taken."""
        self.replayed = 0
        self.answered = asyncio.Semaphore(0)
        self._next = 0
        self.over = False

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await asyncio.gather(*(self._send(http, Random(self._seed * 1000 + n)) for n in range(SENDERS)))

    async def _send(self, http: aiohttp.ClientSession, seeded: Random) -> None:
        while not self.over:
            number, self._next = self._next, self._next + 1
            size = seeded.choice([1, 1, 5, 300])
            kind, body = seeded.choice(CONTENTS)([{"request": number, "n": n} for n in range(size)])
            headers = {"Content-Type": kind, "Idempotency-Key": f"request {number}"}
            async with asyncio.timeout(DEADLINE_S):
                told = await self._until_answered(http, headers, body)
            if told != size:
                raise AssertionError(f"request {number}: {told} of {size} were taken")
            self.sizes[number] = size
            self.answered.release()

    async def _until_answered(self, http: aiohttp.ClientSession, headers: dict[str, str], body: bytes) -> int:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
                if (url := self._edge.url()) is not None:
                    async with http.post(url, data=body, headers=headers) as reply:
                        answer = await reply.json()
                        if reply.status == 200:
                            self.replayed += "Idempotency-Replayed" in reply.headers
                            return int(answer["accepted"])
                        if reply.status not in (409, 503):
                            raise AssertionError(f"{reply.status}: {answer}")
            await asyncio.sleep(0.02)


async def play(seed: int, kills: int, parent: Path) -> tuple[int, int]:
    """How many requests were sent, and how many of them were answered by an earlier reply."""
    folder = Folder(parent / "data")
    folder.run.mkdir(parents=True)
    edge, seeded = Edge(folder), Random(seed)
    senders = Senders(edge, seed)
    await asyncio.to_thread(edge.start)
    sending = asyncio.create_task(senders.run())
    try:
        for _ in range(kills):
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(20):
                    await senders.answered.acquire()
            await asyncio.sleep(seeded.uniform(0, 0.1))
            await asyncio.to_thread(edge.end, signal.SIGKILL)
            await asyncio.to_thread(edge.start)
        senders.over = True
        await sending
    finally:
        sending.cancel()
        await asyncio.to_thread(edge.end, signal.SIGTERM)
    check(folder, senders.sizes)
    return len(senders.sizes), senders.replayed


def check(folder: Folder, sizes: dict[int, int]) -> None:
    """Every event once, and all of each request."""
    reader = open_reader(folder.edge_log)
    try:
        stream = reader.find("steps")
        assert stream is not None
        blocks = [block for p in range(stream.partitions) for block in reader.read(stream, p, 0)]
        found = Counter((row["request"], row["n"]) for block in blocks for row in block.batch.to_pylist())
    finally:
        reader.close()
    twice = [place for place, times in found.items() if times > 1]
    expected = {(request, n) for request, size in sizes.items() for n in range(size)}
    assert not twice, f"taken twice: {twice[:5]} and {len(twice)} in all"
    assert found.keys() == expected, f"{len(expected)} were told as taken, {len(found)} are there"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        requests, replayed = asyncio.run(play(asked.seed, asked.kills, Path(parent)))
    print(f"seed {asked.seed}: {asked.kills} kills, {requests} requests, {replayed} answered by an earlier reply")


if __name__ == "__main__":
    main()
