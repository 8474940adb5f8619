"""One Penstock pulls from another: the events of its streams and the changes of its views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from edge import Door, edge, flows_and_edge
from fake_flows import topic

from penstock import App, Event
from penstock.clock import SystemClock
from penstock.collect.collection import Collect
from penstock.config import Limits
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append
from penstock.log.logs.memory import forget
from penstock.log.opening import open_log
from penstock.observe.metrics import Observer
from tests.certificates import Authority
from tests.memory_folder import memory_folder


class Rsvp(Event):
    topic: str
    n: int


class Change(Event):
    topic: str
    change: str
    rsvps: int | None = None


class Puller:
    """The collecting side of the other Penstock."""

    def __init__(self, path: Path, app: App) -> None:
        self.log = open_log(memory_folder(path).edge_log, app=app.name)
        self.group = GroupCommit(self.log)
        self.observer = Observer()
        self.collect = Collect(
            app.declared(), self.log, self.group, None, Limits(), SystemClock(), self.observer.emit,  # type: ignore[arg-type]
            random=Random(1), sleep=lambda _: asyncio.sleep(0.005),
        )  # fmt: skip

    def events(self, name: str = "pulled") -> list[dict[str, Any]]:
        stream = self.log.find(name)
        assert stream is not None
        return [row for block in self.log.read(stream, 0, 0) for row in block.batch.to_pylist()]

    def resets(self) -> float:
        return self.observer.value("penstock_collect_pull_resets_total", stream="pulled")

    async def has(self, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(60):
            while len(self.events()) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.events()


@asynccontextmanager
async def pulling(path: Path, url: str, kind: Any, **options: Any) -> AsyncIterator[Puller]:
    app = App("puller")
    app.pull(app.stream("pulled", kind), url, **options)
    made = Puller(path / "puller", app)
    await made.collect.start()
    try:
        yield made
    finally:
        await made.collect.close()
        made.group.close()
        made.log.close()


def address(running: Any, path: str) -> str:
    return f"penstock+{str(running.server.make_url('/')).rstrip('/')}{path}"


async def test_a_stream_is_pulled_once_through_restarts_of_the_puller(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with edge(memory_folder(tmp_path)) as running:
        url = address(running, "/streams/rsvps")
        for round_ in range(3):
            door.post(*(f"t{round_}-{i}" for i in range(1500)))
            async with pulling(tmp_path, url, Rsvp) as puller:
                events = await puller.has((round_ + 1) * 1500)
                assert puller.collect.pulls.status()[0]["lag"]["events"] == 0
        assert [event["topic"] for event in events] == [f"t{r}-{i}" for r in range(3) for i in range(1500)]
        assert puller.resets() == 0
    door.log.close()


async def test_an_integer_too_large_for_javascript_arrives(tmp_path: Path) -> None:
    door = Door(tmp_path)
    rows = [{"topic": "big", "n": 2**60 + 1}, {"topic": "small", "n": -5}]
    door.log.append([Append(door.stream, pa.RecordBatch.from_pylist(rows, schema=door.stream.schema))])
    async with edge(memory_folder(tmp_path)) as running:
        url = address(running, "/streams/rsvps")
        async with pulling(tmp_path, url, Rsvp) as puller:
            assert [event["n"] for event in await puller.has(2)] == [2**60 + 1, -5]
    door.log.close()


async def test_another_epoch_is_told_and_read_from_its_beginning(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    urls = []
    for folder, name in ((here, "old"), (there, "new")):
        folder.mkdir()
        door = Door(folder)
        door.post(name)
        async with edge(memory_folder(folder)) as running:
            urls.append(running.server.port)
            url = address(running, "/streams/rsvps")
            if name == "new":
                _same_key(tmp_path / "puller", urls)
            async with pulling(tmp_path, url, Rsvp) as puller:
                events = await puller.has(len(urls))
                resets = puller.resets()
        door.log.close()
    assert [event["topic"] for event in events] == ["old", "new"]
    assert resets == 1


@pytest.mark.parametrize(
    ("status", "body", "resets"),
    [
        (400, {"error": {"code": "bad_request", "message": "m"}}, 0),
        (400, {"odd": True}, 0),
        (410, "gone, says a proxy", 0),
        (410, {"error": {"code": "position_gone", "message": "m"}}, 1),
        (400, {"error": {"code": "bad_position", "message": "m"}}, 1),
    ],
)
async def test_only_what_is_said_of_the_position_lets_it_go(
    tmp_path: Path, status: int, body: Any, resets: int
) -> None:
    """Another side that refuses the first request after a page, then goes on."""
    asked: list[str | None] = []

    async def page(request: web.Request) -> web.StreamResponse:
        asked.append(request.query.get("after"))
        if len(asked) == 2:
            if isinstance(body, str):
                return web.Response(status=status, text=body)
            return web.json_response(body, status=status)
        await asyncio.sleep(0.02)
        return web.json_response({"events": [{"topic": f"t{len(asked)}", "n": 1}], "next": f"p{len(asked)}"})

    site = web.Application()
    site.router.add_get("/streams/rsvps", page)
    async with TestServer(site) as server:
        url = f"penstock+{str(server.make_url('/')).rstrip('/')}/streams/rsvps"
        async with pulling(tmp_path, url, Rsvp) as puller:
            await puller.has(2)
            assert puller.resets() == resets
    assert asked[:3] == [None, "p1", None if resets else "p1"]


def _same_key(path: Path, ports: list[int]) -> None:
    """The position that was stored for the first server, as that of the second."""
    log = open_log(memory_folder(path).edge_log, app="puller")
    moved = {key.replace(str(ports[0]), str(ports[1])): value for key, value in log.memory().items() if "#token" in key}
    log.append([], moved)
    log.close()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_view_is_pulled_as_its_rows_and_then_its_changes(tmp_path: Path, restart: bool) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 2)])
        await running.at_offset(1)
        url = address(running, "/views/topics")
        if restart:
            async with pulling(tmp_path, url, Change) as puller:
                await puller.has(2)
        async with pulling(tmp_path, url, Change) as puller:
            await puller.has(2)
            flows.commit(stream, [topic("a", 3)], [topic("b", 0)])
            events = await puller.has(4)
            assert {(e["topic"], e["change"], e["rsvps"]) for e in events[:2]} == {
                ("a", "upsert", 1),
                ("b", "upsert", 2),
            }
            assert [(e["topic"], e["change"], e["rsvps"]) for e in events[2:]] == [
                ("a", "upsert", 3),
                ("b", "delete", None),
            ]
            new = flows.build()
            flows.commit(new, [topic("z", 9)])
            events = await puller.has(5)
            assert (events[4]["topic"], len(events), puller.resets()) == ("z", 5, 1)


async def test_a_stream_and_a_view_are_pulled_over_tls(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    door = Door(tmp_path)
    door.post("a", "b")
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        assert running.server.runner is not None
        await web.TCPSite(running.server.runner, "127.0.0.1", 0, ssl_context=ours.server()).start()
        at = f"penstock+https://127.0.0.1:{running.server.runner.addresses[-1][1]}"
        async with pulling(tmp_path, f"{at}/streams/rsvps", Rsvp, ca=str(ours.ca)) as puller:
            assert [event["topic"] for event in await puller.has(2)] == ["a", "b"]
        forget(memory_folder(tmp_path / "puller").edge_log)
        async with pulling(tmp_path, f"{at}/views/topics", Change, ca=str(ours.ca)) as puller:
            assert [event["topic"] for event in await puller.has(1)] == ["a"]
    door.log.close()
