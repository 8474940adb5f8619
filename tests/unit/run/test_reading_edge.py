"""Edges that only read, beside the one that writes: the same positions, the same rights, and nothing written."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import fake_flows
import pytest
from aiohttp import ClientSession, ClientTimeout, WSMsgType
from aiohttp.test_utils import TestServer
from edge import DEADLINE_S, TRANSPORTS, Replica
from fake_flows import FakeFlows, small_app, topic

from penstock.cli.key_verbs import hand_over
from penstock.client import AsyncClient
from penstock.clock import SystemClock
from penstock.config import Folder
from penstock.log.log import Stream
from penstock.position import Position
from penstock.rights.inbox import Instruction
from penstock.rights.keys import KeyRecord, make_key
from penstock.run.announcement import announce
from penstock.run.edge import open_edge
from penstock.run.edge_log import Setting
from penstock.run.ownership import flock
from penstock.run.reading_edge import open_reading_edge

SCOPES = ("read:*", "write:*", "admin")


class Served:
    """One edge, as a client sees it."""

    def __init__(self, server: TestServer, http: ClientSession) -> None:
        self.url = str(server.make_url("")).rstrip("/")
        self.http = http

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None, **params: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        shown = {"Authorization": f"Bearer {key}"} if key else {}
        headers = {"Content-Type": "application/json", **shown}
        async with self.http.request(method, path, data=data, headers=headers, params=params) as reply:
            text = await reply.text()
            return reply.status, json.loads(text) if text.startswith("{") else text

    async def get(self, path: str, **params: Any) -> Any:
        return await self.ask("GET", path, **params)


class World:
    """A data folder with flows that write, an edge that writes, and one that only reads."""

    def __init__(self, folder: Folder, flows: FakeFlows) -> None:
        self.folder, self.flows = folder, flows
        self.writing: Served
        self.reading: Served
        self.stream: Stream = flows.build()
        self.contents: dict[int, dict[str, Any]] = {0: {}}
        """What the view holds behind each commit."""

    def change(self, random: Random) -> int:
        """One batch that changes something; returns the offset behind it."""
        number = len(self.contents)
        rows = dict(self.contents[number - 1])
        gone = [name for name in rows if random.random() < 0.1]
        made = {name: topic(name, number) for name in random.sample("abcdefghijklmnop", 3) if name not in gone}
        rows = {name: row for name, row in rows.items() if name not in gone} | made
        offset = self.flows.commit(self.stream, list(made.values()), [{"topic": name} for name in gone])
        self.contents[offset] = rows
        return offset

    async def make_key(self, *scopes: str) -> tuple[str, KeyRecord]:
        """As `penstock keys create` does it."""
        key, record = make_key("k", scopes or SCOPES, {}, SystemClock().now_us(), None)
        await self.hand_over(Instruction("create", record.id, record))
        return key, record

    async def hand_over(self, instruction: Instruction) -> None:
        await asyncio.to_thread(hand_over, self.folder, "small", instruction)


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    folder = Folder(path)
    for made in (folder.run, folder.inbox):
        made.mkdir()
    flows = FakeFlows(folder.flows_log)
    found = World(folder, flows)
    with folder.edge_lock.open("a+") as lock:
        assert flock(lock)
        async with AsyncExitStack() as opened:
            for opening, name in ((open_edge, "writing"), (open_reading_edge, "reading")):
                app = await opening(Setting(small_app().declared(), folder), opened)
                server = await opened.enter_async_context(TestServer(app))
                timeout = ClientTimeout(total=DEADLINE_S)
                http = await opened.enter_async_context(ClientSession(base_url=server.make_url("/"), timeout=timeout))
                setattr(found, name, Served(server, http))
                if name == "writing":
                    announce(folder, "edge", {"scheme": "http", "host": "127.0.0.1", "port": server.port})
            yield found
    flows.close()


class CheckedReplica(Replica):
    """One that holds, behind every message, exactly the rows that the view had at that position."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @property
    def offset(self) -> int:
        return Position.parse(self.position).offsets[0] if self.position else -1

    def take(self, message: dict[str, Any]) -> None:
        super().take(message)
        if message["type"] in ("snapshot", "changes"):
            rows = {row["topic"]: row for row in self.rows.values()}
            assert rows == self._world.contents[self.offset]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_subscriber_moves_between_the_edges_with_its_position_and_misses_nothing(
    tmp_path: Path, transport: str
) -> None:
    async with world(tmp_path) as there:
        random = Random(7)
        replicas = [CheckedReplica(there) for _ in range(4)]

        async def load() -> int:
            for _ in range(250):
                last = there.change(random)
                await asyncio.sleep(random.random() * 0.01)
            return last

        async def move(replica: CheckedReplica, loading: asyncio.Task[int], number: int) -> None:
            edges, moves = [there.writing, there.reading], number
            while not (loading.done() and replica.offset >= loading.result()):
                goal = replica.offset + 1 + moves % 7

                def far_enough(goal: int = goal) -> bool:
                    return replica.offset >= (min(goal, loading.result()) if loading.done() else goal)

                await TRANSPORTS[transport](edges[moves % 2], replica, far_enough, {})  # type: ignore[arg-type]
                moves += 1
            assert moves > number + 20

        loading = asyncio.create_task(load())
        await asyncio.gather(*(move(replica, loading, number) for number, replica in enumerate(replicas)))
        assert [replica.resets for replica in replicas] == [0] * len(replicas)
        assert all(len([m for m in r.messages if m["type"] == "snapshot"]) == 1 for r in replicas)


async def test_events_of_a_stream_go_on_at_the_other_edge(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        seen: list[int] = []
        position: str | None = None

        async def load() -> None:
            for n in range(200):
                status, _ = await there.writing.ask("POST", "/streams/rsvps", {"topic": "a", "n": n})
                assert status == 200

        loading = asyncio.create_task(load())
        for moves in range(1_000):
            if len(seen) >= 200:
                break
            headers = {"Last-Event-ID": position} if position else {}
            edge = (there.writing, there.reading)[moves % 2]
            async with edge.http.get("/streams/rsvps/events", headers=headers) as reply:
                wanted = min(200, len(seen) + 1 + moves % 5)
                while len(seen) < wanted:
                    line = (await reply.content.readline()).decode().rstrip()
                    name, _, value = line.partition(": ")
                    if name == "id":
                        position = value
                    elif name == "data":
                        seen += [event["n"] for event in json.loads(value)["events"]]
        await loading
        assert seen == list(range(200))
        assert moves > 20


async def test_the_python_client_goes_on_at_the_other_edge(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        random, rows = Random(3), dict[str, Any]()
        position: str | None = None
        for edge in (there.reading, there.writing) * 5:
            last = [there.change(random) for _ in range(3)][-1]
            async with AsyncClient(edge.url) as client, asyncio.timeout(DEADLINE_S):
                async for changes in client.watch("topics", since=position):
                    assert changes.snapshot == (position is None)
                    gone = {row["topic"] for row in changes.deletes}
                    rows = {name: row for name, row in rows.items() if name not in gone}
                    rows |= {row["topic"]: row for row in changes.upserts}
                    position = changes.position
                    offset = Position.parse(position).offsets[0]
                    assert rows == there.contents[offset]
                    if offset >= last:
                        break


async def test_a_reader_sees_what_it_has_written_and_what_it_saw_elsewhere(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        _, posted = await there.writing.ask("POST", "/streams/rsvps", {"topic": "a"})
        status, body = await there.reading.get("/views/topics", after=posted["ack"], wait=0)
        assert (status, body["error"]["code"]) == (504, "not_yet")
        asked = asyncio.create_task(there.reading.get("/views/topics", after=posted["ack"], wait=20))
        end = Position.parse(posted["ack"])
        there.flows.commit(there.stream, [topic("a", 1)], end={"rsvps": [end.epoch, list(end.offsets)]})
        status, body = await asked
        assert (status, [row["topic"] for row in body["rows"]]) == (200, ["a"])
        status, body = await there.writing.get("/views/topics", after=posted["ack"], wait=20)
        status, body = await there.reading.get("/views/topics", at_least=body["position"], wait=20)
        assert status == 200


async def test_what_became_of_a_request_is_known_at_the_other_edge_too(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        _, posted = await there.writing.ask("POST", "/streams/rsvps", {"topic": "a"})
        status, body = await there.reading.get(f"/acks/{posted['ack']}")
        assert (status, body["level"]) == (200, "logged")
        _, receipt = await there.writing.ask("POST", "/streams/rsvps", {"topic": "a"}, ack="none")

        async def is_logged() -> bool:
            status, body = await there.reading.get(f"/acks/{receipt['ack']}")
            assert status == 200 or body["error"]["code"] == "read_only_edge"
            return status == 200 and (body["level"], body["accepted"]) == ("logged", 1)

        await until(is_logged)
        position = Position.parse(posted["ack"])
        ahead = Position("stream", "rsvps", position.epoch, (99,))
        assert (await there.reading.get(f"/acks/{ahead.token()}"))[0] == 404


WRITES = [
    ("POST", "/streams/rsvps"),
    ("POST", "/streams/nowhere"),
    ("GET", "/streams/rsvps/publish"),
    ("POST", "/views/topics/rebuild"),
    ("POST", "/flows/yes/rebuild"),
    ("DELETE", "/subscribers/me"),
    ("POST", "/webhooks"),
    ("GET", "/webhooks"),
    ("DELETE", "/webhooks/wh_1"),
    ("POST", "/dead/replay"),
]


async def test_what_must_write_is_refused_with_the_address_of_the_edge_that_does(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        for method, path in WRITES:
            status, body = await there.reading.ask(method, path, {} if method == "POST" else None)
            assert (status, body["error"]["code"]) == (409, "read_only_edge"), f"{method} {path}"
            assert there.writing.url in body["error"]["detail"]
            assert there.writing.url in body["error"]["hint"]
        async with there.reading.http.get("/streams/rsvps/pixel.gif?topic=a") as reply:
            told = reply.status, reply.content_type, reply.headers["Penstock-Rejected"]
            assert told == (409, "image/gif", "read_only_edge")
        async with there.reading.http.ws_connect("/socket") as socket:
            await socket.send_json({"type": "subscribe", "id": "s", "view": "topics", "name": "me"})
            told = await socket.receive_json(timeout=DEADLINE_S)
            assert (told["type"], told["error"]["code"]) == ("error", "read_only_edge")
            await socket.send_json({"type": "subscribe", "id": "t", "view": "topics"})
            assert (await socket.receive_json(timeout=DEADLINE_S))["type"] == "snapshot"
        status, body = await there.reading.get("/streams/rsvps")
        assert (status, body["events"]) == (200, [])
        key, _ = await there.make_key("read:topics")

        async def knows_it() -> bool:
            return (await there.reading.ask("GET", "/views/topics", key=key))[0] == 200 and await is_closed(there)

        await until(knows_it)
        status, body = await there.reading.ask("POST", "/streams/rsvps", {"topic": "a"}, key=key)
        assert (status, body["error"]["code"]) == (403, "forbidden")


async def is_closed(there: World) -> bool:
    return (await there.reading.get("/views"))[0] == 401


async def until(holds: Callable[[], Any], within_s: float = 1.0) -> None:
    """A change of rights must be known everywhere within a second; a busy machine may take longer to ask."""
    async with asyncio.timeout(20 * within_s):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_keys_that_the_other_edge_made_or_revoked_count_here(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        assert (await there.reading.get("/views"))[0] == 200
        key, record = await there.make_key()

        async def knows_it() -> bool:
            return await is_closed(there) and (await there.reading.ask("GET", "/views", key=key))[0] == 200

        await until(knows_it)
        events = await there.reading.http.get("/views/topics/events", headers={"Authorization": f"Bearer {key}"})
        assert events.status == 200
        await there.hand_over(Instruction("revoke", record.id, at_us=SystemClock().now_us()))
        async with asyncio.timeout(20):
            text = (await events.content.read()).decode()
        assert "unauthorized" in text
        assert (await there.reading.ask("GET", "/views", key=key))[0] == 401


async def test_a_ticket_of_one_edge_is_good_at_the_other(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        key, _ = await there.make_key()

        async def gives_one() -> bool:
            return (await there.reading.ask("POST", "/tickets", {"view": "topics"}, key=key))[0] == 201

        await until(gives_one)
        for one, other in ((there.reading, there.writing), (there.writing, there.reading)):
            status, body = await one.ask("POST", "/tickets", {"view": "topics"}, key=key)
            assert status == 201, body
            async with other.http.ws_connect(f"/views/topics/socket?ticket={body['ticket']}") as socket:
                await socket.send_json({"type": "subscribe"})
                assert (await socket.receive(timeout=DEADLINE_S)).type == WSMsgType.TEXT


async def test_the_status_of_a_reading_edge_has_totals_and_lists(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        await there.writing.ask("POST", "/streams/rsvps", {"topic": "a"})
        status, body = await there.reading.get("/status")
        totals = {stream["stream"]: stream["totals"]["accepted"] for stream in body["streams"]}
        assert (status, totals["rsvps"]) == (200, 1)
        assert "pulls" not in body
        for path in ("/metrics", "/graph", "/streams", "/views", "/channels", "/subscribers", "/dead", "/"):
            assert (await there.reading.get(path))[0] == 200, path
        assert (await there.reading.get("/healthz"))[0] == 200
        status, body = await there.reading.get("/openapi.json")
        assert (status, list(body["paths"]["/streams/rsvps"]), "/webhooks" in body["paths"]) == (200, ["get"], False)
        assert (await there.reading.get("/readyz", **{"for": "collect"}))[0] == 400


SMALL = "import fake_flows\napp = fake_flows.small_app()\n"


class Process:
    """An edge as `penstock edge` starts it."""

    def __init__(self, folder: Path, *options: str) -> None:
        file = folder / "small_edge.py"
        file.write_text(f"import sys\nsys.path.append({str(Path(fake_flows.__file__).parent)!r})\n{SMALL}")
        words = ["edge", str(file), "--data", str(folder / "data"), "--port", "0", *options]
        self._said = folder / f"{len(list(folder.glob('*.log')))}.log"
        command = [sys.executable, "-m", "penstock.cli.main", *words]
        with self._said.open("w") as log:
            self.popen = subprocess.Popen(command, stderr=log, stdout=log)

    async def url(self) -> str:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := re.search(r"listening on (\S+)", self._said.read_text())):
                assert self.popen.poll() is None, self._said.read_text()
                await asyncio.sleep(0.05)
        return found[1]

    async def ended(self) -> tuple[int, str]:
        return await asyncio.to_thread(self.popen.wait, DEADLINE_S), self._said.read_text()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(*options: str) -> Process:
        started.append(Process(tmp_path, *options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


async def asked(url: str, path: str, method: str = "GET") -> Any:
    async with ClientSession(url) as http, http.request(method, path) as reply:
        return await reply.json()


async def test_killing_either_edge_leaves_the_other_alone(tmp_path: Path, start: Callable[..., Process]) -> None:
    writing, reading = start(), start("--read-only")
    urls = [await edge.url() for edge in (writing, reading)]
    flows = FakeFlows(Folder(tmp_path / "data").flows_log)
    there, random = World(Folder(tmp_path / "data"), flows), Random(5)
    name = f"edge-{urls[1].rpartition(':')[2]}"
    assert (await asked(urls[0], "/status"))["processes"][name]["pid"] == reading.popen.pid
    async with AsyncClient(urls[1]) as client, asyncio.timeout(DEADLINE_S):
        watched = client.watch("topics")
        assert (await anext(watched)).snapshot
        writing.kill()
        for _ in range(5):
            offset = there.change(random)
            changes = await anext(watched)
            assert (changes.snapshot, Position.parse(changes.position).offsets) == (False, (offset,))
        assert urls[0] in (await asked(urls[1], "/streams/rsvps", "POST"))["error"]["detail"]
        again = start()
        url = await again.url()
        assert url in (await asked(urls[1], "/streams/rsvps", "POST"))["error"]["detail"]
    async with AsyncClient(url) as client, asyncio.timeout(DEADLINE_S):
        watched = client.watch("topics", since=changes.position)
        reading.kill()
        offset = there.change(random)
        changes = await anext(watched)
        assert (changes.snapshot, Position.parse(changes.position).offsets) == (False, (offset,))
    assert name not in (await asked(url, "/status"))["processes"]
    flows.close()


async def test_a_reading_edge_ends_when_its_data_folder_is_another_one(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    reading = start("--read-only")
    url = await reading.url()
    assert "no edge that writes" in (await asked(url, "/streams/rsvps", "POST"))["error"]["detail"]
    (tmp_path / "data").rename(tmp_path / "old")
    code, said = await reading.ended()
    assert (code, "wrong_folder" in said) == (1, True)
