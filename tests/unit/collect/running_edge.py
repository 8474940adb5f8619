"""An edge for tests: stage 1 over a real log file and real sockets, which can be closed and opened again."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from aiohttp import ClientSession, web

from penstock.app import App
from penstock.clock import SystemClock
from penstock.collect.collection import Collect
from penstock.collect.letters.letter_office import DeadLetterOffice
from penstock.collect.pulling.pull_loop import Sleep
from penstock.collect.ways.connections import Connections
from penstock.collect.ways.short_way import Writers
from penstock.config import Folder, Limits
from penstock.log.folder_log import FolderLog
from penstock.log.group_commit import GIVE_UP_S, GroupCommit
from penstock.log.logs.memory import memory_of
from penstock.log.opening import open_log, open_reader
from penstock.observe.metrics import Observer
from penstock.position import Position
from penstock.rights.credential import ANONYMOUS, Credential
from penstock.serve.replies import errors_as_json
from tests.memory_folder import memory_folder


class Absorbing:
    """Stands for the views: says what they have absorbed, as a test wants it."""

    def __init__(self) -> None:
        self.views: dict[str, bool] = {}
        self.asked: list[tuple[Position, float]] = []

    async def __call__(self, position: Position, timeout_s: float) -> dict[str, dict[str, Any]]:
        self.asked.append((position, timeout_s))
        return {name: {"applied": applied, "position": None} for name, applied in self.views.items()}


class Everybody:
    """Stands for the guard: everybody may do everything."""

    def writer(self, stream: str, host: str, authorization: str | None) -> Credential | None:
        return ANONYMOUS

    def grants(self, credential: Credential) -> bool:
        return True

    def plain_marks(self) -> dict[str, str]:
        return {}


class Edge:
    """Everything that one running edge has."""

    def __init__(
        self,
        app: App,
        folder: Folder,
        limits: Limits,
        clock: Any,
        absorbing: Absorbing,
        sleep: Sleep,
        give_up_s: float = GIVE_UP_S,
        **more: Any,
    ) -> None:
        self.observer = Observer()
        self.absorbing = absorbing
        self.log = open_log(folder.edge_log, app=app.name)
        self.group = GroupCommit(self.log, give_up_s=give_up_s)
        try:
            self.collect = Collect(
                app.declared(),
                self.log,
                self.group,
                absorbing,
                limits,
                clock,
                self.observer.emit,
                random=Random(7),
                sleep=sleep,
                **more,
            )
        except BaseException:
            self.close_log()
            raise
        self.limits, self.clock = limits, clock
        self.connections: Connections
        self.runner: web.AppRunner
        self.session: ClientSession
        self.url = ""

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Within it the log has no room for anything."""
        memory = memory_of(self.log.place)
        memory.room = 0
        try:
            yield
        finally:
            memory.room = None

    def close_log(self) -> None:
        self.group.close()
        self.log.close()

    async def post(
        self, stream: str, body: bytes, *, headers: Mapping[str, str] | None = None, query: str = ""
    ) -> Reply:
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(
            f"{self.url}/streams/{stream}{query}", data=io.BytesIO(body) if len(body) > 2**20 else body, headers=sent
        ) as reply:
            return Reply(reply.status, await reply.read(), dict(reply.headers))

    async def lines(self, stream: str, body: bytes, **options: Any) -> Reply:
        return await self.post(stream, body, headers={"Content-Type": "application/x-ndjson"}, **options)

    async def ack(self, token: str, query: str = "") -> Reply:
        async with self.session.get(f"{self.url}/acks/{token}{query}") as reply:
            return Reply(reply.status, await reply.read(), dict(reply.headers))

    async def get(self, path: str) -> Reply:
        async with self.session.get(f"{self.url}{path}") as reply:
            return Reply(reply.status, await reply.read(), dict(reply.headers))

    async def replay(self, *letters: Any, **options: Any) -> Reply:
        """Letters by name, or as what the body holds of them."""
        named = [letter if isinstance(letter, dict) else {"letter": letter} for letter in letters]
        async with self.session.post(f"{self.url}/dead/replay", json={"letters": named, **options}) as reply:
            return Reply(reply.status, await reply.read(), dict(reply.headers))

    def events(self, name: str) -> list[dict[str, Any]]:
        """All that a stream holds."""
        reader = open_reader(self.log.place)
        try:
            stream = reader.find(name)
            assert stream is not None
            partitions = range(stream.partitions)
            return [row for p in partitions for block in reader.read(stream, p, 0) for row in block.batch.to_pylist()]
        finally:
            reader.close()

    def newest(self, name: str, count: int) -> list[dict[str, Any]]:
        """The last so many of a stream with one partition."""
        stream = self.log.find(name)
        assert stream is not None
        (end,) = self.log.bounds(stream).ends
        return (
            [row for block in self.log.read(stream, 0, end - count) for row in block.batch.to_pylist()] if count else []
        )

    def dead(self) -> list[dict[str, Any]]:
        return self.events("dead")

    def metric(self, what: str, stream: str) -> float:
        """Over all ways in."""
        return sum(
            sample.value
            for family in self.observer.registry.collect()
            for sample in family.samples
            if sample.name == f"penstock_collect_events_{what}_total" and sample.labels["stream"] == stream
        )

    def refused(self, stream: str, reason: str) -> float:
        return self.observer.value("penstock_collect_requests_refused_total", stream=stream, reason=reason)


@contextlib.contextmanager
def held(edge: Edge) -> Iterator[Callable[[], None]]:
    """The log writes nothing until the end, or until what this gives is called."""
    go, stopped = threading.Event(), threading.Event()
    edge.group.run(lambda: (stopped.set(), go.wait()))
    assert stopped.wait(60)
    try:
        yield go.set
    finally:
        go.set()


async def until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    """Return when it holds."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Reply:
    def __init__(self, status: int, raw: bytes, headers: dict[str, str]) -> None:
        self.status, self.raw, self.headers = status, raw, headers
        self.body: Any = msgspec.json.decode(raw) if raw else None

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(r["index"], r["reason"]) for r in self.body["rejected"]]


@contextlib.asynccontextmanager
async def running(
    app: App,
    folder: Path | Folder,
    *,
    limits: Limits | None = None,
    clock: Any = None,
    absorbing: Absorbing | None = None,
    sleep: Sleep = asyncio.sleep,
    watched: bool = False,
    guarded: Callable[[Edge, web.Application], Writers] | None = None,
    **more: Any,
) -> AsyncIterator[Edge]:
    """An edge that listens on loopback; its log stays for the next one, in memory unless a `Folder` says otherwise.
    `guarded` puts a guard before it."""
    folder = folder if isinstance(folder, Folder) else memory_folder(folder)
    edge = Edge(app, folder, limits or Limits(), clock or SystemClock(), absorbing or Absorbing(), sleep, **more)
    site = web.Application(middlewares=[errors_as_json(edge.observer)])
    writers = Everybody() if guarded is None else guarded(edge, site)
    edge.collect.add_routes(site)
    reader = FolderLog(folder)
    office = DeadLetterOffice(
        reader,
        edge.log.memory(),
        edge.collect.intakes,
        limits or Limits(),
        clock or SystemClock(),
        edge.observer.emit,
        pulls=app.declared().pulls,
        room=edge.collect.pressure.room,
        slow=edge.collect.slow,
    )
    office.add_routes(site)
    if watched:
        edge.connections = Connections(edge.limits, edge.clock, edge.observer.emit)
        edge.connections.short = edge.collect.short_way(writers)
        runner = edge.connections.runner(site, access_log=None, auto_decompress=False)
    else:
        runner = web.AppRunner(site, access_log=None, auto_decompress=False, lingering_time=1.0)
    edge.runner = runner
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    edge.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        await edge.collect.start()
        async with ClientSession() as edge.session:
            yield edge
    finally:
        await runner.cleanup()
        await edge.collect.close()
        reader.close()
        edge.close_log()
