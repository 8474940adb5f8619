from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from fake_flows import FakeFlows, small_app, topic

from penstock.clock import SystemClock
from penstock.collect.collection import Collect
from penstock.collect.ways.view_reply import MayRead, by_credential
from penstock.config import Limits
from penstock.errors import ReadOnlyStreamError
from penstock.log.folder_log import FolderLog
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Log
from penstock.log.opening import open_log
from penstock.observe.metrics import Observer
from penstock.position import Position
from penstock.views.views import RowsAfter, Views
from tests.memory_folder import memory_folder


class Shop:
    """An edge whose flows are played by hand."""

    def __init__(self, flows: FakeFlows, log: Log, http: ClientSession) -> None:
        self.flows, self.log, self.http = flows, log, http
        self.topics = flows.build()
        found = log.find("rsvps")
        assert found is not None
        self.rsvps = found

    async def post(self, query: str, body: bytes = b'{"topic": "a"}', **headers: str) -> tuple[int, Any]:
        sent = {"Content-Type": "application/json"} | headers
        async with self.http.post(f"/streams/rsvps?{query}", data=body, headers=sent) as reply:
            return reply.status, json.loads(await reply.read())

    def commit(self, upserts: list[Any], end: int) -> None:
        self.flows.commit(self.topics, upserts, end={"rsvps": [self.rsvps.epoch, [end]]})

    async def taken(self) -> None:
        """Wait until the log holds an event; then its sender waits for the view."""
        while not any(self.log.bounds(self.rsvps).ends):  # noqa: ASYNC110 it waits for a thread
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)


@asynccontextmanager
async def running(path: Path, may_read: MayRead = by_credential) -> AsyncIterator[Shop]:
    folder, observer, clock = memory_folder(path), Observer(), SystemClock()
    application = small_app().declared()
    flows = FakeFlows(folder.flows_log)
    log = open_log(folder.edge_log, app="small")
    group = GroupCommit(log)
    reader = FolderLog(folder)
    views = Views(application, reader.flows, observer=observer)
    rows = RowsAfter(views)
    collect = Collect(
        application, log, group, views.wait_absorbed, Limits(), clock, observer.emit, rows=rows, may_read=may_read
    )
    site = web.Application()
    collect.add_routes(site)
    server = TestServer(site)
    await views.start()
    await server.start_server(shutdown_timeout=1.0)
    try:
        async with ClientSession(base_url=server.make_url("/")) as http:
            yield Shop(flows, log, http)
    finally:
        await server.close()
        await views.stop()
        await collect.close()
        group.close()
        log.close()
        reader.close()
        flows.close()


async def test_a_sender_gets_the_row_at_the_first_commit_past_its_event(tmp_path: Path) -> None:
    async with running(tmp_path) as shop:
        shop.commit([topic("a", 1)], 0)
        waiting = asyncio.create_task(shop.post("reply=topics&wait=60"))
        await shop.taken()
        assert not waiting.done()
        shop.commit([topic("a", 2)], 1)
        shop.commit([topic("a", 3)], 2)
        status, body = await waiting
        assert (status, body["accepted"], body["view"]) == (200, 1, "topics")
        assert body["row"] == {"topic": "a", "rsvps": 2, "group": "g"}
        assert Position.parse(body["position"], "view", "topics").offsets == (2,)
        assert Position.parse(body["ack"], "stream", "rsvps").offsets == (1,)


async def test_a_row_that_is_not_there_is_null(tmp_path: Path) -> None:
    async with running(tmp_path) as shop:
        waiting = asyncio.create_task(shop.post("reply=topics&wait=60", b"topic\nb\n", **{"Content-Type": "text/csv"}))
        await shop.taken()
        shop.commit([topic("a", 2)], 1)
        status, body = await waiting
        assert (status, body["row"]) == (200, None)


async def test_at_the_deadline_there_is_the_token(tmp_path: Path) -> None:
    async with running(tmp_path) as shop:
        status, body = await shop.post("reply=topics&wait=0.05")
        assert (status, body["accepted"], body["level"]) == (202, 1, "logged")
        assert "row" not in body
        assert Position.parse(body["ack"], "stream", "rsvps").offsets == (1,)


async def test_a_rejected_event_has_no_row(tmp_path: Path) -> None:
    async with running(tmp_path) as shop:
        status, body = await shop.post("reply=topics&wait=60", b'{"topic": 5}')
        assert (status, body["error"]["code"], len(body["rejected"])) == (422, "events_rejected", 1)


async def test_a_retry_under_the_same_key_gets_the_row_too(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "k1"}
    async with running(tmp_path) as shop:
        status, late = await shop.post("reply=topics&wait=0", **key)
        assert (status, late["accepted"]) == (202, 1)
        shop.commit([topic("a", 2)], 1)
        status, body = await shop.post("reply=topics&wait=60", **key)
        assert (status, body["ack"], body["accepted"]) == (200, late["ack"], 1)
        assert body["row"] == {"topic": "a", "rsvps": 2, "group": "g"}


async def test_a_retry_under_the_same_number_gets_the_row_and_no_second_effect(tmp_path: Path) -> None:
    producer = {"Producer-Id": "till", "Producer-Epoch": "0", "Producer-Seq": "0"}
    async with running(tmp_path) as shop:
        status, late = await shop.post("reply=topics&wait=0", **producer)
        assert (status, late["accepted"], late["duplicates"]) == (202, 1, 0)
        shop.commit([topic("a", 2)], 1)
        status, body = await shop.post("reply=topics&wait=60", **producer)
        assert (status, body["ack"], body["accepted"], body["duplicates"]) == (200, late["ack"], 0, 1)
        assert body["row"] == {"topic": "a", "rsvps": 2, "group": "g"}
        status, gap = await shop.post("reply=topics&wait=0", **producer | {"Producer-Seq": "7"})
        assert (status, gap["error"]["code"]) == (409, "sequence_gap")


@pytest.mark.parametrize(
    ("query", "body", "status", "message"),
    [
        ("reply=nope", b'{"topic": "a"}', 404, "there is no view 'nope'"),
        ("reply=elsewhere", b'{"topic": "a"}', 400, "the view 'elsewhere' does not read the stream 'rsvps'"),
        ("reply=topics", b'[{"topic": "a"}, {"topic": "b"}]', 400, "reply= answers for one event"),
        ("reply=topics", b"[]", 400, "reply= answers for one event"),
        ("reply=topics&ack=none", b'{"topic": "a"}', 400, "reply= needs an answer"),
    ],
)
async def test_what_cannot_be_answered_is_refused_and_nothing_taken(
    tmp_path: Path, query: str, body: bytes, status: int, message: str
) -> None:
    async with running(tmp_path) as shop:
        found, told = await shop.post(query, body)
        assert (found, told["error"]["message"]) == (status, message)
        assert (await shop.post("reply=topics&wait=0"))[1]["accepted"] == 1
        position = Position.parse((await shop.post("ack=logged"))[1]["ack"])
        assert position.offsets == (2,)


async def test_a_key_that_is_no_field_of_the_event_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as shop:
        async with shop.http.post("/streams/others?reply=elsewhere", json={"topic": "a"}) as reply:
            body = await reply.json()
        assert (reply.status, body["error"]["detail"]) == (400, "its key has group, which is no field of the event")


async def test_a_sender_that_may_not_read_the_view_gets_no_row(tmp_path: Path) -> None:
    def nobody(request: web.Request, view: str) -> None:
        raise ReadOnlyStreamError(f"not {view}")

    async with running(tmp_path, nobody) as shop:
        status, body = await shop.post("reply=topics")
        assert (status, body["error"]["message"]) == (409, "not topics")
