"""Kills an edge that pulls from every kind of source, again and again, and counts what it has in the end.

    python tests/unit/collect/pull_crash.py --kills 20 --seed 7

Each source has the numbers 0 to n - 1 and lets them out over time. It breaks connections off, also in the middle of a
line; the file is rotated by rename and by copying; the other Penstock is killed too. In the end every stream has each
number once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import ClientError, ClientSession, web

from penstock.config import Folder
from penstock.log.opening import open_reader

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STREAMS = ("ws", "ndjson", "poll", "sse", "file", "folder", "function", "other")
RATE = 400
"""Events per second that each source lets out."""
OTHER = """
from penstock import App, Event

app = App("other")

class Tick(Event):
    n: int

app.stream("ticks", Tick)
"""


class Sources:
    """The numbers, as far as they are out, over HTTP."""

    def __init__(self, events: int, random: Random) -> None:
        self.events, self.random = events, random
        self._began = time.monotonic()

    @property
    def out(self) -> int:
        return min(self.events, int((time.monotonic() - self._began) * RATE))

    async def _from(self, start: int) -> AsyncIterator[int]:
        """Numbers from here on, until the connection is to be broken off."""
        for n in range(start, min(self.events, start + self.random.randrange(50, 900))):
            while n >= self.out:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            yield n

    async def ws(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for n in self._from(int(request.query.get("since", 0))):
                await socket.send_str(f'{{"n": {n}}}')
        self._break(request)
        return socket

    async def sse(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for n in self._from(0 if last is None else int(last) + 1):
                await reply.write(f'id: {n}\r\ndata: {{"n":\ndata: {n}}}\n\n'.encode())
            await reply.write(b"id: 99999999\ndata: {")
        self._break(request)
        return reply

    async def ndjson(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for n in self._from(int(request.query.get("since", 0))):
                await reply.write(f'{{"n": {n}}}\n'.encode())
            await reply.write(b'{"n": 99')
        self._break(request)
        return reply

    async def poll(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query.get("since", 0))
        page = range(since, min(self.out, since + 300))
        etag = f'"{page.start}-{page.stop}"'
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304)
        return web.json_response([{"n": n} for n in page], headers={"ETag": etag})

    def _break(self, request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()


class Writer:
    """Writes the numbers into a file that is rotated, and into a folder of files, in pieces that end anywhere."""

    def __init__(self, folder: Path, sources: Sources, random: Random) -> None:
        self._path, self._many = folder / "app.log", folder / "many"
        self._many.mkdir()
        self._sources, self._random = sources, random
        self._file = self._path.open("ab", buffering=0)
        self._rotations = 0
        self.may_rotate = False
        """Not before the first line was read: a pull begins with the file as it is then."""

    async def run(self) -> None:
        n = 0
        while n < self._sources.events:
            some = range(n, min(self._sources.out, n + self._random.randrange(1, 40)))
            if some:
                lines = b"".join(b'{"n": %d, "pad": "%s"}\n' % (n, b"x" * (n % 90)) for n in some)
                cut = self._random.randrange(len(lines))
                self._file.write(lines[:cut])
                await asyncio.sleep(0.003)
                self._file.write(lines[cut:])
                self._write_one(some.start, lines)
                n = some.stop
                if self.may_rotate and self._random.random() < 0.03:
                    self._rotate()
            await asyncio.sleep(0.02)

    def close(self) -> None:
        self._file.close()

    def _write_one(self, number: int, lines: bytes) -> None:
        path = self._many / f"{number}.ndjson"
        if number % 3:
            path.write_bytes(lines)
        else:
            path.with_suffix(".ndjson.gz").write_bytes(gzip.compress(lines))

    def _rotate(self) -> None:
        self._rotations += 1
        old = self._path.with_name(f"app.log.{self._rotations}")
        if self._rotations % 2:
            self._path.rename(old)
            self._file.close()
            self._file = self._path.open("ab", buffering=0)
        else:
            shutil.copy2(self._path, old)
            self._file.truncate(0)


class Other:
    """Another Penstock in a process of its own, which gets the numbers posted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "other_app.py").write_text(OTHER)
        self.port = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.cli.main", "edge", str(self._folder / "other_app.py"),
            "--data", str(self._folder / "other"), "--port", str(self.port),
            env=environment(), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        announced = self._folder / "other" / "run" / "edge.json"
        async with asyncio.timeout(60), ClientSession() as session:
            while True:
                with contextlib.suppress(Exception):
                    self.port = json.loads(announced.read_text())["port"]
                    async with session.get(f"http://127.0.0.1:{self.port}/healthz") as reply:
                        if reply.status == 200:
                            return
                await asyncio.sleep(0.05)

    async def feed(self, sources: Sources) -> None:
        """Each batch under its own number, so that one that is sent again is taken once."""
        n = sequence = 0
        async with ClientSession() as session:
            while n < sources.events:
                some = range(n, min(sources.out, n + 100))
                headers = {"Producer-Id": "w", "Producer-Epoch": "0", "Producer-Seq": str(sequence)}
                while some and n < some.stop:
                    with contextlib.suppress(OSError, ClientError):
                        async with session.post(
                            f"http://127.0.0.1:{self.port}/streams/ticks",
                            json=[{"n": n} for n in some],
                            headers=headers,
                        ) as reply:
                            if reply.status in (200, 204):
                                n, sequence = some.stop, sequence + 1
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        await end(self._process)


async def end(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        process.send_signal(signal.SIGKILL)
        await process.communicate()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"}


async def start_victim(folder: Path, port: int, other: int, events: int) -> asyncio.subprocess.Process:
    words = [str(HERE / "pull_victim.py"), str(folder), str(port), str(other), str(events)]
    with (folder / "victim.err").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    assert line == b"started\n", (folder / "victim.err").read_text()
    return process


def held(folder: Path) -> dict[str, list[int]]:
    """The numbers that each stream has."""
    reader = open_reader(Folder(folder).edge_log)
    try:
        found: dict[str, list[int]] = {}
        for name in STREAMS:
            stream = reader.find(name)
            blocks = reader.read(stream, 0, 0) if stream else ()
            found[name] = [n for block in blocks for n in block.batch.column("n").to_pylist()]
        return found
    finally:
        reader.close()


def dead(folder: Path) -> list[Any]:
    reader = open_reader(Folder(folder).edge_log)
    try:
        stream = reader.find("dead")
        return [row for block in reader.read(stream, 0, 0) for row in block.batch.to_pylist()] if stream else []
    finally:
        reader.close()


async def crash(folder: Path, *, kills: int, seed: int, events: int) -> dict[str, list[int]]:
    """The numbers that each stream has after so many kills and enough time."""
    random = Random(seed)
    sources = Sources(events, Random(seed + 1))
    site = web.Application()
    for name in ("ws", "sse", "ndjson", "poll"):
        site.router.add_get(f"/{name}", getattr(sources, name))
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    other = Other(folder)
    tasks: list[asyncio.Task[None]] = []
    process = None
    writer = Writer(folder, sources, random)
    try:
        await other.start()
        sources._began = time.monotonic()
        tasks += [asyncio.create_task(writer.run()), asyncio.create_task(other.feed(sources))]
        for kill in range(kills):
            process = await start_victim(folder, port, other.port, events)
            while not held(folder)["file"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            writer.may_rotate = True
            await asyncio.sleep(random.uniform(0.05, 1.5))
            await end(process)
            if kill % 3 == 1:
                await other.kill()
                await other.start()
        process = await start_victim(folder, port, other.port, events)
        deadline = time.monotonic() + 60 + events / RATE
        while time.monotonic() < deadline and any(len(n) < events for n in held(folder).values()):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.5)  # what would come twice comes now
        return held(folder)
    finally:
        await end(process)
        await other.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()
        await runner.cleanup()


def wrong(found: dict[str, list[int]], events: int) -> dict[str, str]:
    """Which streams lack something or have it twice."""
    return {
        name: f"{len(numbers)} events, {events - len(set(numbers))} missing, {len(numbers) - len(set(numbers))} twice"
        for name, numbers in found.items()
        if sorted(numbers) != list(range(events))
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=10)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--events", type=int, default=4000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="pull-crash-") as folder:
        found = asyncio.run(crash(Path(folder), kills=given.kills, seed=given.seed, events=given.events))
        problems = wrong(found, given.events)
        letters = dead(Path(folder))
        print((Path(folder) / "victim.err").read_text()[-3000:], file=sys.stderr)
    for name in STREAMS:
        print(f"{name:10} {problems.get(name, 'each once')}")
    print(f"dead letters: {len(letters)} {letters[:3]}")
    sys.exit(1 if problems or letters else 0)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
