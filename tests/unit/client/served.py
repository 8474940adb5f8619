"""A real edge for readers, fed by `FakeFlows`, that can be broken off and started again on its port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from edge import Door, Edge
from fake_flows import FakeFlows

from penstock.client import AsyncClient
from penstock.client.view_rows import Changes, key_of
from penstock.config import Limits
from penstock.log.log import Stream
from tests.memory_folder import memory_folder

WAYS: Sequence[Any] = ("websocket", "sse", "poll")
FAST: dict[str, Any] = {"backoff_most_s": 0.05, "timeout_s": 5.0}


class Served:
    """The writer of the changelog, and the edge that shows it."""

    def __init__(self, path: Path, limits: Limits | None = None, **options: Any) -> None:
        self.path, self._limits, self._options = path, limits or Limits(), options
        self.flows = FakeFlows(memory_folder(path).flows_log)
        self.door = Door(path)
        self.edge: Edge
        self.port = 0
        self.stream: Stream

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient(self.url, **(FAST | {"random": Random(1)} | options))

    async def start(self) -> None:
        self.edge = Edge(memory_folder(self.path), self._limits, **self._options)
        self.edge.server.port = self.port
        await self.edge.start()
        self.port = self.edge.server.port

    async def stop(self) -> None:
        """Connections are broken off first, as by a kill."""
        self.cut()
        await self.edge.stop()

    def cut(self) -> None:
        """Break off every connection."""
        server = self.edge.server.runner.server
        for connection in list(server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def commit(self, *upserts: dict[str, Any], deletes: Sequence[str] = (), **more: Any) -> int:
        return self.flows.commit(self.stream, upserts, [{"topic": name} for name in deletes], **more)

    async def show(self, *upserts: dict[str, Any], deletes: Sequence[str] = (), **more: Any) -> None:
        """Commit, and wait until the edge has it."""
        await self.edge.at_offset(self.commit(*upserts, deletes=deletes, **more))


@asynccontextmanager
async def serving(path: Path, limits: Limits | None = None, **options: Any) -> AsyncIterator[Served]:
    """With an empty view `topics`."""
    made = Served(path, limits, **options)
    made.stream = made.flows.build()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
        made.door.log.close()
        made.flows.close()


class Copy:
    """What a reader holds after each batch; it checks that batches can follow each other."""

    def __init__(self, key: Sequence[str] = ("topic",)) -> None:
        self.key = key
        self.rows: dict[Any, dict[str, Any]] = {}
        self.positions: list[str] = []

    def take(self, changes: Changes) -> None:
        assert changes.position not in self.positions, "a position came twice"
        self.positions.append(changes.position)
        if changes.snapshot:
            self.rows = {}
        for row in changes.deletes:
            del self.rows[key_of(row, self.key)]
        for row in changes.upserts:
            assert self.rows.get(key_of(row, self.key)) != row, f"an upsert that changes nothing: {row}"
            self.rows[key_of(row, self.key)] = row

    async def until(self, watch: Any, holds: Callable[[dict[Any, dict[str, Any]]], bool]) -> None:
        while not holds(self.rows):
            self.take(await anext(watch))
