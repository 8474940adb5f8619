"""A real edge on loopback, fed by `FakeFlows`, and subscribers that keep a replica over each transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiohttp import ClientSession, ClientTimeout, web
from aiohttp.test_utils import TestServer
from fake_flows import FakeFlows, small_app

from penstock.app import App
from penstock.config import Folder, Limits
from penstock.log.folder_log import FolderLog
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log
from penstock.observe.metrics import Observer
from penstock.serve.replies import errors_as_json
from penstock.serve.serving import Serving
from penstock.views.views import Views
from tests.memory_folder import memory_folder

DEADLINE_S = 60.0


class Edge:
    """An edge process in miniature."""

    def __init__(self, folder: Folder, limits: Limits, app: App | None = None, **options: Any) -> None:
        self.application = (app or small_app()).declared()
        self.log = FolderLog(folder)
        self.observer = Observer()
        self.views = Views(self.application, self.log.flows, limits=limits, observer=self.observer)
        self.serving = Serving(self.application, self.views, self.log, folder=folder, **options)
        made = web.Application(middlewares=[errors_as_json(self.observer)])
        self.serving.add_routes(made)
        self.server = TestServer(made)
        self.http: ClientSession

    async def start(self) -> None:
        await self.views.start()
        await self.server.start_server(shutdown_timeout=1.0)
        self.http = ClientSession(base_url=self.server.make_url("/"), timeout=ClientTimeout(total=DEADLINE_S))

    async def stop(self) -> None:
        await self.http.close()
        await self.server.close()
        await self.views.stop()
        self.log.close()

    async def get(self, path: str, **params: Any) -> tuple[int, Any]:
        async with self.http.get(path, params={k: str(v) for k, v in params.items()}) as reply:
            text = await reply.text()
            return reply.status, json.loads(text) if text else None

    async def rows(self, view: str = "topics", **params: Any) -> list[dict[str, Any]]:
        status, body = await self.get(f"/views/{view}", **params)
        assert status == 200, body
        return body["rows"]

    async def at_offset(self, offset: int, view: str = "topics") -> None:
        """Wait until a view has applied so many commits of the build that is served."""
        held, epoch = self.views.view(view), self.log.flows.memory()[f"live/{view}"]

        def reached() -> bool:
            return held.content is not None and held.content.epoch == epoch and held.content.offset >= offset

        assert await held.until(reached, DEADLINE_S), f"{view} did not reach {offset} of {epoch}"


@asynccontextmanager
async def edge(folder: Folder, limits: Limits | None = None, **options: Any) -> AsyncIterator[Edge]:
    made = Edge(folder, limits or Limits(), **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def flows_and_edge(
    path: Path, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[FakeFlows, Edge]]:
    flows = FakeFlows(memory_folder(path).flows_log)
    try:
        async with edge(memory_folder(path), limits, **options) as running:
            yield flows, running
    finally:
        flows.close()


class Door:
    """The writer of `edge.db`."""

    def __init__(self, path: Path) -> None:
        self.log = open_log(memory_folder(path).edge_log, app="small")
        definition = small_app().declared().stream("rsvps")
        assert definition is not None
        self.stream = self.log.create(StreamSpec("rsvps", definition.stored))

    def post(self, *topics: str) -> str:
        """Take events; returns the ack token."""
        rows = [{"topic": t, "n": i, "_id": f"{t}{i}", "_key": t} for i, t in enumerate(topics)]
        batch = pa.RecordBatch.from_pylist(rows, schema=self.stream.schema)
        made = self.log.append([Append(self.stream, batch)])[0]
        assert not isinstance(made, Exception)
        return made.position.token()

    def end(self) -> dict[str, Any]:
        """The stream's end, as a batch's `end` has it."""
        return {"rsvps": [self.stream.epoch, list(self.log.bounds(self.stream).ends)]}


class Replica:
    """What a careful client holds: it checks every message for gaps, duplicates and half batches."""

    def __init__(self, key: tuple[str, ...] = ("topic",)) -> None:
        self.key = key
        self.rows: dict[str, Any] = {}
        self.position: str | None = None
        self.seen: list[str] = []
        self.resets = 0
        self.messages: list[dict[str, Any]] = []
        self._parts: list[Any] = []

    def take(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        kind = message["type"]
        if kind == "snapshot":
            self._parts += message["rows"]
            if message.get("part", 1) < message.get("parts", 1):
                return
            self.rows = {self._key(row): row for row in self._parts}
            self._parts = []
        elif kind == "changes":
            for key in message["deletes"]:
                assert self._key(key) in self.rows, f"delete of a row that was never shown: {key}"
                del self.rows[self._key(key)]
            for row in message["upserts"]:
                assert self.rows.get(self._key(row)) != row, f"an upsert that changes nothing: {row}"
                self.rows[self._key(row)] = row
        elif kind == "reset":
            self.resets += 1
            self._parts = []
            return
        elif kind == "error":
            raise AssertionError(message)
        assert message["position"] not in self.seen, "a position came twice"
        self.position = message["position"]
        self.seen.append(message["position"])

    def broken(self) -> None:
        """The connection is gone: parts of a snapshot are worth nothing."""
        self._parts = []

    def _key(self, row: dict[str, Any]) -> str:
        return json.dumps([row[name] for name in self.key])


async def follow_sse(edge: Edge, replica: Replica, until: Callable[[], bool], params: dict[str, str]) -> None:
    """Read events until `until` holds; it is asked after every block."""
    headers = {"Last-Event-ID": replica.position} if replica.position else {}
    async with edge.http.get("/views/topics/events", params=params, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        event: dict[str, str] = {}
        while not until():
            line = (await reply.content.readline()).decode()
            assert line, "the stream of events ended"
            if line == "\n":
                if "data" in event:
                    message = json.loads(event["data"])
                    assert event["event"] == message["type"]
                    replica.take(message)
                    named = "" if message["type"] == "reset" else message.get("position")
                    assert event.get("id", named) == named
                elif "id" in event:
                    replica.take({"type": "position", "position": event["id"]})
                event = {}
            elif not line.startswith(":"):
                name, _, value = line.rstrip("\n").partition(": ")
                event[name] = value
    replica.broken()


async def follow_socket(edge: Edge, replica: Replica, until: Callable[[], bool], params: dict[str, str]) -> None:
    async with edge.http.ws_connect("/views/topics/socket", max_msg_size=0) as socket:
        await socket.send_json({"type": "subscribe", "id": "s", "since": replica.position, **params})
        while not until():
            message = await socket.receive_json(timeout=DEADLINE_S)
            assert message.pop("id") == "s"
            replica.take(message)
    replica.broken()


async def follow_polling(edge: Edge, replica: Replica, until: Callable[[], bool], params: dict[str, str]) -> None:
    if replica.position is None:
        status, body = await edge.get("/views/topics", **params)
        assert status == 200, body
        replica.take({"type": "snapshot", "position": body["position"], "rows": body["rows"]})
    while not until():
        status, body = await edge.get("/views/topics", since=replica.position, wait=1, **params)
        assert status in (200, 204), body
        for message in body["messages"] if status == 200 else ():
            replica.take(message)


TRANSPORTS = {"sse": follow_sse, "socket": follow_socket, "poll": follow_polling}


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that nothing announces."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert condition(), what
