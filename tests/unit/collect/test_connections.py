from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from manual_clock import ManualClock
from running_edge import Edge, running, until
from shop_app import shop

from penstock.clock import SystemClock
from penstock.collect.ways.connections import Connections, WatchedHandler
from penstock.config import Limits
from penstock.rights.tls import self_made

HEAD = b"POST /streams/orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
WAITS = HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-Continue\r\n\r\n")
Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def watched(path: Path, clock: ManualClock | None = None, **limits: float) -> AsyncIterator[Edge]:
    made = Limits(**limits)  # type: ignore[arg-type]
    async with running(shop(), path, limits=made, clock=clock, watched=True) as edge:
        yield edge


async def connect(edge: Edge, sent: bytes = b"") -> Talk:
    port = int(edge.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def rest(talk: Talk) -> bytes:
    """What comes until the server closes."""
    reader, writer = talk
    found = b""
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            found = await reader.read()
    writer.close()
    return found


async def test_a_head_that_never_ends_is_closed_and_a_normal_request_is_not(tmp_path: Path) -> None:
    clock = ManualClock()
    async with watched(tmp_path, clock, head_s=10) as edge:
        slow = await connect(edge, b"POST /streams/orders HTTP/1.1\r\nHost: x\r\nX-A")
        await until(lambda: len(edge.connections._heads) == 1)
        assert (await edge.post("orders", b'{"order_id":1}')).status == 200
        clock.pass_s(9)
        slow[1].write(b": 1\r\n")
        edge.connections.look()
        assert edge.connections.open == 2
        clock.pass_s(2)
        edge.connections.look()
        assert await rest(slow) == b""
        assert (await edge.post("orders", b'{"order_id":1}')).status == 200
        assert edge.observer.value("penstock_collect_connections_closed_total", reason="slow_head") == 1
        await until(lambda: edge.connections.open == 1)


async def test_a_head_that_comes_in_pieces_but_in_time_is_served(tmp_path: Path) -> None:
    async with watched(tmp_path) as edge:
        whole = HEAD + b'{"order_id":7}'
        talk = await connect(edge)
        for at in range(0, len(whole), 10):
            talk[1].write(whole[at : at + 10])
            await asyncio.sleep(0.002)
        reply = await talk[0].readuntil(b"\r\n")
        assert reply.startswith(b"HTTP/1.1 200")
        edge.connections.look()
        assert not edge.connections._heads
        talk[1].close()


@pytest.mark.parametrize("secret", [b"eyJhbGciOiJIUzI1NiJ9." + b"y" * 9000 + b".sig", b"psk_0a1b_77ff\x00"])
async def test_a_reply_to_what_is_no_http_quotes_no_secret(tmp_path: Path, secret: bytes) -> None:
    async with watched(tmp_path) as edge:
        reply = await rest(
            await connect(edge, b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n" % secret)
        )
        assert b" 400 " in reply
        assert b"bad_request" in reply
        assert secret[:12] not in reply


@pytest.mark.parametrize("expected", [b"x", b"\xff", b"100-continue, x"])
async def test_an_expectation_that_is_not_known_is_answered_as_every_other_error(
    tmp_path: Path, expected: bytes
) -> None:
    async with watched(tmp_path) as edge:
        for path in (b"/streams/orders", b"/nowhere"):
            head = HEAD.replace(b"/streams/orders", path).replace(b"\r\n\r\n", b"\r\nExpect: %s\r\n\r\n" % expected)
            reader, writer = await connect(edge, head + b'{"order_id":7}')
            async with asyncio.timeout(60):
                reply = await reader.readuntil(b"}}")
            writer.close()
            assert reply.startswith(b"HTTP/1.1 417 ")
            assert b'"code":"bad_request"' in reply
        assert edge.events("orders") == []


@pytest.mark.parametrize(
    ("changed", "status"),
    [((b"/streams/orders", b"/nowhere"), 404), ((b"orders", b"unheard"), 404), ((b": 14", b": 99999999999"), 413)],
    ids=["no path", "no stream", "too large"],
)
async def test_a_body_that_its_head_refuses_is_not_asked_for(
    tmp_path: Path, changed: tuple[bytes, bytes], status: int
) -> None:
    async with watched(tmp_path) as edge:
        reader, writer = await connect(edge, WAITS.replace(*changed))
        async with asyncio.timeout(60):
            reply = await reader.readuntil(b"}}")
        writer.close()
        assert reply.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nConnection: close\r\n" in reply  # nobody knows whether the body comes now


async def test_a_body_that_is_wanted_is_asked_for_once_unless_it_is_there(tmp_path: Path) -> None:
    async with watched(tmp_path) as edge:
        reader, writer = await connect(edge, WAITS)
        async with asyncio.timeout(60):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b'{"order_id":7}')
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            writer.write(WAITS + b'{"order_id":8}')
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            writer.write(b"GET /acks/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n")
            assert b"\r\nConnection: close\r\n" not in await reader.readuntil(b"}}")
        writer.close()
        assert [row["order_id"] for row in edge.events("orders")] == [7, 8]


async def test_a_handshake_that_never_ends_is_closed_like_a_head(tmp_path: Path) -> None:
    connections = Connections(Limits(head_s=0.3), SystemClock(), print)
    runner = connections.runner(web.Application(), access_log=None)
    await runner.setup()
    try:
        await connections.listen(runner, "127.0.0.1", 0, 8, self_made(tmp_path, "127.0.0.1").context())
        reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
        writer.write(b"\x16\x03\x01\x02\x00")
        async with asyncio.timeout(30):  # half of what the loop would wait
            assert await reader.read() == b""
        writer.close()
    finally:
        await runner.cleanup()


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with watched(tmp_path, idle_s=0.2) as edge:
        idle = await connect(edge)
        assert await rest(idle) == b""


async def test_a_body_that_stands_still_is_given_up_with_408_and_nothing_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    async with watched(tmp_path, clock, body_pause_s=10) as edge:
        slow = await connect(edge, HEAD + b'{"order')
        await until(lambda: len(edge.collect.slow) == 1)
        clock.pass_s(9)
        edge.collect.slow.look()
        assert len(edge.collect.slow) == 1
        clock.pass_s(2)
        edge.collect.slow.look()
        reply = await rest(slow)
        assert reply.startswith(b"HTTP/1.1 408")
        assert b'"too_slow"' in reply
        assert edge.collect.pressure.room.taken_bytes == 0
        assert edge.refused("orders", "too_slow") == 1


async def test_a_body_that_trickles_below_the_least_rate_is_given_up(tmp_path: Path) -> None:
    clock = ManualClock()
    async with watched(tmp_path, clock, body_bytes_s=100) as edge:
        slow = await connect(edge, HEAD.replace(b"14", b"100000"))
        await until(lambda: len(edge.collect.slow) == 1)
        (content,) = edge.collect.slow._bodies
        for sent in range(1, 8):
            slow[1].write(b"x")
            await until(lambda sent=sent: content.total_bytes == sent)  # type: ignore[misc]
            clock.pass_s(5)
            edge.collect.slow.look()
        assert (await rest(slow)).startswith(b"HTTP/1.1 408")


async def test_more_connections_than_an_address_may_have_are_told_and_closed(tmp_path: Path) -> None:
    async with watched(tmp_path, connections_per_address=3) as edge:
        held = [await connect(edge) for _ in range(3)]
        await until(lambda: edge.connections.open == 3)
        refused = await rest(await connect(edge, HEAD))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"Retry-After" in refused
        held[0][1].close()
        await until(lambda: edge.connections.open == 2)
        assert (await edge.post("orders", b'{"order_id":1}')).status == 200
        for _, writer in held:
            writer.close()
        assert edge.observer.value("penstock_collect_connections_closed_total", reason="too_many") == 1
        await until(lambda: edge.connections.open == 1)


async def test_a_request_to_replay_shares_the_doors_room_and_is_given_up_when_it_comes_too_slowly(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with running(shop(), tmp_path, clock=clock, limits=Limits(unwritten_bytes=300_000)) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(edge.url.rsplit(":", 1)[1]))
        writer.write(b"POST /dead/replay HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"{" * 70_000)
        room = edge.collect.pressure.room
        await until(lambda: room.taken_bytes == 70_000)
        clock.pass_s(edge.limits.body_pause_s + 1)
        edge.collect.slow.look()
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)
        await until(lambda: room.taken_bytes == 0)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /streams/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\n{}",
        b"POST /streams/orders HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n{}",
        b"\x16\x03\x01\x00\xa5\x01\r\n\r\n",
        b"\x00\r\n\r\n",
        b"POST /streams/orders HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
    ids=["two-lengths", "length-and-chunks", "tls", "bytes", "long-header"],
)
async def test_what_is_no_http_gets_an_error_like_every_other(tmp_path: Path, sent: bytes) -> None:
    async with watched(tmp_path) as edge:
        head, _, body = (await rest(await connect(edge, sent))).partition(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0]
        error = json.loads(body)["error"]
        assert error["code"] == "bad_request"
        assert error["hint"]
        assert len(error["detail"]) <= 200


@pytest.mark.parametrize("lost", ["before it is begun", "behind a request that was just read"])
async def test_a_connection_that_is_lost_at_once_leaves_nothing_in_the_log(tmp_path: Path, lost: str) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with watched(tmp_path) as edge:
        talk = await connect(edge)
        await until(lambda: edge.connections.open == 1)
        assert edge.runner.server is not None
        (held,) = edge.runner.server.connections
        handler = edge.runner.server()
        assert isinstance(handler, WatchedHandler)
        assert held.transport is not None
        handler.connection_made(held.transport)
        task = handler._task_handler
        if lost == "behind a request that was just read":
            await until(lambda: handler._waiter is not None)
            handler.data_received(b"GET /acks/x HTTP/1.1\r\nHost: x\r\nX-A: 1\r\n\r\n")
        handler.connection_lost(ConnectionResetError())
        assert task is not None
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None
        talk[1].close()
        await until(lambda: edge.connections.open == 0)
    assert told == []
