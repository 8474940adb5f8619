"""The short way and the long one must not be told apart by anything but their speed."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from manual_clock import ManualClock
from running_edge import Edge, held, running, until
from shop_app import shop
from two_ways import STREAMS, script

from penstock import plain as switch
from penstock.collect.ways import short_way
from penstock.collect.ways.short_way import plain_head
from penstock.config import Limits
from penstock.errors import DiskFullError
from penstock.log.control import ControlMap
from penstock.observe.signals import RequestRefused
from penstock.rights.guard import Guard
from penstock.rights.keys import make_key, stored
from penstock.rights.rights import Rights
from penstock.rights.web_origins import WebOrigins
from penstock.serve.replies import errors_as_json
from tests.parts import about

pytestmark = about("short_way")

SCRIPTS = int(os.environ.get("TWO_WAYS_SCRIPTS", "240"))
SEED = int(os.environ.get("TWO_WAYS_SEED", "0")) * 1_000_000
AT_ONCE = 60
SILENCE_S = 1.0
"""A connection is ours to close when nothing more comes: a broken length lets the server wait for the rest."""

CLOCK = ManualClock()
KEYS = {
    "writes": make_key("writes", ("write:*",), {}, CLOCK.us, None),
    "orders": make_key("orders", ("write:orders",), {}, CLOCK.us, None),
    "reads": make_key("reads", ("read:*",), {}, CLOCK.us, None),
    "old": make_key("old", ("write:*",), {}, CLOCK.us - 10, CLOCK.us - 1),
    "few": make_key("few", ("write:*",), {}, CLOCK.us, None, rate="1/minute"),
}
SECRETS = tuple(key.encode() for name, (key, _) in KEYS.items() if name != "few")


def guarding(*, keys: bool, cors: bool) -> Callable[[Edge, web.Application], Guard]:
    def guarded(edge: Edge, site: web.Application) -> Guard:
        site.middlewares.append(errors_as_json(edge.observer))
        memory: dict[str, Any] = {}
        for _, record in KEYS.values() if keys else ():
            memory |= stored(record)
        guard = Guard(
            Rights(ControlMap(memory), clock=CLOCK, signals=edge.observer.emit),
            origins=WebOrigins(["https://shop.example"] if cors else []),
            signatures=edge.collect.signatures,
            signals=edge.observer.emit,
            on_refused=lambda name, code: edge.observer.emit(
                RequestRefused(name if name in edge.collect.intakes else "", code)
            ),
        )
        guard.add_to(site)
        return guard

    return guarded


@asynccontextmanager
async def edge_with(path: Path, *, short: bool, **options: Any) -> AsyncIterator[tuple[Edge, list[int]]]:
    """An edge, and how many bytes each request had that went the short way."""
    async with running(shop(), path, watched=True, **options) as edge:
        taken: list[int] = []
        way, edge.connections.short = edge.connections.short, None
        if short and way is not None:
            take = way.take
            way.take = lambda *asked: taken.append(take(*asked)) or taken[-1]  # type: ignore[method-assign,func-returns-value]
            edge.connections.short = way
        yield edge, taken


async def talk(edge: Edge, requests: list[list[bytes]]) -> tuple[bytes, bool]:
    """All that comes back until the server closes, or says nothing any more; and whether it was cut: a server that
    closes before it has read everything resets the connection, and what was on its way is lost."""
    reader, writer = await connect(edge)
    found, cut = b"", False
    for parts in requests:
        try:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.002 if len(parts) > 1 else 0)
            async for part in _answer(edge, reader, last=parts is requests[-1]):
                found += part
        except ConnectionError:
            cut = True
            break
    writer.close()
    return same(found), cut


def are_equal(first: tuple[bytes, bool], second: tuple[bytes, bool]) -> bool:
    if first[1] or second[1]:
        return first[0].startswith(second[0]) or second[0].startswith(first[0])
    return first == second


async def _answer(edge: Edge, reader: asyncio.StreamReader, *, last: bool) -> AsyncIterator[bytes]:
    """One reply, or all that come."""
    found, silent = b"", 0
    while silent < 2 and (last or not _is_reply(found)):
        try:
            part = await asyncio.wait_for(reader.read(65536), SILENCE_S)
        except TimeoutError:
            silent = 0 if _waiting(edge) else silent + 1
            continue
        found, silent = found + part, 0
        yield part
        if not part:
            break


def _is_reply(found: bytes) -> bool:
    head, end, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def _waiting(edge: Edge) -> bool:
    """Whether the edge still works on something."""
    writing = any(intake._writing or intake._waiting for intake in edge.collect.intakes.values())
    return writing or edge.group.unwritten_bytes > 0


def same(reply: bytes) -> bytes:
    """What is the same of two replies: not the second, and not the place in the log, whose text varies in length."""
    masked = re.sub(rb"(Penstock-Ack: )[^\r]*(\r\nContent-Length: )\d+", rb"\1*\2*", reply)
    return re.sub(rb'(Date: |"ack":")[^"\r]*', rb"\1*", masked)


def content(edge: Edge) -> dict[str, list[str]]:
    """All that the log holds, whatever the order in which connections got there."""
    return {name: sorted(map(repr, edge.events(name))) for name in (*STREAMS, "dead")}


def metrics(edge: Edge) -> dict[str, float]:
    lines = edge.observer.text().decode().splitlines()
    counted = (line.rpartition(" ") for line in lines if line.startswith("penstock") and "_created" not in line)
    return {name: float(value) for name, _, value in counted}


@pytest.mark.parametrize(("keys", "cors"), [(False, False), (True, True)], ids=["open", "keys"])
async def test_whatever_is_sent_gets_the_same_replies_and_leaves_the_same_log(
    tmp_path: Path, keys: bool, cors: bool
) -> None:
    options: dict[str, Any] = {"guarded": guarding(keys=keys, cors=cors), "clock": CLOCK}
    secrets = SECRETS * 2 + SECRETS[:1] * 10 if keys else (b"",)
    many = asyncio.Semaphore(AT_ONCE)
    async with (
        edge_with(tmp_path / "a.db", short=True, **options) as (one, taken),
        edge_with(tmp_path / "b.db", short=False, **options) as (two, _),
    ):

        async def compare(number: int) -> str | None:
            parts = script(SEED + number, secrets)
            async with many:
                first, second = await asyncio.gather(talk(one, parts), talk(two, parts))
            return None if are_equal(first, second) else f"{number}: {parts}\n{first!r}\n{second!r}"

        wrong = [found for found in await asyncio.gather(*map(compare, range(SCRIPTS))) if found]
        assert not wrong, f"{len(wrong)} differ, the first:\n" + "\n\n".join(wrong[:3])
        await until(lambda: not _waiting(one) and not _waiting(two))
        assert content(one) == content(two)
        assert metrics(one) == metrics(two)
        assert one.collect.pressure.room.taken_bytes == one.collect.pressure.turns.busy == 0
        assert sum(map(bool, taken)) > SCRIPTS // 8, "hardly anything went the short way: nothing is compared"
        assert sum(not size for size in taken) > SCRIPTS // 8


PLAIN = b"POST /streams/orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


def plain(order: int) -> bytes:
    body = b'{"order_id":%d}' % order
    return PLAIN % (len(body), body)


async def reply(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"Content-Length: (\d+)", head)
            return head + await reader.readexactly(int(found[1]) if found else 0)
        except asyncio.IncompleteReadError as error:
            return error.partial


async def connect(edge: Edge) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(edge.url.rpartition(":")[2]))


async def test_a_connection_comes_back_to_the_short_way_behind_whole_requests_of_the_long_one(tmp_path: Path) -> None:
    async with edge_with(tmp_path / "a.db", short=True) as (edge, taken):
        reader, writer = await connect(edge)
        for order in range(3):
            writer.write(plain(order))
            assert b" 200 OK" in await reply(reader)
            writer.write(b"GET /acks/x HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 400 " in await reply(reader)
            body = b'{"order_id":"no"}'
            for part in (PLAIN % (len(body), body[:4]), body[4:]):  # its body comes later
                writer.write(part)
                await asyncio.sleep(0.01)
            assert b" 422 " in await reply(reader)
        writer.write(plain(7))
        assert b" 200 OK" in await reply(reader)
        assert sum(map(bool, taken)) == 4
        writer.close()


async def test_requests_sent_at_once_are_taken_one_after_the_other_and_answered_in_order(tmp_path: Path) -> None:
    async with edge_with(tmp_path / "a.db", short=True) as (edge, taken):
        reader, writer = await connect(edge)
        await until(lambda: edge.connections.open == 1)
        writer.write(b"".join(plain(n) for n in range(5)) + b"GET /acks/x HTTP/1.1\r\nHost: x\r\n\r\n" + plain(5))
        replies = [await reply(reader) for _ in range(7)]
        assert [b" 200 OK" in found for found in replies] == [True] * 5 + [False, True]
        assert [row["order_id"] for row in edge.events("orders")] == list(range(6))
        assert sum(map(bool, taken)) >= 5
        writer.close()


async def test_no_reply_comes_before_the_log_has_it_and_stopping_waits_for_it(tmp_path: Path) -> None:
    async with edge_with(tmp_path / "a.db", short=True) as (edge, taken):
        reader, writer = await connect(edge)
        with held(edge) as let_go:
            writer.write(plain(1))
            await until(lambda: bool(taken) and taken[0] > 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.read(1)
            asyncio.get_running_loop().call_later(0.3, let_go)
            assert b" 200 OK" in await reply(reader)
        assert [row["order_id"] for row in edge.events("orders")] == [1]
        stopping = threading_stop(edge)
        with held(edge) as let_go:
            writer.write(plain(2))
            await until(lambda: len(taken) == 2)
            task = asyncio.create_task(stopping())
            await asyncio.sleep(0.2)
            assert not task.done()
            let_go()
            assert b" 200 OK" in await reply(reader)
            await asyncio.wait_for(task, 60)
        assert await reader.read() == b""
        writer.close()


def threading_stop(edge: Edge) -> Callable[[], Any]:
    """What the runner does with its connections when the edge stops."""

    async def stop() -> None:
        server = edge.runner.server
        assert server is not None
        server.pre_shutdown()
        await server.shutdown(5.0)

    return stop


async def test_what_the_log_refuses_is_answered_and_counted_as_on_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for short in (True, False):
        async with edge_with(tmp_path / f"{short}.db", short=short, clock=CLOCK) as (edge, taken):
            reader, writer = await connect(edge)
            monkeypatch.setattr(edge.log, "_write", _full)
            writer.write(plain(1))
            first = await reply(reader)
            monkeypatch.undo()
            writer.write(plain(2))
            found.append((same(first), b" 200 OK" in await reply(reader), metrics(edge), content(edge)))
            assert bool(taken) == short
            writer.close()
    assert found[0] == found[1]
    assert b" 507 " in found[0][0]


def _full(drafts: Any) -> None:
    raise DiskFullError("the log's disk has no room")


async def test_a_key_is_held_to_its_rate_and_each_refusal_counts_once(tmp_path: Path) -> None:
    found = []
    key = KEYS["few"][0].encode()
    for short in (True, False):
        guarded = guarding(keys=True, cors=False)
        async with edge_with(tmp_path / f"{short}.db", short=short, clock=CLOCK, guarded=guarded) as (edge, taken):
            reader, writer = await connect(edge)
            replies = []
            for order in range(4):
                writer.write(plain(order).replace(b"Host: x", b"Host: x\r\nAuthorization: Bearer " + key))
                replies.append(same(await reply(reader)))
            found.append((replies, metrics(edge), content(edge)))
            assert sum(map(bool, taken)) == (1 if short else 0)
            writer.close()
    assert found[0] == found[1]
    assert [b" 200 OK" in one for one in found[0][0]] == [True, False, False, False]


async def test_nothing_more_is_taken_from_a_sender_that_reads_no_replies(tmp_path: Path) -> None:
    async with edge_with(tmp_path / "a.db", short=True) as (edge, taken):
        reader, writer = await connect(edge)
        writer.write(plain(0))
        await reply(reader)
        assert edge.runner.server is not None
        (handler,) = edge.runner.server.connections
        transport = handler.transport
        assert transport is not None
        transport.set_write_buffer_limits(high=0)
        for end, which in ((transport, socket.SO_SNDBUF), (writer.transport, socket.SO_RCVBUF)):
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, which, 1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(20):
            writer.write(b"".join(map(plain, range(1_000))))
        count = -1
        async with asyncio.timeout(60):
            while count != len(taken):  # what the kernel still takes is taken
                count = len(taken)
                await asyncio.sleep(1)
        assert count < 20_000
        assert handler._undrained  # type: ignore[attr-defined]
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert b" 200 OK" in await reply(reader)
        await until(lambda: len(taken) > count)
        writer.transport.abort()
        await until(lambda: edge.connections.open == 0)


async def test_an_idle_connection_is_closed_behind_a_request_of_the_short_way(tmp_path: Path) -> None:
    async with edge_with(tmp_path / "a.db", short=True, limits=Limits(idle_s=0.5)) as (edge, taken):
        reader, writer = await connect(edge)
        with held(edge) as let_go:
            writer.write(plain(1))
            await until(lambda: bool(taken) and taken[0] > 0)
            await asyncio.sleep(0.8)  # longer than it may be idle: it is not
            let_go()
            assert b" 200 OK" in await reply(reader)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        *(b"Transfer-Encoding: chunked", b"transfer-encoding: x", b"Content-Length: 1", b"Content-length: 14"),
        *(b" folded", b"\tfolded", b"X-A : 1", b"X-A:  1", b"X-A: 1 ", b"X-A:", b"X A: 1", b"X-A: \x7f", b"X\x00: 1"),
        *(b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"Host: y"),
        *(b"X-A: 1\nX-B: 2", b"X-A: 1\rX-B: 2", b"X-\xe9: 1", b"X-A: \xe9", b": 1", b"noise", b"", b"TE: trailers"),
    ],
)
def test_a_head_with_anything_in_doubt_is_not_plain(line: bytes) -> None:
    head = b"POST /streams/a HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\nX-Z: 1\r\n\r\n"
    assert plain_head(head) is not None
    assert plain_head(head.replace(b"X-Z: 1", line)) is None


@pytest.mark.parametrize("length", [b"+1", b"-1", b"01", b"1,1", b"0x1", b"1 1", b"", b"1" * 11, b"1e1"])
def test_a_length_that_could_be_read_in_two_ways_is_not_plain(length: bytes) -> None:
    assert plain_head(b"POST /streams/a HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n" % length) is None


@pytest.mark.parametrize(
    "first",
    [b"POST /a HTTP/1.0", b"POST  /a HTTP/1.1", b"post /a HTTP/1.1", b"POST a HTTP/1.1", b"POST /\xff HTTP/1.1"],
)
def test_a_request_line_that_could_be_read_in_two_ways_is_not_plain(first: bytes) -> None:
    assert plain_head(first + b"\r\nHost: x\r\n\r\n") is None


async def test_without_what_it_leans_on_aiohttp_serves_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_way, "_LEANT_ON", ("_waiter", "_renamed"))
    try:
        async with running(shop(), tmp_path, watched=True) as edge:
            assert edge.connections.short is None
            async with edge.session.post(f"{edge.url}/streams/orders", json={"order_id": 1}) as reply:
                assert reply.status == 200
        assert switch.given_up() == {"short_way": "this aiohttp has no RequestHandler._renamed"}
    finally:
        switch.given_up.cache_clear()
