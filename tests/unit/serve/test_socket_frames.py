"""What a subscribing socket does with frames beyond the RFCs: compressing once for all, and noticing who is gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from edge import Edge, eventually, flows_and_edge
from fake_flows import FakeFlows, topic
from raw_socket import RawSocket, frame, raw_socket

from penstock.config import Limits
from penstock.serve.fanout import messages
from penstock.sockets import wire
from penstock.sockets.frames import TEXT, deflate

World = tuple[FakeFlows, Edge]


def opened(edge: Edge, **headers: str) -> AbstractAsyncContextManager[RawSocket]:
    assert edge.server.port is not None
    return raw_socket(edge.server.port, "/views/topics/socket", **headers)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with flows_and_edge(tmp_path) as (flows, running):
        yield flows, running


async def test_compressed_and_plain_clients_get_the_same_and_it_is_compressed_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows, running = world
    stream = flows.build()
    flows.commit(stream, [topic("a", 1, "x" * 5_000)])
    squeezed: list[int] = []

    def counting(data: bytes) -> bytes:
        squeezed.append(len(data))
        return deflate(data)

    monkeypatch.setattr(messages, "deflate", counting)
    offer = "permessage-deflate; client_max_window_bits"
    async with (
        opened(running, Sec_WebSocket_Extensions=offer) as one,
        opened(running, Sec_WebSocket_Extensions=offer) as two,
        opened(running) as plain,
    ):
        for number, raw in enumerate((one, two, plain)):
            sent = json.dumps({"type": "subscribe", "id": f"s{number}"}).encode()
            raw.write(frame(TEXT, sent) if raw is plain else frame(TEXT, deflate(sent), rsv=4))
            assert (await raw.json())["rows"] == [topic("a", 1, "x" * 5_000)]
        squeezed.clear()
        flows.commit(stream, [topic("a", 2, "y" * 5_000)])
        got = [await raw.json() for raw in (one, two, plain)]
        assert [message.pop("id") for message in got] == ["s0", "s1", "s2"]
        assert got[0] == got[1] == got[2]
        assert len(squeezed) == 1
        flows.commit(stream, [topic("a", 3, "")])
        first, payload = await one.read() or (0, b"")
        assert (first, b'"rsvps":3' in payload) == (0x81, True), "small messages are not compressed"


async def test_a_client_that_dies_in_the_midst_of_a_large_message_is_noticed_when_nothing_more_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PONG_S", 0.1)
    async with flows_and_edge(tmp_path, Limits(subscriber_cut_s=0.3)) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        async with opened(running) as raw:
            raw.write(frame(TEXT, b'{"type":"subscribe"}'))
            assert (await raw.json())["type"] == "snapshot"
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            flows.commit(stream, [topic("a", 2, "x" * 8_000_000)])
            cut = ("penstock_serve_subscribers_cut_total", {"transport": "websocket", "policy": "conflate"})
            await eventually(lambda: running.observer.value(cut[0], **cut[1]) == 1, "cut")
