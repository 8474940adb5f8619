"""A flow that stands still under an edge with `max_lag`: senders are told, status names it, and it recovers alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest_asyncio
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from fake_flows import FakeFlows, topic

from penstock import App, Event
from penstock.config import Folder
from penstock.log.log import Stream
from penstock.position import Position
from penstock.run.edge import open_edge
from penstock.run.edge_log import Setting

MAX_LAG = 50


class Rsvp(Event):
    topic: str


def app() -> App:
    made = App("small")
    made.stream("rsvps", Rsvp)
    made.stream("others", Rsvp)

    @made.flow
    def yes(rsvps: Any) -> Any: ...

    @made.view(key="topic", max_lag=MAX_LAG)
    def topics(yes: Any) -> Any: ...

    return made


class World:
    """The edge, and flows that do what a test says."""

    def __init__(self, folder: Folder, http: ClientSession) -> None:
        self.http = http
        self.flows = FakeFlows(folder.flows_log)
        self.yes: Stream = self.flows.flow("yes")
        self.view = self.flows.build("topics")
        for name in ("yes", "topics"):
            self.flows.state(name, "running")

    async def post(self, stream: str = "rsvps", events: int = 10) -> tuple[int, dict[str, Any], str]:
        async with self.http.post(f"/streams/{stream}", json=[{"topic": "a"}] * events) as reply:
            return reply.status, await reply.json(), reply.headers.get("Retry-After", "")

    async def post_until_refused(self) -> tuple[int, dict[str, Any], str]:
        async with asyncio.timeout(60):
            while (found := await self.post())[0] == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found

    async def get(self, path: str) -> Any:
        async with self.http.get(path) as reply:
            return await reply.json()

    async def absorb(self) -> None:
        """The flows catch up with all there is."""
        end = next(s for s in (await self.get("/status"))["streams"] if s["stream"] == "rsvps")["position"]
        position = Position.parse(end)
        offset = self.flows.emit(self.yes, ["a"], {"rsvps": [position.epoch, list(position.offsets)]})
        self.flows.commit(self.view, [topic("a", offset)], end={"yes": [self.yes.epoch, [offset]]})

    async def until(self, holds: Callable[[Any], bool], path: str = "/status") -> Any:
        async with asyncio.timeout(60):
            while not holds(body := await self.get(path)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return body


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    folder = Folder(tmp_path)
    async with AsyncExitStack() as opened:
        served = await open_edge(Setting(app().declared(), folder), opened)
        async with TestServer(served) as server, ClientSession(base_url=server.make_url("/")) as http:
            made = World(folder, http)
            yield made
            made.flows.close()


def pressure(state: str) -> Callable[[Any], bool]:
    return lambda status: status["pressure"]["state"] == state


async def test_senders_wait_for_a_flow_that_stands_still_and_go_on_when_it_does(world: World) -> None:
    status, body, retry_after = await world.post_until_refused()
    assert (status, body["error"]["code"]) == (503, "lagging")
    assert int(retry_after) >= 1
    assert "'topics'" in body["error"]["message"]
    assert (await world.post("others"))[0] == 200
    (because,) = (await world.until(pressure("limiting")))["pressure"]["because"]
    assert (because["view"], because["stream"]) == ("topics", "rsvps")
    assert because["lag_events"] > MAX_LAG

    await asyncio.sleep(1.1)  # `/status` is gathered once a second
    await world.absorb()
    await world.until(pressure("ok"))
    assert (await world.post())[0] == 200


async def test_a_flow_that_an_error_has_stopped_holds_nobody_back(world: World) -> None:
    await world.post_until_refused()
    world.flows.state("yes", "stopped", {"code": "flow_failed", "message": "bad cast"})
    await world.until(pressure("ok"))
    for _ in range(10):
        assert (await world.post())[0] == 200
    world.flows.state("yes", "running")
    await world.until(pressure("limiting"))
    assert (await world.post())[0] == 503
