"""One position works on every transport, and every transport says the same, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from edge import DEADLINE_S, TRANSPORTS, Edge, Replica, eventually, flows_and_edge
from fake_flows import topic
from raw_socket import frame, raw_socket
from test_hub import QUERIES, World

from penstock.config import Limits
from penstock.serve.fanout.messages import Message
from penstock.serve.longpoll import Gathering, Replies
from penstock.sockets.frames import TEXT


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("query", QUERIES)
async def test_a_client_hops_from_transport_to_transport_with_one_position(
    tmp_path: Path, query: str, seed: int
) -> None:
    params = QUERIES[query]
    async with flows_and_edge(tmp_path, position_s=0.1) as (flows, running):
        world = World(seed, flows, flows.build())
        world.batch()
        await running.at_offset(world.offset)
        replica, hops = Replica(), list(TRANSPORTS)
        world.random.shuffle(hops)
        for hop in hops * 3:
            for _ in range(world.random.randint(0, 3)):
                world.batch()
            await running.at_offset(world.offset)
            content = running.views.view("topics").content
            assert content is not None
            end = content.position.token()
            if replica.position != end:
                await TRANSPORTS[hop](running, replica, lambda end=end: replica.position == end, params)
            wanted = await running.rows(**params)
            assert sorted(replica.rows.values(), key=str) == sorted(wanted, key=str), hop
        assert replica.resets == 0


async def _raw_sse(edge: Edge, since: str, count: int, params: dict[str, str]) -> list[bytes]:
    got: list[bytes] = []
    async with edge.http.get("/views/topics/events", params=params, headers={"Last-Event-ID": since}) as reply:
        while len(got) < count:
            line = await reply.content.readline()
            if line.startswith(b"data: "):
                got.append(line.removeprefix(b"data: ").rstrip(b"\n"))
    return got


async def _raw_socket(edge: Edge, since: str, count: int, params: dict[str, str], compress: int = 0) -> list[bytes]:
    got: list[bytes] = []
    async with edge.http.ws_connect("/views/topics/socket", compress=compress) as ws:
        await ws.send_json({"type": "subscribe", "id": "s", "since": since, **params})
        while len(got) < count:
            text = await ws.receive_str(timeout=DEADLINE_S)
            if '"type":"position"' not in text:
                got.append(text.encode().replace(b'{"id":"s",', b"{", 1))
    return got


async def _raw_compressed(edge: Edge, since: str, count: int, params: dict[str, str]) -> list[bytes]:
    return await _raw_socket(edge, since, count, params, compress=15)


async def _raw_poll(edge: Edge, since: str, count: int, params: dict[str, str]) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        async with edge.http.get("/views/topics", params={"since": since, "wait": "60", **params}) as reply:
            body = await reply.read()
            messages = json.loads(body)["messages"]
            since = json.loads(body)["position"]
            whole = body.removeprefix(b'{"messages":[')
            for message in messages:
                size = len(json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode())
                got.append(whole[:size])
                whole = whole[size + 1 :]
    return got


@pytest.mark.parametrize("query", ["all", "where", "top"])
async def test_every_transport_gives_the_same_bytes_apart_from_the_id(tmp_path: Path, query: str) -> None:
    params = QUERIES[query]
    async with flows_and_edge(tmp_path) as (flows, running):
        world = World(11, flows, flows.build())
        world.batch()
        await running.at_offset(world.offset)
        _, body = await running.get("/views/topics", **params)
        readers: list[Callable[..., Any]] = [_raw_sse, _raw_socket, _raw_compressed, _raw_poll]
        replica = Replica()
        for _ in range(30):
            world.batch()
        await running.at_offset(world.offset)
        content = running.views.view("topics").content
        assert content is not None
        replica.position = body["position"]
        replica.rows = {json.dumps([row["topic"]]): row for row in body["rows"]}
        await TRANSPORTS["socket"](running, replica, lambda: replica.position == content.position.token(), params)
        count = len([message for message in replica.messages if message["type"] == "changes"])
        assert count > 5
        live = await asyncio.gather(*(reader(running, body["position"], count, params) for reader in readers))
        assert live[0] == live[1] == live[2] == live[3]


async def test_equal_long_polls_get_one_body(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        _, body = await running.get("/views/topics")
        made: list[bytes] = []
        replies = running.serving._reads._replies

        class Counting(Replies):
            def body(self, messages: Any) -> tuple[bytes, str]:
                reply = replies.body(messages)
                made.append(reply[0])
                return reply

        running.serving._reads._replies = Counting()
        polls = [asyncio.create_task(running.get("/views/topics", since=body["position"], wait=60)) for _ in range(20)]
        await eventually(lambda: running.serving.hub._subscribers_by_view().get(("topics",)) == 20, "all wait")
        flows.commit(stream, [topic("a", 2)])
        answers = await asyncio.gather(*polls)
        assert len({id(reply) for reply in made}) == 1, "bodies were put together more than once"
        assert all(answer == answers[0] for answer in answers)
        assert running.observer.value("penstock_serve_messages_encoded_total", view="topics") == 1


def test_replies_that_are_kept_are_few() -> None:
    replies = Replies()
    for i in range(100):
        replies.body([Message({"type": "changes", "position": f"p{i}"}, i)])
    assert len(replies._made) <= 8


async def test_changes_behind_a_position_may_be_kept_and_the_rest_may_not(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        _, body = await running.get("/views/topics")

        async def ask(**params: str) -> tuple[int, str, str | None]:
            async with running.http.get("/views/topics", params=params) as reply:
                return reply.status, reply.headers["Cache-Control"], reply.headers.get("ETag")

        assert await ask(since=body["position"], wait="0") == (204, "no-store", None)
        flows.commit(stream, [topic("a", 2)])
        await running.at_offset(2)
        status, control, tag = await ask(since=body["position"])
        assert (status, control) == (200, "public, max-age=10")
        assert tag == (await ask(since=body["position"]))[2]
        old = body["position"]
        flows.commit(flows.build(), [topic("b", 1)])
        view = running.views.view("topics")
        await view.until(lambda: view.content is not None and "b" in str(view.content.rows), DEADLINE_S)
        assert (await ask(since=old))[:2] == (200, "no-store"), "a reset is true once"


async def test_a_stale_poll_gets_its_snapshot_in_parts_and_each_is_made_when_the_one_before_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    take = Gathering.take

    def watched(self: Gathering) -> list[Message]:
        held.append(len(self.messages))
        return take(self)

    monkeypatch.setattr(Gathering, "take", watched)
    async with flows_and_edge(tmp_path, Limits(snapshot_part_rows=10)) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        _, body = await running.get("/views/topics")
        flows.commit(flows.build(), [topic(f"t{n}", n) for n in range(95)])
        await running.at_offset(1)
        status, poll = await running.get("/views/topics", since=body["position"], limit=1_000)
        assert status == 200
        kinds = [(message["type"], message.get("part")) for message in poll["messages"]]
        assert kinds == [("reset", None), *(("snapshot", part) for part in range(1, 11))]
        assert len([row for message in poll["messages"][1:] for row in message["rows"]]) == 95
        assert poll["position"] == poll["messages"][-1]["position"]
        assert max(held) == 1, "messages of a snapshot waited for a client"
        async with running.http.head("/views/topics", params={"since": body["position"]}) as reply:
            assert (reply.status, await reply.read()) == (200, b"")
        assert (await running.get("/views/topics", since=poll["position"], wait=0))[0] == 204


async def test_an_event_source_forgets_the_position_that_a_reset_has_ended(tmp_path: Path) -> None:
    """WHATWG: an `id` without a value empties the last event id, so that a broken snapshot begins anew."""
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        _, body = await running.get("/views/topics")
        flows.commit(flows.build(), [topic("b", 1)])
        await running.at_offset(1)
        last_event_id, ids = body["position"], []
        async with running.http.get("/views/topics/events", headers={"Last-Event-ID": last_event_id}) as reply:
            while len(ids) < 2:
                line = (await reply.content.readline()).decode().rstrip("\n")
                if line.startswith("id:"):
                    last_event_id = line.removeprefix("id:").strip()
                elif line.startswith("data:"):
                    ids.append((json.loads(line[5:])["type"], last_event_id))
        assert ids[0] == ("reset", "")
        assert ids[1] == ("snapshot", last_event_id)
        assert last_event_id


async def test_a_packet_full_of_subscribes_leaves_turns_to_others(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        assert running.server.port is not None
        begun: list[float] = []
        serve = running.serving._serve

        async def counted(*given: Any) -> None:
            begun.append(turns)
            await serve(*given)

        running.serving._serve = counted  # type: ignore[method-assign]
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        async with raw_socket(running.server.port, "/views/topics/socket") as raw:
            raw.write(*(frame(TEXT, json.dumps({"type": "subscribe", "id": f"s{n}"}).encode()) for n in range(50)))
            got = {(await raw.json())["id"] for _ in range(50)}
        other.cancel()
        assert len(got) == 50
        assert len(set(begun)) == 50, "two began in one turn"


TAGS: dict[str, tuple[str, int]] = {
    "itself": ("{tag}", 304),
    "weak": ("W/{tag}", 304),
    "a list": ('"other", W/{tag} , "more"', 304),
    "anything": ("*", 304),
    "another": ('"other"', 200),
    "part of it": ('"{part}"', 200),
    "without quotes": ("{bare}", 200),
    "a list with it inside another": ('"x{bare}x"', 200),
    "nothing": ("", 200),
}


@pytest.mark.parametrize("what", TAGS)
async def test_tags_are_compared_as_rfc_9110_says(tmp_path: Path, what: str) -> None:
    pattern, wanted = TAGS[what]
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        async with running.http.get("/views/topics") as reply:
            tag = reply.headers["ETag"]
        sent = pattern.format(tag=tag, bare=tag.strip('"'), part=tag.strip('"')[:-1])
        for method in ("GET", "HEAD"):
            async with running.http.request(method, "/views/topics", headers={"If-None-Match": sent}) as reply:
                assert reply.status == wanted
                assert reply.headers["ETag"] == tag
                assert bool(await reply.read()) == (method == "GET" and wanted == 200)


@pytest.mark.parametrize("rows", [3, 6_000])
async def test_head_has_no_body_and_the_connection_goes_on(tmp_path: Path, rows: int) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic(f"t{i}", i) for i in range(rows)])
        await running.at_offset(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        for _ in range(2):
            writer.write(b"HEAD /views/topics?limit=null HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
            assert head.startswith(b"HTTP/1.1 200 "), head
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), DEADLINE_S)).startswith(b"HTTP/1.1 200 ")
        writer.close()
