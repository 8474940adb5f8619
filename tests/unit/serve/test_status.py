"""What the edge says of itself is true: totals, health, metrics and the description of its interface."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from edge import DEADLINE_S, Door, eventually, flows_and_edge
from fake_flows import BATCH_US, topic

from penstock import App, Event
from penstock.clock import SystemClock
from penstock.collect.collection import stream_spec
from penstock.errors import DiskFullError, PenstockError
from penstock.log.folder_log import FolderLog
from penstock.log.log import Append, KnownIds
from penstock.log.opening import open_log
from penstock.serve.live_page import add_page
from penstock.serve.status import Rates, Status
from penstock.testing.contracts.log_events import ManualClock
from penstock.views.views import Views
from tests.memory_folder import memory_folder


async def test_status_has_totals_from_the_log_and_the_state_of_flows(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.post("a", "b", "c")
    door.log.append([], {"count/rsvps": {"duplicates": 2, "dead": 1}})
    processes = {"edge": {"state": "running", "pid": 1, "restarts": 0}}
    async with flows_and_edge(tmp_path) as (flows, running):
        running.serving.status.processes = lambda: processes
        flows.log.append([], {"count/rsvps/topics": {"late": 3}, "count/rsvps/trending": {"late": 1, "dead": 1}})
        stream = flows.build()
        await running.at_offset(0)
        flows.commit(stream, [topic("a", 1)], end={"rsvps": [door.stream.epoch, [2]]}, accepted_us=1)
        flows.state("countries", "stopped", {"code": "flow_failed", "message": "m", "detail": None, "hint": None})
        await running.at_offset(1)
        status, body = await running.get("/status")
        assert (status, body["app"], body["processes"]) == (200, "small", processes)
        rsvps = next(stream for stream in body["streams"] if stream["stream"] == "rsvps")
        received = {"accepted": 3, "duplicates": 2, "dead": 1, "shed": 0}
        assert rsvps["totals"] == received | {"skewed": 0, "late": 4, "poisoned": 1}
        assert rsvps["kind"] == "stream"
        assert {s["stream"]: s["kind"] for s in body["streams"]} == {
            "rsvps": "stream",
            "others": "stream",
            "yes": "flow",
            "dead": "ledger",
            "late": "ledger",
        }
        topics = next(view for view in body["views"] if view["view"] == "topics")
        assert topics["rows"] == 1
        assert topics["class"] == "exact"
        assert topics["flow"] == {"state": "running", "error": None}
        assert topics["columns"][1] == {"name": "rsvps", "type": "bigint"}
        flow = next(flow for flow in body["flows"] if flow["flow"] == "countries")
        assert (flow["state"], flow["error"]["code"]) == ("stopped", "flow_failed")
        told = next(flow for flow in body["flows"] if flow["flow"] == "topics")
        assert (told["batch_ms"], told["lag_events"]) == (BATCH_US / 1000, 1)
        assert body["freshness"]["p99_ms"] > 0
        assert (await running.get("/views"))[1]["views"] == body["views"]
        assert [s["stream"] for s in (await running.get("/streams"))[1]["streams"]] == [
            s["stream"] for s in body["streams"]
        ]
        graph = (await running.get("/graph"))[1]
        assert {node["name"]: node["state"] for node in graph["nodes"]}["countries"] == "stopped"
    door.log.close()


async def test_status_counts_what_was_taken_and_absorbed_before_it_was_asked(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        for offset in range(1, 4):
            door.post("a")
            for path in ("/streams", "/status"):
                rsvps = next(s for s in (await running.get(path))[1]["streams"] if s["stream"] == "rsvps")
                assert rsvps["totals"]["accepted"] == offset
            flows.commit(stream, [topic("a", offset)], end=door.end())
            await running.at_offset(offset)
            told = next(flow for flow in (await running.get("/status"))[1]["flows"] if flow["flow"] == "topics")
            assert told["lag_events"] == 0
    door.log.close()


async def test_who_asks_at_one_time_shares_a_look_and_waits_for_no_slow_disk(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (_, running):
        status = running.serving.status
        free, looks = threading.Event(), []

        def stuck() -> Any:
            looks.append(1)
            free.wait(DEADLINE_S)
            return gather()

        gather, status._gather = status._gather, stuck  # type: ignore[method-assign]
        try:
            async with asyncio.timeout(DEADLINE_S / 2):
                replies = await asyncio.gather(*(running.get("/status") for _ in range(50)))
            assert [code for code, _ in replies] == [200] * 50
            assert len(looks) == 1
        finally:
            free.set()


def test_rates_are_over_the_last_ten_seconds() -> None:
    rates = Rates()
    for second in range(30):
        rates.note(float(second), {"s": max(0, second - 15) * 10})
    assert rates.per_second("s") == 10.0
    assert rates.per_second("t") == 0.0


async def test_ready_means_that_every_view_is_served_or_its_flow_says_why_not(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, checks={"collect": lambda: True}) as (flows, running):
        assert (await running.get("/healthz")) == (200, {"status": "ok"})
        status, body = await running.get("/readyz")
        assert (status, body["ready"], body["for"]) == (503, False, {"serve": False, "collect": True})
        assert (await running.get("/readyz", **{"for": "collect"}))[0] == 200
        assert (await running.get("/readyz", **{"for": "nothing"}))[0] == 400
        flows.build()
        flows.build("countries")
        flows.state("elsewhere", "stopped", {"code": "flow_failed", "message": "m"})
        await eventually(lambda: running.views.ready, "ready")
        status, body = await running.get("/readyz")
        assert status == 200
        assert body["flows"]["elsewhere"]["error"]["code"] == "flow_failed"
        assert body["views"]["topics"]["loaded"]


async def test_a_part_that_is_not_ready_says_why_and_closes_no_other(tmp_path: Path) -> None:
    wrong: list[PenstockError] = [DiskFullError("the disk is full", hint="make room")]
    checks = {"collect": lambda: wrong[0] if wrong else True, "flows": lambda: False}
    async with flows_and_edge(tmp_path, checks=checks) as (_, running):
        status, body = await running.get("/readyz", **{"for": "collect"})
        assert (status, body["ready"], body["for"]["collect"]) == (503, False, False)
        assert body["errors"]["collect"]["code"] == "disk_full"
        assert (await running.get("/readyz"))[0] == 503
        assert (await running.get("/readyz", **{"for": "flows"}))[0] == 503
        wrong.clear()
        status, body = await running.get("/readyz", **{"for": "collect"})
        assert (status, body["errors"]) == (200, {})
        (which,) = (await running.get("/openapi.json"))[1]["paths"]["/readyz"]["get"]["parameters"]
        assert sorted(which["schema"]["enum"]) == sorted(body["for"])


async def test_metrics_are_given_to_prometheus(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        flows.commit(stream, [topic("b", 1)])
        await running.at_offset(2)
        async with running.http.get("/metrics") as reply:
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = await reply.text()
        assert 'penstock_views_rows{view="topics"} 2.0' in text
        assert 'penstock_views_batches_applied_total{view="topics"}' in text


# OpenAPI


async def test_the_description_is_complete_and_its_references_lead_somewhere(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.build()
        await running.at_offset(0)
        _, spec = await running.get("/openapi.json")
        assert spec["openapi"].startswith("3.1")
        components = spec["components"]["schemas"]
        for reference in _references(spec):
            assert reference.removeprefix("#/components/schemas/") in components
        operations = [(path, op) for path, item in spec["paths"].items() for op in item.values()]
        ids = [operation["operationId"] for _, operation in operations]
        assert len(ids) == len(set(ids))
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", id) for id in ids), "generators make names of these"
        named = {link["operationId"] for link in _links(spec)}
        assert named <= set(ids)
        for path, operation in operations:
            assert operation["responses"]
            assert operation["summary"]
            for parameter in operation.get("parameters", ()):
                assert parameter["in"] in ("query", "header", "path")
                assert (parameter["in"] == "path") == (f"{{{parameter['name']}}}" in path)
        assert "post" not in spec["paths"]["/streams/rsvps"], "an edge without a door describes none"
        assert components["view.topics"]["properties"]["rsvps"]["type"] == ["integer", "string", "null"]


def _links(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("links", {}).values() if "description" in value else ()
        for inner in value.values():
            yield from _links(inner)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


# The page


async def test_the_page_is_served_or_the_way_to_build_it_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    not_built = web.Application()
    add_page(not_built, page)
    (page / "index.html").write_text("<h1>hello</h1>")
    (page / "assets" / "a.js").write_text("1")
    built = web.Application()
    add_page(built, page)
    async with TestClient(TestServer(not_built)) as client:
        assert "make setup" in (await _get(client, "/"))
    async with TestClient(TestServer(built)) as client:
        assert await _get(client, "/") == "<h1>hello</h1>"
        assert await _get(client, "/assets/a.js") == "1"
        assert await _get(client, "/assets/b.js") == "404"
        assert await _get(client, "/assets/%2e%2e/%2e%2e/secret") == "404"


async def _get(client: Any, path: str) -> str:
    async with client.get(path) as reply:
        return await reply.text() if reply.status == 200 else str(reply.status)


class Once(Event):
    n: int


async def test_status_says_how_many_ids_are_known_and_since_when(tmp_path: Path) -> None:
    app = App("once")
    app.stream("once", Once, id="n", horizon="1 hour")
    log = FolderLog(memory_folder(tmp_path))
    application = app.declared()
    status = Status(application, Views(application, log.flows), log, SystemClock())
    try:
        await status.start()
        promised = {"ids": 10_000_000, "age": "1 hour", "since": None}
        assert status.streams()[0]["horizon"] == promised | {"known": None}  # only the writer can say
        status.known_ids = dict[str, KnownIds]().get
        await status.refresh()
        assert status.streams()[0]["horizon"] == promised | {"known": 0}
        status.known_ids = {"once": KnownIds(7, 1_700_000_000_000_000)}.get
        await status.refresh()
        horizon = status.streams()[0]["horizon"]
        assert (horizon["known"], horizon["since"]) == (7, "2023-11-14T22:13:20.000Z")
    finally:
        await status.stop()
        log.close()


class Timed(Event):
    n: int
    at: int


@pytest.mark.parametrize(
    ("newest_ms", "says"),
    [
        (1_750_000_000, "the newest time is 1970-01-21: 'at' looks like seconds; send milliseconds"),
        (1_750_000_000_000, None),
        (86_400_000, None),
        (0, None),
    ],
)
async def test_times_in_seconds_where_milliseconds_are_meant_are_told(
    tmp_path: Path, newest_ms: int, says: str | None
) -> None:
    clock = ManualClock()
    clock.us = 1_760_000_000_000_000
    app = App("timed")
    app.stream("timed", Timed, time="at")
    application = app.declared()
    log = open_log(memory_folder(tmp_path).edge_log, app="timed")
    stream = log.create(stream_spec(application.streams[0]))
    row = {"n": 1, "at": newest_ms, "_time": newest_ms * 1000, "_received": 0, "_id": "1"}
    log.append([Append(stream, pa.RecordBatch.from_pylist([row], schema=stream.schema))])
    reader = FolderLog(memory_folder(tmp_path))
    status = Status(application, Views(application, reader.flows), reader, clock)
    try:
        await status.refresh()
        assert status.streams()[0]["hint"] == says
    finally:
        await status.stop()
        reader.close()
        log.close()


async def test_stopping_waits_for_the_thread_that_reads_the_log(tmp_path: Path) -> None:
    """The log is closed next, and reading what is being closed crashes the process."""
    async with flows_and_edge(tmp_path) as (_, running):
        status = running.serving.status
        gather, began, done = status._gather, threading.Event(), threading.Event()

        def slowly() -> Any:
            began.set()
            time.sleep(0.3)
            done.set()
            return gather()

        status._gather = slowly  # type: ignore[method-assign]
        asking = asyncio.create_task(status.refresh())
        await asyncio.to_thread(began.wait, DEADLINE_S)
        asking.cancel()
        await status.stop()
        assert done.is_set()
