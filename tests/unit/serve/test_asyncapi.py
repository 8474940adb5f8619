"""The description of sockets, events and polls is valid AsyncAPI, and every message that an edge sends fits it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_openapi
from aiohttp import ClientWebSocketResponse
from described import Document
from edge import DEADLINE_S, eventually
from fake_flows import topic
from jsonschema import Draft7Validator
from test_openapi import Edge, running

from penstock.position import Position
from penstock.rights.inbox import Instruction
from penstock.rights.keys import make_key
from penstock.serve.describe.message_schemas import KINDS
from penstock.serve.fanout import tail
from tests.memory_folder import memory_folder

OFFICIAL = Path(__file__).parents[3] / "client/node_modules/@asyncapi/specs/schemas/3.0.0.json"
"""The schema that the AsyncAPI initiative publishes: `npm ci` in client/ brings it, as `make test` does."""
GONE_VIEW = Position("view", "topics", "another", (1,)).token()
GONE_STREAM = Position("stream", "rsvps", "another", (0,)).token()
_WAYS = ("/socket", "/events", "/publish")


async def document(edge: Edge) -> Document:
    return Document(await edge.ask("GET", "/asyncapi.json"))


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[tuple[Edge, Document]]:
    """An edge with rows, and what it says of itself then."""
    async with running(memory_folder(path)) as edge:
        edge.flows.commit(edge.flows.build(), [topic("a", 1)])
        edge.flows.emit(edge.flows.flow(), ["a"], {})
        await eventually(lambda: edge.views.view("topics").content is not None, "loaded")
        yield edge, await document(edge)


async def test_it_is_valid(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, described):
        errors = Draft7Validator(json.loads(OFFICIAL.read_text())).iter_errors(described.spec)
        assert [f"{error.json_path}: {error.message[:500]}" for error in errors] == []


async def test_it_is_valid_before_anything_was_built(tmp_path: Path) -> None:
    async with running(memory_folder(tmp_path)) as edge:
        described = await document(edge)
        errors = Draft7Validator(json.loads(OFFICIAL.read_text())).iter_errors(described.spec)
        assert [error.message for error in errors] == []


async def test_the_official_schema_finds_mistakes(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, described):
        spec = described.spec
        spec["operations"]["socket.send"]["action"] = "shout"
        assert list(Draft7Validator(json.loads(OFFICIAL.read_text())).iter_errors(spec))


async def test_references_lead_somewhere_and_operations_name_messages_of_their_channel(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, described):
        for reference in described.references():
            described.at(reference)
        for operation in described.spec["operations"].values():
            channel = operation["channel"]["$ref"]
            assert operation["messages"]
            assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])


async def test_every_way_to_follow_or_publish_is_described_and_no_other(tmp_path: Path) -> None:
    async with served(tmp_path) as (edge, described):
        there = set()
        for resource in edge.web.router.resources():
            path = resource.canonical
            if path.endswith(_WAYS) or path in ("/views/{view}", "/streams/{stream}", "/channels/{channel}"):
                kind = next((kind for kind in KINDS if f"{{{kind}}}" in path), "")
                there |= {path.replace(f"{{{kind}}}", name) for name in every(edge, kind, path)}
    assert {channel["address"] for channel in described.spec["channels"].values()} - {None} == there


def every(edge: Edge, kind: str, path: str) -> list[str]:
    app = edge.application
    names = {
        "": [""],
        "view": [view.name for view in app.views],
        "channel": [channel.name for channel in app.channels],
        "stream": [*(flow.name for flow in app.flows), "dead", "late"],
    }[kind]
    return [*(names if not path.endswith("/publish") else ()), *(s.name for s in app.streams if kind == "stream")]


async def test_a_server_with_keys_says_that_it_wants_one(tmp_path: Path) -> None:
    async with served(tmp_path) as (edge, described):
        assert all("security" not in server for server in described.spec["servers"].values())
        secret, record = make_key("", ("read:*",), {}, 0, None)
        await edge.rights.obey(Instruction("create", record.id, record))
        async with edge.http.get("/asyncapi.json", headers={"Authorization": f"Bearer {secret}"}) as reply:
            closed = await reply.json()
        assert all(server["security"] for server in closed["servers"].values())


# What is really said


class Listener:
    """Notes every message in both directions with the channel that it went over, and compares."""

    def __init__(self, edge: Edge, described: Document) -> None:
        self.edge, self.described = edge, described
        self.problems: list[str] = []
        self.said: set[tuple[str, str]] = set()

    def note(self, channel: str, key: str, body: Any) -> Any:
        self.said.add((channel, key))
        if key not in self.described.spec["channels"][channel]["messages"]:
            self.problems.append(f"{channel} has no message {key}: {body}")
        else:
            self.problems += self.described.problems(["channels", channel, "messages", key, "payload"], body)
        return body


class Talk:
    """A socket whose messages are all compared."""

    def __init__(self, listener: Listener, channel: str, socket: ClientWebSocketResponse) -> None:
        self._listener, self._channel, self._socket = listener, channel, socket

    async def say(self, **message: Any) -> None:
        self._listener.note(self._channel, message["type"], message)
        await self._socket.send_json(message)

    async def hear(self) -> dict[str, Any]:
        body: dict[str, Any] = await self._socket.receive_json(timeout=DEADLINE_S)
        key = body["type"]
        own = next(
            (f"{kind}.{body[kind]}.{key}" for kind in ("view", "stream") if self._channel == "socket" and kind in body),
            key,
        )
        return dict(self._listener.note(self._channel, own, body))


@asynccontextmanager
async def talk(listener: Listener, channel: str) -> AsyncIterator[Talk]:
    address = listener.described.spec["channels"][channel]["address"]
    async with listener.edge.http.ws_connect(address, max_msg_size=0) as socket:
        yield Talk(listener, channel, socket)


async def heard_events(listener: Listener, channel: str, blocks: int, key: str = "", **params: str) -> list[Any]:
    """The first blocks of Server-Sent Events, comments left out; an error is the last."""
    address = listener.described.spec["channels"][channel]["address"]
    found: list[Any] = []
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with listener.edge.http.get(address, params=params, headers=headers) as reply:
        fields: dict[str, str] = {}
        while len(found) < blocks and (not found or (found[-1] or {}).get("type") != "error"):
            read = await asyncio.wait_for(reply.content.readline(), DEADLINE_S)
            assert read, f"{reply.status}: it ended after {found}"
            line = read.decode().rstrip("\n")
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and fields.keys() - {"retry"}:
                kind, data = fields.get("event", "position"), fields.get("data")
                found.append(listener.note(channel, kind, None if data is None else json.loads(data)))
                described = listener.described.spec["channels"][channel]["messages"][kind]["headers"]
                assert set(fields) - {"data"} <= set(described["properties"])
                fields = {}
            elif not line:
                fields = {}
    return found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of more than two rows come in parts, and positions move without waiting for 15 s."""
    monkeypatch.setattr(test_openapi, "LIMITS", replace(test_openapi.LIMITS, snapshot_part_rows=2))
    monkeypatch.setattr(tail, "POSITION_S", 0.05)


async def test_every_message_fits_its_description_and_every_described_message_occurs(
    tmp_path: Path, small_parts: None
) -> None:
    async with running(memory_folder(tmp_path)) as edge:
        stream = edge.flows.build()
        edge.flows.commit(stream, [topic(name, 1) for name in "abc"])
        edge.flows.emit(edge.flows.flow(), ["a"], {})
        await eventually(lambda: edge.views.view("topics").content is not None, "loaded")
        listener = Listener(edge, await document(edge))
        await edge.ask("POST", "/streams/rsvps", [{"topic": "a"}, {"topic": "b"}, {"topic": 7}])
        await over_the_views_socket(listener, stream)
        await over_the_socket_for_all(listener, stream)
        await over_the_streams_socket(listener)
        await as_events(listener, stream)
        await as_polls(listener, stream)
        await publishing(listener)
        await until_the_right_is_gone(listener)
        assert listener.problems == []
        assert unsaid(listener) == set()


def unsaid(listener: Listener) -> set[tuple[str, str]]:
    """What is described of one view, one stream and the common socket, and did not occur."""
    wanted = ("view.topics.", "stream.rsvps.")
    return {
        (name, key)
        for name, channel in listener.described.spec["channels"].items()
        for key in channel["messages"]
        if (name.startswith(wanted) or name == "socket")
        and not key.startswith(("view.countries", "view.elsewhere", "stream.others", "stream.yes", "stream.late"))
        and key != "stall"  # takes seconds and megabytes: `test_slow_subscribers.py` compares those
    } - listener.said


async def over_the_views_socket(listener: Listener, stream: Any) -> None:
    edge = listener.edge
    async with talk(listener, "view.topics.socket") as socket:
        await socket.say(type="subscribe", id="s", limit=None)
        assert [(await socket.hear())["part"] for _ in range(2)] == [1, 2]
        edge.flows.commit(stream, [topic("a", 2)], [topic("b", 1)], accepted_us=1_700_000_000_000_000)
        changed = await socket.hear()
        assert (changed["deletes"], "accepted" in changed) == ([{"topic": "b"}], True)
        await socket.say(type="unsubscribe", id="s")
        at = changed["position"]
        await socket.say(
            type="subscribe", id="few", where="topic = 'zz'", select=["topic"], order_by="-topic", since=at
        )
        edge.flows.commit(stream, [topic("a", 3)])
        await until_told(edge, 3)
        assert (await socket.hear())["type"] == "position"
        await socket.say(type="ping", id="p")
        assert (await socket.hear())["type"] == "pong"
        await socket.say(type="subscribe", id="n", name="phone-7", limit=0, params={})
        position = (await socket.hear())["position"]
        await socket.say(type="ack", id="n", position=position)
        assert (await socket.hear())["type"] == "acked"
        await socket.say(type="pace", id="n", per_s=2)
        await socket.say(type="unsubscribe", id="n")
        await socket.say(type="subscribe", id="old", since=GONE_VIEW, limit=1)
        assert [(await socket.hear())["type"] for _ in range(2)] == ["reset", "snapshot"]
        await socket.say(type="subscribe", id="bad", where="nonsense(")
        assert (await socket.hear())["type"] == "error"


async def until_told(edge: Edge, offset: int) -> None:
    """Until the groups are as far as the view, which is so far; then those are told who know of less."""
    view = edge.views.view("topics")
    assert await view.until(lambda: view.content is not None and view.content.offset >= offset, DEADLINE_S)
    groups = edge.serving.hub._groups
    await eventually(lambda: all(group.cursor >= offset for group in groups.values() if group.members), "level")
    await edge.serving.hub.announce_all()


async def over_the_socket_for_all(listener: Listener, stream: Any) -> None:
    async with talk(listener, "socket") as socket:
        await socket.say(type="subscribe", view="topics", select="topic", limit=1)
        await socket.hear()
        listener.edge.flows.commit(stream, [topic("new", 99)])
        assert (await socket.hear())["upserts"] == [{"topic": "new"}]
        await socket.say(type="subscribe", id="topics", channel="jazz", limit=None)
        assert (await socket.hear())["rows"] == []
        await socket.say(type="pace", id="topics", per_s=None)
        await socket.say(type="unsubscribe", id="topics")
        await socket.say(type="subscribe", id="named", stream="rsvps", name="page-1")
        await socket.say(type="ack", id="named", position=(await socket.hear())["position"])
        assert (await socket.hear())["type"] == "acked"
        await socket.say(type="unsubscribe", id="named")
        for name in ("rsvps", "dead"):
            await socket.say(type="subscribe", id=name, stream=name, select="_time")
            assert (await socket.hear())["type"] == "events"
        await socket.say(type="subscribe", id="rsvps", stream="rsvps", where="topic = :t", params={"t": "zz"})
        assert (await socket.hear())["type"] == "subscribed"
        await socket.say(type="subscribe", id="none", stream="rsvps", where="topic = 'zz'")
        assert (await socket.hear())["type"] == "position"
        await socket.say(type="subscribe", id="gone", stream="rsvps", since=GONE_STREAM, where="topic = 'zz'")
        assert (await socket.hear())["type"] == "reset"
        await socket.say(type="subscribe", id="bad", view="topics", where="nonsense(")
        await socket.say(type="ping")
        assert {(await socket.hear())["type"] for _ in range(3)} == {"position", "error", "pong"}


async def over_the_streams_socket(listener: Listener) -> None:
    async with talk(listener, "stream.rsvps.socket") as socket:
        await socket.say(type="subscribe", id="all", since="start")
        position = (await socket.hear())["position"]
        await socket.say(type="subscribe", id="all", select="topic")
        assert (await socket.hear())["type"] == "subscribed"
        await socket.say(type="subscribe", id="all", name="page-2")
        assert (await socket.hear())["type"] == "subscribed"
        await socket.say(type="ack", id="all", position=position)
        assert (await socket.hear())["type"] == "acked"
        await socket.say(type="pace", id="all", per_s=1)
        assert (await socket.hear())["error"]["code"] == "every_change"
        await socket.say(type="unsubscribe", id="all")
        await socket.say(type="subscribe", id="gone", since=GONE_STREAM, where="topic = 'zz'")
        assert [(await socket.hear())["type"] for _ in range(2)] == ["reset", "position"]
        await socket.say(type="subscribe", id="bad", where="nonsense(")
        assert (await socket.hear())["type"] == "error"
        await socket.say(type="ping")
        await socket.hear()


async def until_members(edge: Edge, wanted: int) -> None:
    hub = edge.serving.hub
    await eventually(
        lambda: sum(len(group.members) for group in hub._groups.values()) == wanted, f"{wanted} subscribed"
    )


async def as_events(listener: Listener, stream: Any) -> None:
    edge = listener.edge
    await until_members(edge, 0)
    hearing = asyncio.create_task(heard_events(listener, "view.topics.events", 4, last_event_id=GONE_VIEW))
    await until_members(edge, 1)
    edge.flows.commit(stream, [topic("a", 50)])
    (reset, *parts, changes) = await hearing
    assert (reset["type"], [part["type"] for part in parts], changes["type"]) == ("reset", ["snapshot"] * 2, "changes")
    await until_members(edge, 0)
    hearing = asyncio.create_task(heard_events(listener, "view.topics.events", 2, where="topic = 'zz'"))
    await until_members(edge, 1)
    edge.flows.commit(stream, [topic("a", 51)])
    await until_told(edge, 6)
    assert (await hearing)[1] is None


async def as_polls(listener: Listener, stream: Any) -> None:
    edge = listener.edge
    since = (await edge.ask("GET", "/views/topics"))["position"]
    edge.flows.commit(stream, [topic("a", 60)])
    polled = await edge.ask("GET", "/views/topics", params={"since": since, "wait": 60})
    listener.note("view.topics.poll", "messages", polled)
    assert polled["messages"][0]["type"] == "changes"
    polled = await edge.ask("GET", "/views/topics", params={"since": GONE_VIEW, "wait": 60})
    listener.note("view.topics.poll", "messages", polled)
    assert polled["messages"][0]["type"] == "reset"
    listener.note("stream.rsvps.poll", "page", await edge.ask("GET", "/streams/rsvps"))
    for block in await heard_events(listener, "stream.rsvps.events", 1):
        assert len(block["events"]) == 2
    found = await heard_events(listener, "stream.rsvps.events", 2, after=GONE_STREAM, where="topic = 'zz'")
    assert found[1] is None


async def publishing(listener: Listener) -> None:
    async with talk(listener, "stream.rsvps.publish") as socket:
        assert (await socket.hear())["type"] == "welcome"
        await socket.say(type="hello", producer="till", epoch=1)
        assert (await socket.hear())["expected"] == 0
        await socket.say(type="publish", id=0, event={"topic": "a"})
        assert (await socket.hear())["accepted"] == 1
        await socket.say(type="publish", id=1, events=[{"topic": "a"}, {"topic": "b", "n": 2}])
        assert (await socket.hear())["accepted"] == 2
        await socket.say(type="publish", id=9, event={"topic": "a"})
        refused = await socket.hear()
        assert (refused["type"], refused["expected"]) == ("error", 2)
        await socket.say(type="ping")
        await socket.hear()


async def until_the_right_is_gone(listener: Listener) -> None:
    """An `error` is the last event of a stream whose credential was revoked."""
    secret, record = make_key("", ("read:*",), {}, 0, None)
    await listener.edge.rights.obey(Instruction("create", record.id, record))
    ways = ("view.topics.events", "stream.rsvps.events")
    hearing = [asyncio.create_task(heard_events(listener, way, 9, secret)) for way in ways]
    await eventually(lambda: len(listener.edge.serving._pipes) == 2, "open")
    await listener.edge.rights.obey(Instruction("revoke", record.id))
    for heard in await asyncio.gather(*hearing):
        assert heard[-1]["type"] == "error"
