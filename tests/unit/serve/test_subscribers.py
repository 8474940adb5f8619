"""A named subscription resumes where it was acknowledged, through restarts, and `acked` means durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse
from edge import DEADLINE_S, Door, Edge, edge, eventually
from fake_flows import FakeFlows, topic

from penstock.config import Limits
from penstock.errors import DiskFullError, NameTakenError, TooManyError, UnknownNameError
from penstock.log.control import ControlMap
from penstock.log.group_commit import GroupCommit
from penstock.observe.metrics import Observer
from penstock.rights.credential import ANONYMOUS, Credential
from penstock.rights.scope import Scope
from penstock.serve import subscribers
from penstock.serve.subscribers import Subscribers
from tests.memory_folder import memory_folder


class Writer:
    """The edge's own log, as `run/edge.py` has it, and a count of what is written to it."""

    def __init__(self, path: Path) -> None:
        self.door = Door(path)
        self.group = GroupCommit(self.door.log, unwritten_bytes=10**8)
        self.written: list[Mapping[str, Any]] = []
        self.full = False

    async def remember(self, values: Mapping[str, Any]) -> None:
        if self.full:
            raise DiskFullError("the disk is full")
        await asyncio.wrap_future(self.group.submit([], values))
        self.written.append(dict(values))

    def options(self) -> dict[str, Any]:
        return {"remember": self.remember, "memory": self.door.log.memory()}

    def close(self) -> None:
        self.group.close()
        self.door.log.close()


@asynccontextmanager
async def world(path: Path, limits: Limits | None = None) -> AsyncIterator[tuple[FakeFlows, Edge, Writer]]:
    flows, writer = FakeFlows(memory_folder(path).flows_log), Writer(path)
    try:
        async with edge(memory_folder(path), limits, **writer.options()) as running:
            yield flows, running, writer
    finally:
        writer.close()
        flows.close()


async def receive(ws: ClientWebSocketResponse, kind: str) -> Any:
    message = await ws.receive_json(timeout=DEADLINE_S)
    assert message["type"] == kind, message
    return message


async def test_a_name_resumes_where_it_was_acknowledged_also_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as (flows, running, _):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "name": "phone", "where": "rsvps > 0"})
            snapshot = await receive(ws, "snapshot")
            await ws.send_json({"type": "ack", "id": "s", "position": snapshot["position"]})
            assert await receive(ws, "acked") == {"type": "acked", "id": "s", "position": snapshot["position"]}
            flows.commit(stream, [topic("a", 2)])
            unacknowledged = await receive(ws, "changes")
    async with world(tmp_path) as (_, running, _):
        await running.at_offset(2)
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "t", "name": "phone", "where": "rsvps > 0"})
            assert await receive(ws, "changes") | {"id": "s"} == unacknowledged
            await ws.send_json({"type": "subscribe", "id": "u", "where": "rsvps > 0"})
            assert (await receive(ws, "snapshot"))["id"] == "u", "without the name there is nothing to resume from"


async def test_a_name_of_a_stream_goes_on_behind_the_acknowledged_event(tmp_path: Path) -> None:
    async with world(tmp_path) as (_, running, writer):
        writer.door.post("a", "b", "c")
        async with running.http.ws_connect("/streams/rsvps/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "name": "loader"})
            events = (await receive(ws, "events"))["events"]
            await ws.send_json({"type": "ack", "id": "s", "position": events[1]["_position"]})
            await receive(ws, "acked")
        async with running.http.ws_connect("/streams/rsvps/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "name": "loader"})
            assert [event["topic"] for event in (await receive(ws, "events"))["events"]] == ["c"]


async def test_acks_are_written_about_once_a_second_and_the_last_is_kept_when_the_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "WRITE_S", 30.0)
    async with world(tmp_path) as (flows, running, writer):
        stream = flows.build()
        flows.commit(stream, [topic("a", 0)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "name": "n"})
            position = (await receive(ws, "snapshot"))["position"]
            writer.written.clear()
            await ws.send_json({"type": "ack", "id": "s", "position": position})
            await receive(ws, "acked")
            for i in range(50):
                flows.commit(stream, [topic("a", i + 1)])
                position = (await receive(ws, "changes"))["position"]
                await ws.send_json({"type": "ack", "id": "s", "position": position})
            assert len(writer.written) == 1
        await eventually(lambda: len(writer.written) == 2, "what waited was written when it left")
        (value,) = writer.written[1].values()
        assert value["position"] == position
        assert running.observer.value("penstock_serve_acks_total") == 1


async def test_an_older_ack_does_not_take_back_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "WRITE_S", 0.01)
    async with world(tmp_path) as (flows, running, _):
        stream = flows.build()
        flows.commit(stream, [topic("a", 0)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "name": "n"})
            older = (await receive(ws, "snapshot"))["position"]
            flows.commit(stream, [topic("a", 1)])
            newer = (await receive(ws, "changes"))["position"]
            for position in (newer, older):
                await ws.send_json({"type": "ack", "id": "s", "position": position})
                assert (await receive(ws, "acked"))["position"] == newer


async def test_an_ack_that_cannot_be_written_is_an_error_not_an_acked(tmp_path: Path) -> None:
    async with world(tmp_path) as (flows, running, writer):
        flows.commit(flows.build(), [topic("a", 0)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "name": "n"})
            position = (await receive(ws, "snapshot"))["position"]
            writer.full = True
            await ws.send_json({"type": "ack", "id": "s", "position": position})
            failed = await receive(ws, "error")
            assert (failed["id"], failed["to"], failed["error"]["code"]) == ("s", "ack", "disk_full")


async def test_an_ack_that_comes_before_its_name_is_open_waits_for_it(tmp_path: Path) -> None:
    async with world(tmp_path) as (flows, running, _):
        flows.commit(flows.build(), [topic("a", 0)])
        position = (await running.get("/views/topics"))[1]["position"]
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "name": "n", "since": position})
            await ws.send_json({"type": "ack", "id": "s", "position": position})
            assert await receive(ws, "acked") == {"type": "acked", "id": "s", "position": position}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another where": (
        {"type": "subscribe", "id": "t", "name": "n", "view": "topics", "where": "rsvps > 1"},
        "name_taken",
    ),
    "another view": ({"type": "subscribe", "id": "t", "name": "n", "view": "countries"}, "name_taken"),
    "all rows": ({"type": "subscribe", "id": "t", "name": "n", "view": "topics", "limit": None}, "name_taken"),
    "no token": ({"type": "ack", "id": "s", "position": 5}, "bad_position"),
    "a token of a stream": ({"type": "ack", "id": "s", "position": "stream"}, "bad_position"),
    "no such subscription": ({"type": "ack", "id": "x", "position": "zz"}, "bad_request"),
}


@pytest.mark.parametrize("what", BAD)
async def test_what_a_name_cannot_do_is_an_error(tmp_path: Path, what: str) -> None:
    fields, code = BAD[what]
    async with world(tmp_path) as (flows, running, writer):
        flows.commit(flows.build(), [topic("a", 0)])
        flows.build("countries")
        if fields.get("position") == "stream":
            fields = fields | {"position": writer.door.post("a")}
        async with running.http.ws_connect("/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "view": "topics", "name": "n"})
            await receive(ws, "snapshot")
            await ws.send_json(fields)
            answer = await receive(ws, "error")
            assert (answer["error"]["code"], answer.get("to") == "ack") == (code, fields["type"] == "ack")


async def test_names_are_listed_and_removed_over_http(tmp_path: Path) -> None:
    async with world(tmp_path) as (flows, running, _):
        flows.commit(flows.build(), [topic("a", 0)])
        async with running.http.ws_connect("/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "view": "topics", "name": "n", "limit": 3})
            position = (await receive(ws, "snapshot"))["position"]
            await ws.send_json({"type": "ack", "id": "s", "position": position})
            await receive(ws, "acked")
        status, body = await running.get("/subscribers")
        (listed,) = body["subscribers"]
        assert listed.pop("used").endswith("Z")
        assert (status, listed) == (
            200,
            {"name": "n", "view": "topics", "limit": 3, "position": position, "credential": "anonymous"},
        )
        async with running.http.delete("/subscribers/n") as reply:
            assert (reply.status, await reply.json()) == (200, {"forgotten": "n"})
        async with running.http.delete("/subscribers/n") as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (404, "unknown_name")
        assert (await running.get("/subscribers"))[1] == {"subscribers": []}


# Without a network


ANN = Credential("key/ann", "ann", (Scope("read", "*"),))
BOB = Credential("key/bob", "bob", (Scope("read", "*"),))


class SteppedClock:
    def __init__(self) -> None:
        self.us = 10**15

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / 1e6

    def advance(self, seconds: float) -> None:
        self.us += int(seconds * 1e6)


def made(limits: Limits | None = None) -> tuple[Subscribers, ControlMap, SteppedClock]:
    memory = ControlMap()
    clock = SteppedClock()

    async def remember(values: Mapping[str, Any]) -> None:
        memory.apply(values)

    return Subscribers(memory, remember, limits or Limits(), clock, Observer()), memory, clock


async def test_names_belong_to_a_credential() -> None:
    names, memory, _ = made()
    await names.open(ANN, "n", {"view": "topics"})
    await names.open(BOB, "n", {"view": "countries"})
    assert set(memory) == {"subscriber/key/ann/n", "subscriber/key/bob/n"}
    assert [(entry["name"], entry["view"]) for entry in names.listed(ANN)] == [("n", "topics")]
    assert len(names.listed(ANONYMOUS)) == 2, "an administrator sees all"
    with pytest.raises(NameTakenError):
        await names.open(ANN, "n", {"view": "countries"})
    with pytest.raises(Exception, match="right admin"):
        await names.forget(BOB, "n", "key/ann")
    await names.forget(ANONYMOUS, "n", "key/ann")
    with pytest.raises(UnknownNameError):
        await names.forget(ANN, "n")


async def test_names_that_nobody_uses_are_forgotten_and_those_in_use_are_not() -> None:
    names, memory, clock = made(Limits(subscriber_keep_s=10 * 86_400.0))
    await names.open(ANN, "old", {"view": "topics"})
    await names.open(ANN, "used", {"view": "topics"})
    for _ in range(6):
        clock.advance(2 * 86_400.0)
        await names.open(ANN, "used", {"view": "topics"})
        await names.sweep()
    assert set(memory) == {"subscriber/key/ann/used"}


async def test_a_credential_has_a_bounded_number_of_names() -> None:
    names, _, _ = made(replace(Limits(), subscriber_names=2))
    for name in "ab":
        await names.open(ANN, name, {"view": "topics"})
    with pytest.raises(TooManyError):
        await names.open(ANN, "c", {"view": "topics"})
    await names.open(ANN, "a", {"view": "topics"})
    await names.open(BOB, "c", {"view": "topics"})
