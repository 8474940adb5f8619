"""Cuts, kills, moves and rebuilds while readers follow random queries; each copy must be right at every position.

    python -m tests.chaos.readers --rounds 1000 --seed 1

A round: some readers with random queries on random transports follow three views, whose changelogs the test writes,
through a proxy that breaks connections within messages, from servers that are broken off, killed (SIGKILL, a process of
its own) and started again, while views are rebuilt and readers change their transport. After every batch:

1. the reader's rows are exactly those that the query gives at that position (`readers_model` says which);
2. positions strictly increase, and a new build comes only with a snapshot that says why;
3. a delete is of a row that the reader was shown.

When the round ends, every reader reaches the last change: nothing is missing. Fifty rounds share a data folder, and
begin with a seed of their own, so that `--first 350` repeats what failed in round 370.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock.client import AsyncClient, Changes, Client
from penstock.config import Folder, Limits
from penstock.log.folder_log import FolderLog
from penstock.log.log import Stream
from penstock.observe.metrics import Observer
from penstock.position import Position
from penstock.serve.replies import errors_as_json, quieten
from penstock.serve.serving import Serving
from penstock.views.views import Views
from tests.chaos import readers_app
from tests.chaos.proxy import Proxy, stop_accepting
from tests.chaos.readers_model import SHAPES, Build, Key, Query, random_query

sys.path.append(str(Path(__file__).parents[1] / "unit" / "views"))

from fake_flows import FakeFlows

BLOCK = 50
"""Rounds that share a folder."""
KILL_EVERY = 17
"""Rounds from one SIGKILL to the next."""
PATIENCE_S = 30.0
WAYS: tuple[Any, ...] = ("websocket", "sse", "poll")
NOBODY = 1
"""A port on which nobody listens."""
KINDS = ("watch", "watch", "watch", "live", "threads")
LIMITS = Limits(snapshot_part_rows=3, subscriber_bytes=64 * 1024)


def _build(position: Position) -> str:
    """The build that a position is of; behind the dot stands how the app shows the view."""
    return position.epoch.partition(".")[0]


class Wrong(AssertionError):
    """A reader saw what it must not see."""


@dataclass
class Findings:
    """What was done, and what was seen."""

    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class World:
    """The views with all that they ever were, the servers that show them, and the network between."""

    def __init__(self, folder: Path, random: Random, counts: Counter[str]) -> None:
        self.folder, self.random, self.counts = folder, random, counts
        self.flows = FakeFlows(Folder(folder).flows_log)
        self.builds: dict[tuple[str, str], Build] = {}
        self.streams: dict[str, Stream] = {}
        self.edge: EdgeWithin
        self.other: EdgeApart | None = None
        self.ending: list[asyncio.Task[None]] = []
        self.proxy: Proxy

    def build_of(self, view: str) -> Build:
        return self.builds[view, self.streams[view].epoch]

    def commit(self, view: str) -> None:
        shape = next(shape for shape in SHAPES if shape.name == view)
        upserts, deletes = self.build_of(view).next_batch(shape, self.random)
        self.flows.commit(self.streams[view], upserts, deletes)
        self.counts["batches"] += 1

    def rebuild(self, view: str) -> None:
        """A new build of other rows, which replaces the old one when it has some."""
        shape = next(shape for shape in SHAPES if shape.name == view)
        epoch = f"{self.random.getrandbits(48):012x}"
        self.builds[view, epoch] = Build()
        self.streams[view] = self.flows.build(view, shape.schema, shape.key, epoch=epoch, live=False)
        for _ in range(self.random.randint(1, 3)):
            self.commit(view)
        self.flows.serve(view, epoch)
        self.counts["rebuilds"] += 1

    async def restart(self) -> None:
        """The server is broken off, for a moment nobody answers, and another one is there."""
        self.proxy.target = NOBODY
        self.edge.break_off()
        self.ending.append(asyncio.create_task(self.edge.stop()))
        await asyncio.sleep(self.random.uniform(0, 0.05))
        self.edge = EdgeWithin(self.folder)
        await self.edge.start()
        self.proxy.target = self.edge.port
        self.counts["restarts"] += 1

    async def kill(self) -> None:
        """Readers move to a server in a process of its own, which is killed, and back."""
        assert self.other is not None
        deadline = time.monotonic() + PATIENCE_S
        while not self.other.is_ready():
            assert time.monotonic() < deadline, "the other server does not start"
            await asyncio.sleep(0.02)
        self.proxy.target = self.other.port
        self.proxy.begin("reset")
        self.proxy.end()
        for _ in range(3):
            self.commit(self.random.choice(SHAPES).name)
            await asyncio.sleep(self.random.uniform(0, 0.1))
        self.counts["kills of one that only reads"] += self.other.read_only
        await self.other.kill()
        await self.other.start()  # for a later round
        await asyncio.sleep(self.random.uniform(0, 0.05))
        self.proxy.target = self.edge.port
        self.counts["kills"] += 1


class EdgeWithin:
    """Data access in this process."""

    def __init__(self, folder: Path) -> None:
        self._log = FolderLog(Folder(folder))
        observer = Observer()
        application = readers_app.app.declared()
        self._views = Views(application, self._log.flows, limits=LIMITS, observer=observer)
        serving = Serving(application, self._views, self._log, folder=Folder(folder), position_s=0.2)
        app = web.Application(middlewares=[errors_as_json(observer)])
        serving.add_routes(app)
        self._server = TestServer(app)

    @property
    def port(self) -> int:
        assert self._server.port is not None
        return self._server.port

    async def start(self) -> None:
        await self._views.start()
        await self._server.start_server(shutdown_timeout=0.1)

    def break_off(self) -> None:
        """End every connection without a goodbye."""
        server = self._server.runner and self._server.runner.server
        for connection in server.connections if server else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def stop(self) -> None:
        self.break_off()
        if self._server.runner is not None:
            for site in self._server.runner.sites:
                await stop_accepting(site._server)  # type: ignore[attr-defined]
        await self._server.close()
        await self._views.stop()
        self._log.close()


class EdgeApart:
    """`penstock edge` as a process of its own: one that only reads and one that writes, in turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_only = False
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        self.read_only = not self.read_only
        app = Path(__file__).with_name("readers_app.py")
        words = ["edge", app, "--data", self.folder, "--port", 0, "--parent", os.getpid()]
        words += ["--read-only"] if self.read_only else []
        with (self.folder.parent / "edge.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.cli.main", *map(str, words), stdout=log, stderr=log
            )

    def is_ready(self) -> bool:
        self._must_live()
        return self._announced() is not None

    def _must_live(self) -> None:
        if self._process.returncode is not None:
            said = (self.folder.parent / "edge.log").read_text()[-3000:]
            raise Wrong(f"the server ended by itself with {self._process.returncode}: {said}")

    def _announced(self) -> int | None:
        """The port, as it says in the data folder."""
        for path in (self.folder / "run").glob("edge*.json"):
            with suppress(ValueError):  # half written
                said = json.loads(path.read_text())
                if said["pid"] == self._process.pid:
                    return int(said["port"])
        return None

    @property
    def port(self) -> int:
        port = self._announced()
        assert port is not None
        return port

    async def kill(self) -> None:
        self._must_live()
        self._process.kill()
        await self._process.wait()


class Reader:
    """One who follows a query, checks after every batch, and now and then takes another way."""

    def __init__(self, world: World, query: Query, kind: str, random: Random) -> None:
        self.world, self.query, self.kind, self.random = world, query, kind, random
        self.rows: dict[Key, Any] = {}
        self.position: str | None = None
        self.at: Position | None = None
        self.trace: list[str] = []
        self._over = threading.Event()

    # Checking

    def take(self, changes: Changes) -> None:
        """A batch, by hand."""
        new = Position.parse(changes.position)
        self.trace.append(f"{new.epoch[:4]}:{new.offsets[0]}{'!' if changes.snapshot else ''}")
        if self.at is not None:
            if not changes.snapshot and (new.epoch != self.at.epoch or new.offsets <= self.at.offsets):
                self._fail(f"{new} came after {self.at}")
            if changes.snapshot and changes.reset is None:
                self._fail("a snapshot came without a reason")
        if changes.snapshot:
            self.rows = {}
        for row in changes.deletes:
            if self.rows.pop(self.query.shape.key_of(row), None) is None:
                self._fail(f"a delete of a row that was not there: {row}")
        self.rows |= {self.query.shape.key_of(row): row for row in changes.upserts}
        self.check(self.rows, changes.position)

    def check(self, rows: dict[Key, Any], position: str) -> None:
        """The copy is what the query gives at that position."""
        self.position, self.at = position, Position.parse(position)
        expected = self.query.visible(self._state(self.at))
        if rows != expected:
            extra = {key: row for key, row in rows.items() if expected.get(key) != row}
            missing = {key: row for key, row in expected.items() if rows.get(key) != row}
            self._fail(f"at {self.at}:\n  it has   {extra}\n  expected {missing}")
        self.world.counts["checks"] += 1

    def _state(self, at: Position) -> Any:
        build = self.world.builds.get((self.query.shape.name, _build(at)))
        if build is None or at.offsets[0] >= len(build.states):
            self._fail(f"a position that was never written: {at}")
        return build.states[at.offsets[0]]

    def _fail(self, what: str) -> Any:
        raise Wrong(f"{self.kind} reader of {self.query}: {what}\n  way: {' '.join(self.trace[-30:])}")

    def is_done(self) -> bool:
        """Whether it has reached the last change of the newest build."""
        view = self.query.shape.name
        epoch, build = self.world.streams[view].epoch, self.world.build_of(view)
        return self.at is not None and _build(self.at) == epoch and self.at.offsets[0] >= build.settled_at(self.query)

    def end(self) -> None:
        self._over.set()

    # Following

    async def run(self) -> None:
        if self.kind == "threads":
            await asyncio.to_thread(self._in_thread)
            return
        async with AsyncClient(self.world.proxy.url, **self._options()) as client:
            while not self._over.is_set():
                await (self._live(client) if self.kind == "live" else self._watch(client))
                self.world.counts["moves"] += 1
                if self.kind == "watch" and self.random.random() < 0.3:
                    await self._get(client)

    def _options(self) -> dict[str, Any]:
        quiet = {"notify": self._note, "backoff_most_s": 0.03, "timeout_s": 5.0, "idle_s": 3.0}
        return quiet | {"random": Random(self.random.random())}

    def _note(self, notice: Any) -> None:
        self.world.counts[notice.kind] += 1

    async def _watch(self, client: AsyncClient) -> None:
        """On one transport, until it is time for another."""
        way, most = self.random.choice(WAYS), self.random.randint(1, 12)
        self.trace.append(way)
        watch = client.watch(self.query.shape.name, since=self.position, transport=way, **self.query.options())
        async with watch:
            for _ in range(most):
                try:
                    changes = await asyncio.wait_for(anext(watch), 0.1)
                except TimeoutError:
                    if self._over.is_set():
                        return
                    continue
                self.take(changes)
                self.world.counts[way] += 1
                if self.random.random() < 0.1:
                    await asyncio.sleep(self.random.uniform(0, 0.03))  # a slow reader
            if watch.position is not None and self.position is not None:
                self.check(self.rows, watch.position)  # where batches passed that changed nothing here

    async def _get(self, client: AsyncClient) -> None:
        """The rows of one moment instead of changes; the next transport goes on from there."""
        with suppress_unreachable():
            found = await client.get(self.query.shape.name, **self.query.options())
            self.trace.append("get")
            if self.at is not None:
                new = Position.parse(found.position)
                if new.epoch == self.at.epoch and new.offsets < self.at.offsets:
                    self._fail(f"a read went back from {self.at} to {new}")
            self.rows = {self.query.shape.key_of(row): row for row in found}
            self.check(self.rows, found.position)
            self.world.counts["rest"] += 1

    async def _live(self, client: AsyncClient) -> None:
        way = self.random.choice(WAYS)
        live = client.live(self.query.shape.name, transport=way, **self.query.options())
        async with live:
            for _ in range(self.random.randint(1, 12)):
                rows, position = live.snapshot()
                assert position is not None
                if position != self.position:
                    self.check(self._keyed(rows), position)
                    self.world.counts["live"] += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(live.changed(position), 0.1)
                if self._over.is_set():
                    return

    def _keyed(self, rows: dict[Any, Any]) -> dict[Key, Any]:
        return rows if len(self.query.shape.key) > 1 else {(key,): row for key, row in rows.items()}

    def _in_thread(self) -> None:
        """The same without asyncio."""
        with Client(self.world.proxy.url, **self._options()) as client:
            while not self._over.is_set():
                way = self.random.choice(WAYS)
                with client.watch(
                    self.query.shape.name, since=self.position, transport=way, **self.query.options()
                ) as watch:
                    for _ in range(self.random.randint(1, 12)):
                        try:
                            self.take(watch.next(0.1))
                            self.world.counts["threads"] += 1
                        except TimeoutError:
                            if self._over.is_set():
                                return


def suppress_unreachable() -> Any:
    from penstock.errors import NotReadyError, NotYetError, UnreachableError

    return suppress(UnreachableError, NotReadyError, NotYetError)


# A round

Action = Callable[[World, Random], Awaitable[None]]


async def _cut(world: World, random: Random) -> None:
    world.proxy.begin(random.choice(["drop", "reset"]))
    await asyncio.sleep(random.uniform(0, 0.02))
    world.proxy.end()
    world.counts["cuts"] += 1


async def _cut_within(world: World, random: Random) -> None:
    """Connections end within a message."""
    world.proxy.begin(random.choice(["cut_reply", "cut_request"]))
    world.commit(random.choice(SHAPES).name)
    await asyncio.sleep(random.uniform(0.005, 0.04))
    world.proxy.end()
    world.counts["cuts within"] += 1


async def _stall(world: World, random: Random) -> None:
    world.proxy.begin("stall")
    for _ in range(random.randint(1, 5)):
        world.commit(random.choice(SHAPES).name)
    await asyncio.sleep(random.uniform(0, 0.05))
    world.proxy.end()
    world.counts["stalls of the network"] += 1


async def _burst(world: World, random: Random) -> None:
    for _ in range(random.randint(3, 15)):
        world.commit(random.choice(SHAPES).name)


async def _rebuild(world: World, random: Random) -> None:
    world.rebuild(random.choice(SHAPES).name)


async def _restart(world: World, random: Random) -> None:
    await world.restart()


async def _pause(world: World, random: Random) -> None:
    await asyncio.sleep(random.uniform(0, 0.02))


ACTIONS: list[tuple[Action, int]] = [
    (_cut, 12),
    (_cut_within, 12),
    (_stall, 6),
    (_burst, 15),
    (_rebuild, 3),
    (_restart, 6),
    (_pause, 46),
]


async def play_round(world: World, kill: bool) -> None:
    random = world.random
    readers = [
        Reader(world, random_query(random), random.choice(KINDS), Random(random.random()))
        for _ in range(random.randint(1, 4))
    ]
    tasks = [asyncio.create_task(reader.run()) for reader in readers]
    try:
        for step in range(random.randint(3, 10)):
            world.commit(random.choice(SHAPES).name)
            (action,) = random.choices([a for a, _ in ACTIONS], [weight for _, weight in ACTIONS])
            await action(world, random)
            if kill and step == 2:
                await world.kill()
        await _all_done(readers, tasks)
    finally:
        for reader in readers:
            reader.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            task.cancel()
    for task in tasks:
        task.result()


async def _all_done(readers: list[Reader], tasks: list[asyncio.Task[None]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(reader.is_done() for reader in readers):
        for task in tasks:
            if task.done() and task.exception() is not None:
                return
        if time.monotonic() > deadline:
            late = [reader for reader in readers if not reader.is_done()]
            raise Wrong(f"something is missing: {[(str(r.query), str(r.at), r.trace[-10:]) for r in late]}")
        await asyncio.sleep(0.005)


@asynccontextmanager
async def a_world(folder: Path, random: Random, counts: Counter[str], kills: bool) -> AsyncIterator[World]:
    await asyncio.to_thread(folder.mkdir, parents=True)
    async with AsyncExitStack() as stack:
        world = World(folder, random, counts)
        stack.callback(world.flows.close)
        for shape in SHAPES:
            world.rebuild(shape.name)
        world.edge = EdgeWithin(folder)
        await world.edge.start()
        world.proxy = await stack.enter_async_context(Proxy(world.edge.port, random))
        if kills:
            world.other = EdgeApart(folder)
            await world.other.start()
        try:
            yield world
        finally:
            await asyncio.gather(*world.ending, world.edge.stop())
            if world.other is not None:
                await world.other.kill()


async def play(
    rounds: int, seed: int, folder: Path, *, first: int = 0, kills: bool = True, say: Callable[[str], None] = print
) -> Findings:
    """Rounds from `first` on; a block ends at the first thing that is wrong in it."""
    loud = quieten(lambda: None)  # an edge does this for itself, and here are several in one process
    try:
        return await _play(rounds, seed, folder, first, kills, say)
    finally:
        loud()


async def _play(rounds: int, seed: int, folder: Path, first: int, kills: bool, say: Callable[[str], None]) -> Findings:
    found = Findings()
    for block in range(first - first % BLOCK, first + rounds, BLOCK):
        random, here = Random(f"{seed}/{block}"), folder / f"block{block}"
        async with a_world(here, random, found.counts, kills) as world:
            for number in range(block, min(block + BLOCK, first + rounds)):
                try:
                    await play_round(world, kill=kills and number % KILL_EVERY == KILL_EVERY - 1)
                except Exception as failure:
                    found.wrong.append(f"seed {seed}, round {number}: {type(failure).__name__}: {failure}")
                    say(found.wrong[-1])
                    break
                found.rounds += 1
        shutil.rmtree(here, ignore_errors=True)
        say(f"{found.rounds} rounds, {len(found.wrong)} wrong; {dict(sorted(found.counts.items()))}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--no-kills", action="store_true", help="no server in a process of its own")
    words = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(
            play(words.rounds, words.seed, Path(folder) / "readers", first=words.first, kills=not words.no_kills)
        )
    print(f"{found.rounds} of {words.rounds} rounds in {time.monotonic() - began:.0f} s, {len(found.wrong)} wrong")
    sys.exit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
