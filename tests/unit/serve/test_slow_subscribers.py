"""A slow subscriber gets merged batches, is told so, is cut in the end, and hurts nobody."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, StreamReader, WSMsgType
from described import misfits
from edge import DEADLINE_S, Door, Edge, Replica, eventually, flows_and_edge, follow_socket
from fake_flows import small_app, topic

from penstock.app import App
from penstock.config import Limits
from penstock.serve.describe.message_schemas import SHARED
from penstock.serve.fanout.messages import Message, sse_frame
from penstock.sockets import wire
from penstock.sockets.pipe import WRITE_HIGH_BYTES

LIMITS = Limits(subscriber_bytes=256 * 1024, subscriber_stall_s=0.1, subscriber_cut_s=30)
WIDE = "x" * 50_000
EVENTS = b"GET /views/topics/events HTTP/1.1\r\nHost: x\r\n\r\n"


async def _slow_connection(edge: Edge, request: bytes) -> socket.socket:
    """A client that asks and then does not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", edge.server.port))
    await loop.sock_sendall(raw, request)
    return raw


def _upgrade() -> bytes:
    subscribe = b'{"type":"subscribe"}'
    mask = bytes(4)
    return (
        b"GET /views/topics/socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        + bytes((0x81, 0x80 | len(subscribe)))
        + mask
        + subscribe
    )


def _request(transport: str) -> bytes:
    return EVENTS if transport == "sse" else _upgrade()


def _cuts(edge: Edge, transport: str = "websocket", policy: str = "conflate") -> float:
    return edge.observer.value("penstock_serve_subscribers_cut_total", transport=transport, policy=policy)


def _subscribers(edge: Edge) -> float:
    return edge.serving.hub._subscribers_by_view().get(("topics",), 0.0)


def ledger_app() -> App:
    app = small_app()
    app.channel("ledger", "topics", policy="every_change")
    return app


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_subscriber_that_does_not_read_is_cut_in_time_while_others_get_everything(
    tmp_path: Path, transport: str
) -> None:
    limits = replace(LIMITS, subscriber_cut_s=0.5)
    async with flows_and_edge(tmp_path, limits) as (flows, running):
        stream = flows.build()
        raw = await _slow_connection(running, _request(transport))
        replica = Replica()
        newest = json.dumps(["wide"])
        done = lambda: replica.rows.get(newest, {}).get("rsvps") == 79  # noqa: E731
        follower = asyncio.create_task(follow_socket(running, replica, done, {}))
        await eventually(lambda: _subscribers(running) == 2 and bool(replica.messages), "both have joined")
        for i in range(80):
            await asyncio.to_thread(flows.commit, stream, [topic("wide", i, WIDE)])
        await follower
        assert replica.resets == 0
        await eventually(lambda: _cuts(running, transport) == 1, "cut")
        assert running.observer.value("penstock_serve_stalls_total", view="topics", policy="conflate") >= 1
        await eventually(lambda: _subscribers(running) == 0, "forgotten")
        assert await _bytes_to_the_end(raw) < 2_000_000, "megabytes of stale updates hid in buffers"
        raw.close()


async def _bytes_to_the_end(raw: socket.socket) -> int:
    """How much of what was sent still reaches the client; the server ends the connection."""
    loop, count = asyncio.get_running_loop(), 0
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            while data := await loop.sock_recv(raw, 65536):
                count += len(data)
    return count


class Sleeper:
    """A client on a socket that can stop reading, and then goes on."""

    def __init__(self, ws: ClientWebSocketResponse, key: tuple[str, ...] = ("topic",)) -> None:
        self.ws = ws
        self.replica = Replica(key)
        self.stalls: list[dict[str, Any]] = []
        self._transport = ws._response.connection.transport  # type: ignore[union-attr]

    def sleep(self) -> None:
        self._transport.pause_reading()

    def wake(self) -> None:
        self._transport.resume_reading()

    async def read(self) -> bool:
        """Take one message; False when the socket was closed."""
        message = await self.ws.receive(timeout=DEADLINE_S)
        if message.type != WSMsgType.TEXT:
            return False
        body = json.loads(message.data)
        body.pop("id", None)
        if body["type"] == "stall":
            assert misfits(SHARED["message.stall"], body) == []
            self.stalls.append(body["behind"])
        else:
            self.replica.take(body)
        return True

    async def read_until(self, position: str) -> None:
        while self.replica.position != position:
            assert await self.read(), self.ws.close_code


@asynccontextmanager
async def sleeper(edge: Edge, **fields: Any) -> AsyncIterator[Sleeper]:
    async with edge.http.ws_connect("/views/topics/socket", max_msg_size=0) as ws:
        await ws.send_json({"type": "subscribe", "id": "s", **fields})
        client = Sleeper(ws)
        await client.read()
        yield client


QUERIES: dict[str, dict[str, Any]] = {
    "all": {},
    "where": {"where": "topic <> 'c'"},
    "top": {"order_by": "-rsvps", "limit": 2},
    "top of some": {"where": "rsvps > 10", "order_by": "topic", "limit": 3, "select": "rsvps,group"},
}


@pytest.mark.parametrize("query", QUERIES)
async def test_one_that_reads_again_gets_stall_and_one_merged_message_that_leads_to_the_present(
    tmp_path: Path, query: str
) -> None:
    async with flows_and_edge(tmp_path, LIMITS) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 50), topic("b", 50), topic("c", 1), topic("old", 60)])
        async with sleeper(running, **QUERIES[query]) as client:
            client.sleep()
            for i in range(100):
                changed = [topic("a", i, WIDE), topic("b", 100 - i, WIDE), topic("c", i % 7)]
                passing = [topic("passing", 70, WIDE)] if i == 90 else []
                gone = [{"topic": "passing"}] if i == 95 else [{"topic": "old"}] if i == 50 else []
                offset = await asyncio.to_thread(flows.commit, stream, changed + passing, gone)
            await running.at_offset(offset)
            stalls = ("penstock_serve_stalls_total", {"view": "topics", "policy": "conflate"})
            await eventually(lambda: running.observer.value(stalls[0], **stalls[1]) == 1, "stalled")
            client.wake()
            await client.read_until(stream.position((offset,)).token())
            assert client.replica.resets == 0
            assert len(client.replica.messages) < 60, "nothing was merged"
            (behind,) = client.stalls
            assert behind["batches"] > 40
            assert behind["bytes"] >= 0
            assert behind["seconds"] >= 0.1
            wanted = await running.rows(**{k: str(v) for k, v in QUERIES[query].items()})
            assert sorted(client.replica.rows.values(), key=str) == sorted(wanted, key=str)
            flows.commit(stream, [topic("a", 500)])
            await client.read_until(stream.position((offset + 1,)).token())
        assert _cuts(running) == 0
        merged = running.observer.value("penstock_serve_batches_conflated_total", view="topics", policy="conflate")
        assert merged == behind["batches"]


async def test_one_that_reads_again_after_a_long_pause_is_asked_before_it_is_taken_for_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PING_S", 2.0)
    monkeypatch.setattr(wire, "PONG_S", 1.0)
    async with flows_and_edge(tmp_path, LIMITS) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 0)])
        async with sleeper(running) as client:
            client.sleep()
            for i in range(100):
                offset = await asyncio.to_thread(flows.commit, stream, [topic("a", i, WIDE)])
            await running.at_offset(offset)
            await asyncio.sleep(3.5)  # longer than a silent one is given
            client.wake()
            await client.read_until(stream.position((offset,)).token())
            reading = asyncio.create_task(client.read_until(stream.position((offset + 1,)).token()))
            await asyncio.sleep(2.5)  # it has been looked at twice
            flows.commit(stream, [topic("a", 500)])
            await asyncio.wait_for(reading, DEADLINE_S)
        assert running.observer.value("penstock_serve_sockets_closed_total", code="4007") == 0


async def test_a_slow_event_stream_is_merged_and_told_so_as_a_socket_is(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, LIMITS) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 0)])
        async with running.http.get("/views/topics/events", read_bufsize=2**20) as reply:
            blocks = _blocks(reply.content)
            replica, stalls = Replica(), 0
            replica.take((await anext(blocks))[1])
            assert reply.connection is not None
            assert reply.connection.transport is not None
            reply.connection.transport.pause_reading()
            for i in range(100):
                offset = await asyncio.to_thread(flows.commit, stream, [topic("a", i + 1, WIDE)])
            stalled = ("penstock_serve_stalls_total", {"view": "topics", "policy": "conflate"})
            await eventually(lambda: running.observer.value(stalled[0], **stalled[1]) == 1, "stalled")
            reply.connection.transport.resume_reading()
            while replica.position != stream.position((offset,)).token():
                id, message = await anext(blocks)
                if message["type"] == "stall":
                    stalls += 1
                    assert id is None, "nobody resumes from a stall"
                else:
                    replica.take(message)
            assert stalls == 1
            assert len(replica.messages) < 60
            assert replica.rows['["a"]']["rsvps"] == 100


async def _blocks(content: StreamReader) -> AsyncIterator[tuple[str | None, Any]]:
    """The id and the message of each event."""
    id: str | None = None
    async for line in content:
        if line.startswith(b"id: "):
            id = line[4:].decode().strip()
        elif line.startswith(b"data: "):
            yield id, json.loads(line[6:])
        elif line == b"\n":
            id = None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("query", QUERIES)
async def test_whatever_a_client_reads_and_when_it_always_sees_a_state_that_the_view_had(
    tmp_path: Path, query: str, seed: int
) -> None:
    """The sum over two rows of one batch is always 100, though a client sleeps and wakes at random."""
    rng, params = random.Random(seed), QUERIES[query]
    limits = replace(LIMITS, subscriber_bytes=rng.choice([0, 40_000, 200_000]), subscriber_stall_s=0.02)
    async with flows_and_edge(tmp_path, limits) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 50, WIDE), topic("b", 50, WIDE)])
        async with sleeper(running, **params) as client:
            reading = asyncio.create_task(_look(client, params))
            for i in range(60):
                if i % 10 == 0:
                    rng.choice([client.sleep, client.wake])()
                share = rng.randrange(101)
                others = [topic(f"t{rng.randrange(4)}", rng.randrange(60), "x" * rng.randrange(20_000))]
                gone = [{"topic": f"t{rng.randrange(4)}"}]
                kept = [row for row in others if row["topic"] != gone[0]["topic"]]
                rows = [topic("a", share, WIDE), topic("b", 100 - share, WIDE), *kept]
                offset = await asyncio.to_thread(flows.commit, stream, rows, gone)
            end = stream.position((offset,)).token()
            client.wake()
            await running.at_offset(offset)
            await eventually(lambda: client.replica.position == end or reading.done(), "read to the end")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if not reading.cancelled():
                reading.result()
            wanted = await running.rows(**{k: str(v) for k, v in params.items()})
            assert sorted(client.replica.rows.values(), key=str) == sorted(wanted, key=str)
            assert client.replica.resets == 0


async def _look(client: Sleeper, params: dict[str, Any]) -> None:
    while await client.read():
        rows = {row["topic"]: row["rsvps"] for row in client.replica.rows.values()}
        if not params or "limit" not in params:
            assert rows["a"] + rows["b"] == 100, "half a batch was shown"


async def test_one_that_slept_longer_than_history_reaches_is_reset_on_the_same_connection(tmp_path: Path) -> None:
    limits = replace(LIMITS, history_bytes=0, history_us=0)
    async with flows_and_edge(tmp_path, limits) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        async with sleeper(running) as client:
            client.sleep()
            for i in range(100):
                offset = await asyncio.to_thread(flows.commit, stream, [topic("a", i + 2, WIDE)])
            await running.at_offset(offset)
            client.wake()
            await client.read_until(stream.position((offset,)).token())
            assert client.replica.resets == 1
            assert client.replica.messages[-1]["type"] == "snapshot"
        assert running.observer.value("penstock_serve_resets_total", view="topics", policy="conflate") == 1


async def test_every_change_is_never_merged_but_cut_and_resumed(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, LIMITS, app=ledger_app()) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("wide", 0)])
        replica = Replica()
        async with sleeper(running, channel="ledger") as client:
            client.replica = replica
            client.sleep()
            for i in range(120):
                await asyncio.to_thread(flows.commit, stream, [topic("wide", i + 1, WIDE)])
            await eventually(lambda: _cuts(running, policy="every_change") == 1, "cut")
            client.wake()
            while await client.read():
                pass
            assert client.ws.close_code in (4008, 1006), "1006 when it did not read its last words in time"
            if client.ws.close_code == 4008:
                assert len(client.stalls) == 1
        ledger = {"channel": "ledger"}
        await follow_socket(running, replica, lambda: replica.rows['["wide"]']["rsvps"] == 120, ledger)
        assert replica.resets == 0
        seen = [row["rsvps"] for message in replica.messages for row in message.get("upserts", ())]
        assert seen == list(range(1, 121)), "a change was left out"
        assert running.observer.value("penstock_serve_batches_conflated_total", view="topics", policy="conflate") == 0


async def test_every_change_cannot_be_paced(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, app=ledger_app()) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        async with sleeper(running, channel="ledger") as client:
            await client.ws.send_json({"type": "pace", "id": "s", "per_s": 1})
            assert (await client.ws.receive_json(timeout=DEADLINE_S))["error"]["code"] == "every_change"


async def test_what_waits_for_a_connection_is_bounded_however_many_subscriptions_it_has(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, LIMITS) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("wide", 0, "")])
        await running.at_offset(1)
        raw = await _slow_connection(running, _upgrade() + b"".join(_subscribe(f"s{i}") for i in range(60)))
        await eventually(lambda: _subscribers(running) == 61, "joined")
        most = 0.0
        for i in range(60):
            await asyncio.to_thread(flows.commit, stream, [topic("wide", i, WIDE)])
            await running.at_offset(2 + i)
            await asyncio.sleep(0)
            most = max(most, running.observer.value("penstock_serve_unsent_bytes"))
        assert most > LIMITS.subscriber_bytes, "it was slow"
        assert most <= LIMITS.subscriber_bytes + WRITE_HIGH_BYTES + 4 * len(WIDE)
        raw.close()


def _subscribe(id: str) -> bytes:
    text = json.dumps({"type": "subscribe", "id": id}).encode()
    return bytes((0x81, 0x80 | len(text))) + bytes(4) + text


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_client_that_does_not_read_cannot_hold_up_a_shutdown(tmp_path: Path, transport: str) -> None:
    async with flows_and_edge(tmp_path, Limits(subscriber_bytes=10**9)) as (flows, running):
        stream = flows.build()
        raw = await _slow_connection(running, _request(transport))
        await eventually(lambda: _subscribers(running) == 1, "joined")
        for i in range(60):
            await asyncio.to_thread(flows.commit, stream, [topic("wide", i, WIDE)])
        await running.at_offset(60)
        async with asyncio.timeout(60):
            await running.server.close()
        raw.close()


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_client_that_stalls_in_its_snapshot_is_cut_in_time(tmp_path: Path, transport: str) -> None:
    """Its snapshot would pin the view's rows for as long as it liked."""
    limits = Limits(subscriber_bytes=10**9, subscriber_cut_s=0.3)
    async with flows_and_edge(tmp_path, limits) as (flows, running):
        flows.commit(flows.build(), [topic(f"t{i}", i, "x" * 1_000) for i in range(20_000)])
        await running.at_offset(1)
        raw = await _slow_connection(running, _request(transport))
        await eventually(lambda: _cuts(running, transport) == 1, "cut")
        raw.close()


async def test_a_slow_reader_of_a_stream_is_told_so_and_misses_nothing(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with (
        flows_and_edge(tmp_path, LIMITS) as (_, running),
        running.http.ws_connect("/socket", max_msg_size=0) as ws,
    ):
        door.post("begin")
        await ws.send_json({"type": "subscribe", "stream": "rsvps"})
        client = Sleeper(ws)
        got = [event["topic"] for event in (await ws.receive_json(timeout=DEADLINE_S))["events"]]
        client.sleep()
        sent = ["begin"]
        for i in range(100):
            sent.append(f"{i}" + WIDE)
            await asyncio.to_thread(door.post, sent[-1])
        stalls = ("penstock_serve_stalls_total", {"view": "rsvps", "policy": "stream"})
        await eventually(lambda: running.observer.value(stalls[0], **stalls[1]) == 1, "stalled")
        client.wake()
        while len(got) < len(sent):
            message = await ws.receive_json(timeout=DEADLINE_S)
            if message["type"] == "stall":
                assert misfits(SHARED["message.stall"], message) == []
                assert message["behind"]["events"] >= 1
                client.stalls.append(message)
            else:
                got += [event["topic"] for event in message["events"]]
        assert got == sent
        assert len(client.stalls) == 1
    door.log.close()


async def test_a_client_that_does_not_read_answers_is_not_read_from(tmp_path: Path) -> None:
    """A flood of questions must not become a pile of answers."""
    async with flows_and_edge(tmp_path, LIMITS) as (_, running):
        raw = await _slow_connection(running, _upgrade())
        loop, ping = asyncio.get_running_loop(), b'{"type":"ping","id":"' + b"p" * 80 + b'"}'
        frame = bytes((0x81, 0x80 | len(ping))) + bytes(4) + ping
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                for _ in range(1_000):
                    await loop.sock_sendall(raw, frame * 100)
                    sent += 100
        assert sent < 100_000, "everything was taken though nothing was read"
        (pipe,) = running.serving._pipes
        assert pipe.unsent_bytes < LIMITS.subscriber_bytes + 400_000
        raw.close()


def test_an_event_of_a_partial_snapshot_has_no_id_to_resume_from() -> None:
    body = {"type": "snapshot", "position": "p", "rows": []}
    assert b"id: p" in Message(body, 1).sse()
    assert b"id:" not in Message(body, 1, resumable=False).sse()
    assert sse_frame(None, b"", "p") == b"7\r\nid: p\n\n\r\n"


def test_subscribers_with_the_same_id_share_a_frame() -> None:
    message = Message({"type": "position", "position": "p"}, 1)
    assert message.socket("s1") is message.socket("s1")
    assert json.loads(message.socket('a"b')[2:]) == {"id": 'a"b', "type": "position", "position": "p"}
