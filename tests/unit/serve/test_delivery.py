"""A slow subscriber is cut, told so, and hurts nobody."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType
from edge import Edge, Replica, eventually, flows_and_edge, follow_socket
from fake_flows import topic

from penstock.config import Limits
from penstock.serve.delivery import Pipe, close_frame, socket_frame, sse_frame
from penstock.serve.messages import Message

LIMITS = Limits(subscriber_bytes=256 * 1024)


async def _slow_connection(edge: Edge, request: bytes) -> socket.socket:
    """A client that asks and then does not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", edge.server.port))
    await loop.sock_sendall(raw, request)
    return raw


def _upgrade(edge: Edge) -> bytes:
    subscribe = b'{"type":"subscribe"}'
    mask = bytes(4)
    return (
        b"GET /views/topics/socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        + bytes((0x81, 0x80 | len(subscribe)))
        + mask
        + subscribe
    )


EVENTS = b"GET /views/topics/events HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_subscriber_that_does_not_read_is_cut_while_others_get_everything(
    tmp_path: Path, transport: str
) -> None:
    async with flows_and_edge(tmp_path, LIMITS) as (flows, running):
        stream = flows.build()
        raw = await _slow_connection(running, EVENTS if transport == "sse" else _upgrade(running))
        replica = Replica()
        follower = asyncio.create_task(follow_socket(running, replica, lambda: len(replica.messages) == 81, {}))
        subscribers = running.serving.hub._subscribers_by_view
        await eventually(lambda: subscribers().get(("topics",)) == 2, "both have joined")
        for i in range(80):
            await asyncio.to_thread(flows.commit, stream, [topic("wide", i, "x" * 50_000)])
        await follower
        assert replica.resets == 0
        await eventually(
            lambda: running.observer.value("penstock_serve_subscribers_cut_total", transport=transport) == 1, "cut"
        )
        await eventually(lambda: subscribers().get(("topics",)) in (None, 0), "forgotten")
        assert await _bytes_to_the_end(raw) < 2_000_000, "megabytes of stale updates hid in buffers"
        raw.close()


async def _bytes_to_the_end(raw: socket.socket) -> int:
    """How much of what was sent still reaches the client; the server ends the connection."""
    loop, count = asyncio.get_running_loop(), 0
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            while data := await loop.sock_recv(raw, 65536):
                count += len(data)
    return count


async def test_a_cut_socket_is_closed_with_4008_and_resumes_without_a_gap(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, LIMITS) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("wide", 0)])
        replica = Replica()
        async with running.http.ws_connect("/views/topics/socket", max_msg_size=0, autoping=True) as ws:
            await ws.send_json({"type": "subscribe", "id": "s"})
            replica.take(_without_id(await ws.receive_json()))
            transport = ws._response.connection.transport  # type: ignore[union-attr]
            transport.pause_reading()
            for i in range(120):
                await asyncio.to_thread(flows.commit, stream, [topic("wide", i + 1, "x" * 50_000)])
            await eventually(
                lambda: running.observer.value("penstock_serve_subscribers_cut_total", transport="websocket") == 1,
                "cut",
            )
            transport.resume_reading()
            while (message := await ws.receive(timeout=10)).type == WSMsgType.TEXT:
                replica.take(_without_id(json.loads(message.data)))
            assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING, WSMsgType.ERROR)
            assert ws.close_code in (4008, 1006), "1006 when it did not read its last words in time"
        await follow_socket(running, replica, lambda: replica.rows['["wide"]']["rsvps"] == 120, {})
        assert replica.resets == 0


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_client_that_does_not_read_cannot_hold_up_a_shutdown(tmp_path: Path, transport: str) -> None:
    async with flows_and_edge(tmp_path, Limits(subscriber_bytes=10**9)) as (flows, running):
        stream = flows.build()
        raw = await _slow_connection(running, EVENTS if transport == "sse" else _upgrade(running))
        joined = running.serving.hub._subscribers_by_view
        await eventually(lambda: joined().get(("topics",)) == 1, "joined")
        for i in range(60):
            await asyncio.to_thread(flows.commit, stream, [topic("wide", i, "x" * 50_000)])
        await running.at_offset(60)
        async with asyncio.timeout(10):
            await running.server.close()
        raw.close()


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_client_that_stalls_below_its_bound_is_cut_in_time(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot would pin the view's rows for as long as it liked."""
    monkeypatch.setitem(Pipe.__init__.__kwdefaults__, "stalled_s", 0.3)
    async with flows_and_edge(tmp_path, Limits(subscriber_bytes=10**9)) as (flows, running):
        flows.commit(flows.build(), [topic(f"t{i}", i, "x" * 1_000) for i in range(20_000)])
        await running.at_offset(1)
        raw = await _slow_connection(running, EVENTS if transport == "sse" else _upgrade(running))
        await eventually(
            lambda: running.observer.value("penstock_serve_subscribers_cut_total", transport=transport) == 1, "cut"
        )
        raw.close()


def _without_id(message: dict[str, Any]) -> dict[str, Any]:
    message.pop("id", None)
    return message


def test_frames_have_the_header_that_their_length_needs() -> None:
    assert socket_frame(b"x" * 125)[:2] == bytes((0x81, 125))
    assert socket_frame(b"x" * 126)[:4] == bytes((0x81, 126, 0, 126))
    assert socket_frame(b"x" * 65536)[:10] == bytes((0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0))
    assert close_frame(4008, "a") == bytes((0x88, 3, 0x0F, 0xA8)) + b"a"


def test_an_event_of_a_partial_snapshot_has_no_id_to_resume_from() -> None:
    body = {"type": "snapshot", "position": "p", "rows": []}
    assert b"id: p" in Message(body, 1).sse()
    assert b"id:" not in Message(body, 1, resumable=False).sse()
    assert sse_frame(None, b"", "p") == b"7\r\nid: p\n\n\r\n"


def test_subscribers_with_the_same_id_share_a_frame() -> None:
    message = Message({"type": "position", "position": "p"}, 1)
    assert message.socket("s1") is message.socket("s1")
    assert json.loads(message.socket('a"b')[2:]) == {"id": 'a"b', "type": "position", "position": "p"}
