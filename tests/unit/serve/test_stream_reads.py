"""Streams can be read a page at a time and followed, without a gap, with positions to go on from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edge import DEADLINE_S, Door, Edge, edge

from penstock.serve.stream_reads import _next_size
from tests.memory_folder import memory_folder


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.log.close()


async def _read_all(running: Edge, limit: int, **params: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    after = "start"
    while True:
        status, body = await running.get("/streams/rsvps", after=after, limit=limit, **params)
        assert status == 200, body
        if body["next"] == after:
            return events
        events += body["events"]
        after = body["next"]


async def test_pages_of_any_size_give_every_event_once(tmp_path: Path, door: Door) -> None:
    for i in range(7):
        door.post(*(f"t{i}{j}" for j in range(5)))
    async with edge(memory_folder(tmp_path)) as running:
        whole = await _read_all(running, 100)
        assert [event["topic"] for event in whole] == [f"t{i}{j}" for i in range(7) for j in range(5)]
        assert list(whole[0])[:5] == ["_position", "_id", "_key", "_time", "_received"]
        for limit in (1, 3, 5, 34):
            assert await _read_all(running, limit) == whole
        _, body = await running.get("/streams/rsvps", after=whole[12]["_position"], limit=2)
        assert body["events"] == whole[13:15]
        some = await _read_all(running, 2, where="n = 3", select="topic")
        assert some == [{"_position": e["_position"], "topic": e["topic"]} for e in whole if e["n"] == 3]


async def test_reading_waits_for_what_is_new(tmp_path: Path, door: Door) -> None:
    door.post("old")
    async with edge(memory_folder(tmp_path)) as running:
        status, body = await running.get("/streams/rsvps", after="end")
        assert (status, body["events"]) == (200, [])
        read = asyncio.create_task(running.get("/streams/rsvps", after=body["next"], wait=60, where="topic = 'new'"))
        door.post("other")
        await asyncio.sleep(0.02)
        door.post("new")
        assert [event["topic"] for event in (await read)[1]["events"]] == ["new"]


async def test_a_stream_is_followed_over_a_socket_and_resumed(tmp_path: Path, door: Door) -> None:
    door.post("a", "b")
    async with edge(memory_folder(tmp_path)) as running:
        async with running.http.ws_connect("/streams/rsvps/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "where": "topic <> 'b'"})
            first = await ws.receive_json(timeout=DEADLINE_S)
            assert [event["topic"] for event in first["events"]] == ["a"]
            door.post("b")
            door.post("c")
            second = await ws.receive_json(timeout=DEADLINE_S)
            assert [event["topic"] for event in second["events"]] == ["c"]
        async with running.http.ws_connect("/socket") as ws:
            await ws.send_json({"type": "subscribe", "stream": "rsvps", "since": first["position"]})
            again = await ws.receive_json(timeout=DEADLINE_S)
            assert (again["id"], [event["topic"] for event in again["events"]]) == ("rsvps", ["b", "c"])


async def test_a_stream_is_followed_as_events_of_a_browser(tmp_path: Path, door: Door) -> None:
    ack = door.post("a")
    door.post("b")
    async with (
        edge(memory_folder(tmp_path)) as running,
        running.http.get("/streams/rsvps/events", headers={"Last-Event-ID": ack}) as reply,
    ):
        lines = [line async for line in _until_data(reply)]
        assert lines[-2] == "event: events"
        assert lines[-3].startswith("id: ")
        assert [event["topic"] for event in json.loads(lines[-1][6:])["events"]] == ["b"]


async def _until_data(reply: Any) -> Any:
    while True:
        line = (await reply.content.readline()).decode().rstrip()
        if line:
            yield line
        if line.startswith("data:"):
            return


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"limit": "0"}, "bad_request"),
        ({"limit": "many"}, "bad_request"),
        ({"after": "zz"}, "bad_position"),
        ({"where": "nope = 1"}, "bad_query"),
        ({"select": "nope"}, "bad_query"),
    ],
)
async def test_what_is_wrong_is_a_400(tmp_path: Path, door: Door, params: dict[str, str], code: str) -> None:
    async with edge(memory_folder(tmp_path)) as running:
        status, body = await running.get("/streams/rsvps", **params)
        assert (status, body["error"]["code"]) == (400, code)


async def test_a_declared_stream_that_nobody_has_made_yet_is_a_503(tmp_path: Path) -> None:
    async with edge(memory_folder(tmp_path)) as running:
        status, body = await running.get("/streams/yes")
        assert (status, body["error"]["code"]) == (503, "not_ready")


async def test_a_position_of_another_epoch_is_a_410_and_a_reset_to_followers(tmp_path: Path, door: Door) -> None:
    door.post("a")
    stale = door.stream.position((1,)).token()
    other = type(door.stream.position((0,)))("stream", "rsvps", "gone", (1,)).token()
    async with edge(memory_folder(tmp_path)) as running:
        assert (await running.get("/streams/rsvps", after=stale))[0] == 200
        assert (await running.get("/streams/rsvps", after=other))[0] == 410
        async with running.http.ws_connect("/streams/rsvps/socket") as ws:
            await ws.send_json({"type": "subscribe", "since": other})
            assert (await ws.receive_json(timeout=DEADLINE_S))["type"] == "reset"
            assert len((await ws.receive_json(timeout=DEADLINE_S))["events"]) == 1


def test_pages_of_a_follower_shrink_when_events_are_large_and_grow_when_they_are_small() -> None:
    assert _next_size(1_000, 50_000_000) == 250
    assert _next_size(1, 50_000_000) == 1
    assert _next_size(100, 100_000) == 200
    assert _next_size(1_000, 100) == 1_000
    assert _next_size(300, 500_000) == 300
