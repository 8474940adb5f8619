from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType
from raw_socket import frame, raw_socket
from running_edge import Edge, held, running, until
from shop_app import shop

from penstock.collect.judging.judge import Judge
from penstock.config import Limits
from penstock.errors import FencedError
from penstock.sockets.frames import TEXT, deflate

DEADLINE_S = 60.0


@asynccontextmanager
async def publishing(edge: Edge, stream: str = "orders") -> AsyncIterator[ClientWebSocketResponse[Any]]:
    async with edge.session.ws_connect(f"{edge.url}/streams/{stream}/publish") as socket:
        welcome = await socket.receive_json(timeout=DEADLINE_S)
        assert welcome["type"] == "welcome"
        yield socket


async def say(socket: ClientWebSocketResponse[Any], **message: Any) -> Any:
    await socket.send_json(message)
    return await socket.receive_json(timeout=DEADLINE_S)


def order(number: int) -> dict[str, Any]:
    return {"order_id": number}


async def test_each_message_is_acknowledged_by_its_id_once_it_is_on_the_disk(edge: Edge) -> None:
    async with publishing(edge) as socket:
        one = await say(socket, type="publish", id=1, event=order(1))
        two = await say(socket, type="publish", id=2, events=[order(2), {"order_id": "x"}, order(3)])
    assert (one["type"], one["id"], one["accepted"]) == ("ack", 1, 1)
    assert (two["accepted"], [r["index"] for r in two["rejected"]]) == (2, [1])
    assert [row["order_id"] for row in edge.events("orders")] == [1, 2, 3]
    assert (await edge.ack(two["ack"])).status == 200
    assert edge.observer.value("penstock_collect_events_accepted_total", stream="orders", way="publish") == 3
    assert edge.observer.value("penstock_collect_events_dead_total", stream="orders", way="publish") == 1


async def test_a_message_that_cannot_be_read_is_answered_and_the_socket_stays_open(edge: Edge) -> None:
    async with publishing(edge) as socket:
        for text in (
            "{",
            "[]",
            "7",
            '{"type":"nonsense"}',
            '{"type":"publish","event":{}}',
            '{"type":"publish","id":-1}',
        ):
            await socket.send_str(text)
            answer = await socket.receive_json(timeout=DEADLINE_S)
            assert (answer["type"], answer["error"]["code"]) == ("error", "bad_request"), text
        both = await say(socket, type="publish", id=4, event=order(1), events=[])
        assert (both["id"], both["error"]["code"]) == (4, "bad_request")
        assert (await say(socket, type="ping"))["type"] == "pong"
        assert (await say(socket, type="publish", id=5, event=order(1)))["accepted"] == 1


async def test_after_a_hello_a_client_that_comes_back_sends_again_and_nothing_is_taken_twice(edge: Edge) -> None:
    async with publishing(edge) as socket:
        assert (await say(socket, type="hello", producer="till", epoch=1))["expected"] == 0
        await say(socket, type="publish", id=0, event=order(0))
        await say(socket, type="publish", id=1, event=order(1))
    async with publishing(edge) as socket:
        assert (await say(socket, type="hello", producer="till", epoch=1))["expected"] == 2
        again = await say(socket, type="publish", id=1, event=order(1))
        assert (again["accepted"], again["duplicates"]) == (0, 1)
        gap = await say(socket, type="publish", id=5, event=order(5))
        assert (gap["error"]["code"], gap["expected"]) == ("sequence_gap", 2)
        assert (await say(socket, type="hello", producer="till", epoch=2))["expected"] == 0
        assert (await say(socket, type="publish", id=0, event=order(2)))["accepted"] == 1
        assert (await say(socket, type="hello", producer="till", epoch=1))["expected"] == 0
        fenced = await say(socket, type="publish", id=2, event=order(3))
        assert fenced["error"]["code"] == "producer_fenced"
    assert [row["order_id"] for row in edge.events("orders")] == [0, 1, 2]


async def test_many_messages_at_once_keep_their_order_and_each_gets_its_ack(edge: Edge) -> None:
    async with publishing(edge) as socket:
        await say(socket, type="hello", producer="till", epoch=1)
        for number in range(200):
            await socket.send_json({"type": "publish", "id": number, "event": order(number)})
        acks = [await socket.receive_json(timeout=DEADLINE_S) for _ in range(200)]
    assert [ack["id"] for ack in acks] == list(range(200))
    assert [row["order_id"] for row in edge.events("orders")] == list(range(200))


async def test_frames_that_are_no_text_or_too_large_close_the_socket_with_a_code_that_says_so(tmp_path: Path) -> None:
    async with running(shop(), tmp_path, limits=Limits(publish_bytes=1_000)) as edge:
        async with publishing(edge) as socket:
            await socket.send_bytes(b"{}")
            assert (await socket.receive(timeout=DEADLINE_S)).type == WSMsgType.CLOSE
            assert socket.close_code == 1003
        async with publishing(edge) as socket:
            await socket.send_str("x" * 2_000)
            assert (await socket.receive(timeout=DEADLINE_S)).type == WSMsgType.CLOSE
            assert socket.close_code == 1009


async def test_a_client_that_sends_beyond_its_window_waits_and_is_then_closed(tmp_path: Path) -> None:
    limits = Limits(publish_window=2, publish_grace_s=1.0)
    async with running(shop(), tmp_path, limits=limits) as edge:
        async with publishing(edge) as socket:
            with held(edge) as go:
                for number in range(3):
                    await socket.send_json({"type": "publish", "id": number, "event": order(number)})
                await until(lambda: edge.collect.pressure.room.taken_events >= 2)
                with pytest.raises(TimeoutError):
                    await socket.receive(timeout=0.1)
                closing = asyncio.create_task(socket.receive(timeout=DEADLINE_S))
                await asyncio.sleep(1.5)
                go()
                message = await closing
            while message.type == WSMsgType.TEXT:
                message = await socket.receive(timeout=DEADLINE_S)
            assert socket.close_code == 4029
        async with publishing(edge) as socket:
            for number in range(50):
                await socket.send_json({"type": "publish", "id": number, "event": order(number)})
            for _ in range(50):
                assert (await socket.receive_json(timeout=DEADLINE_S))["type"] == "ack"
    assert edge.collect.pressure.room.taken_bytes == edge.collect.pressure.room.taken_events == 0


async def test_a_stopping_edge_acknowledges_what_it_has_read_and_says_goodbye(tmp_path: Path) -> None:
    async with running(shop(), tmp_path) as edge, publishing(edge) as socket:
        with held(edge) as go:
            await socket.send_json({"type": "publish", "id": 1, "event": order(1)})
            await until(lambda: edge.collect.pressure.room.taken_events > 0)
            ending = asyncio.create_task(edge.collect.publishing.end())
            await asyncio.sleep(0.05)
            go()
            assert (await socket.receive_json(timeout=DEADLINE_S))["accepted"] == 1
            assert (await socket.receive(timeout=DEADLINE_S)).type == WSMsgType.CLOSE
            assert socket.close_code == 1001
            await ending


async def test_a_key_that_is_revoked_while_the_socket_is_open_writes_nothing_more(edge: Edge) -> None:
    async with publishing(edge) as socket:
        assert (await say(socket, type="publish", id=1, event=order(1)))["accepted"] == 1

        def revoked(request: object) -> None:
            raise FencedError("the key was revoked")

        edge.collect.publishing.still = revoked
        refused = await say(socket, type="publish", id=2, event=order(2))
        assert (refused["id"], refused["type"]) == (2, "error")
    assert len(edge.events("orders")) == 1


async def test_a_stream_that_is_not_there_or_not_the_doors_is_refused_before_the_socket_opens(edge: Edge) -> None:
    for stream, status in (("nothing", 404), ("large", 409), ("dead", 409)):
        async with edge.session.get(f"{edge.url}/streams/{stream}/publish") as reply:
            assert reply.status == status


async def test_a_session_that_ends_while_a_message_waits_for_its_turn_gives_its_room_back(edge: Edge) -> None:
    pressure = edge.collect.pressure
    pressure.turns._queues["address/127.0.0.1"] = deque([(2**40, asyncio.get_running_loop().create_future())])
    async with publishing(edge) as socket:
        await socket.send_json({"type": "publish", "id": 0, "event": order(1)})
        await until(lambda: pressure.turns.waiting == 2)
        assert pressure.room.taken_bytes > 0
        await edge.collect.publishing.end()
        assert (pressure.room.taken_bytes, pressure.room.taken_events) == (0, 0)


async def test_a_hello_counts_for_what_is_sent_after_it(edge: Edge) -> None:
    async with publishing(edge) as socket:
        with held(edge):
            await socket.send_json({"type": "publish", "id": 5, "event": order(1)})
            await socket.send_json({"type": "hello", "producer": "till", "epoch": 0})
        answers = [await socket.receive_json(timeout=DEADLINE_S) for _ in range(2)]
        assert sorted(answer["type"] for answer in answers) == ["ack", "resume"]
        assert (await say(socket, type="publish", id=0, event=order(2)))["accepted"] == 1


async def test_a_client_that_reads_no_answers_is_not_read_and_then_closed(tmp_path: Path) -> None:
    limits = Limits(publish_bytes=300_000, publish_grace_s=0.2)
    nonsense = frame(TEXT, json.dumps({"type": "nonsense", "id": "x" * 2_000}).encode())
    async with running(shop(), tmp_path, limits=limits) as edge:
        port = int(edge.url.rpartition(":")[2])
        async with raw_socket(port, "/streams/orders/publish", receive_bytes=4096) as raw:
            (session,) = edge.collect.publishing._sessions
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            most = 0

            def closed() -> bool:
                nonlocal most
                most = max(most, session._pipe.unsent_bytes)
                raw.write(nonsense * 50)
                return edge.observer.value("penstock_collect_sockets_closed_total", code="4029") == 1

            await until(closed)
            assert 300_000 <= most < 400_000
            raw.writer.transport.abort()
        await until(lambda: edge.collect.publishing.open == 0)


async def test_a_large_message_is_judged_apart_and_what_comes_behind_it_waits(edge: Edge) -> None:
    many = [order(number) for number in range(5_000)]
    async with publishing(edge) as socket:
        await socket.send_json({"type": "publish", "id": 0, "events": many})
        await socket.send_json({"type": "publish", "id": 1, "event": order(5_000)})
        acks = [await socket.receive_json(timeout=DEADLINE_S) for _ in range(2)]
    assert [(ack["id"], ack["accepted"]) for ack in acks] == [(0, 5_000), (1, 1)]
    assert [row["order_id"] for row in edge.events("orders")] == list(range(5_001))


async def test_a_message_that_fails_in_the_server_ends_the_socket_and_gives_its_room_back(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Judge, events: list[bytes]) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Judge, "decode_each", broken)
    for events in ([order(1)], [order(number) for number in range(5_000)]):
        async with publishing(edge) as socket:
            await socket.send_json({"type": "publish", "id": 0, "events": events})
            assert (await socket.receive(timeout=DEADLINE_S)).type == WSMsgType.CLOSE
            assert socket.close_code == 1011
    await until(lambda: edge.collect.publishing.open == 0)
    assert edge.collect.pressure.room.taken_bytes == edge.collect.pressure.room.taken_events == 0


async def test_messages_may_be_compressed_and_come_all_at_once(edge: Edge) -> None:
    """A packet can hold far more messages than the window: none is taken before there is room."""
    port = int(edge.url.rpartition(":")[2])
    offer = "permessage-deflate"
    async with raw_socket(port, "/streams/orders/publish", Sec_WebSocket_Extensions=offer) as raw:
        assert (await raw.json())["type"] == "welcome"
        sent = [json.dumps({"type": "publish", "id": n, "event": order(n)}).encode() for n in range(2_000)]
        raw.write(*(frame(TEXT, deflate(text), rsv=4) for text in sent))
        assert [(await raw.json())["id"] for _ in sent] == list(range(2_000))
    assert [row["order_id"] for row in edge.events("orders")] == list(range(2_000))


@pytest.mark.parametrize(("id", "echoed"), [("x" * 5_000, "x" * 200), (7, 7), (2**60, None), ([1], None)])
async def test_the_echo_of_an_id_is_short(edge: Edge, id: Any, echoed: Any) -> None:
    async with publishing(edge) as socket:
        assert (await say(socket, type="nonsense", id=id))["id"] == echoed
