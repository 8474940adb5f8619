"""RFC 6455 and RFC 7692 over real connections, in the order of Autobahn's chapters, on both kinds of socket."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from edge import flows_and_edge
from raw_socket import DEADLINE_S, RawSocket, frame, raw_socket
from running_edge import running
from shop_app import shop

from penstock.config import Limits
from penstock.observe.metrics import Observer
from penstock.sockets import wire
from penstock.sockets.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, deflate

MOST = 64 * 1024
ASK, ANSWER = b'{"type":"ping"}', {"type": "pong"}
"""What both kinds of socket answer."""
DEFLATE = "permessage-deflate; client_max_window_bits"


@dataclass
class Site:
    """An edge with one kind of socket."""

    port: int
    path: str
    closed: str
    observer: Observer
    stop: Callable[[], Any]

    @asynccontextmanager
    async def socket(self, **options: Any) -> AsyncIterator[RawSocket]:
        """Open, and past whatever the server says first."""
        async with raw_socket(self.port, self.path, **options) as raw:
            if self.path.endswith("/publish") and " 101 " in raw.head:
                assert (await raw.json())["type"] == "welcome"
            yield raw


@asynccontextmanager
async def subscribing(path: Path) -> AsyncIterator[Site]:
    async with flows_and_edge(path) as (_, edge):
        port = edge.server.port
        assert port is not None
        closed = "penstock_serve_sockets_closed_total"
        yield Site(port, "/views/topics/socket", closed, edge.observer, edge.server.close)


@asynccontextmanager
async def publishing(path: Path) -> AsyncIterator[Site]:
    async with running(shop(), path, limits=Limits(publish_bytes=MOST)) as edge:
        port, closed = int(edge.url.rpartition(":")[2]), "penstock_collect_sockets_closed_total"
        yield Site(port, "/streams/orders/publish", closed, edge.observer, edge.collect.publishing.end)


SITES: dict[str, Callable[[Path], AbstractAsyncContextManager[Site]]] = {
    "subscribing": subscribing,
    "publishing": publishing,
}


@pytest.fixture(params=SITES)
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async with SITES[request.param](tmp_path) as made:
        yield made


async def answers(raw: RawSocket, *sent: bytes) -> bool:
    """Whether the socket is alive after these bytes."""
    raw.write(*sent, frame(TEXT, ASK))
    return await raw.json() == ANSWER


def code_of(got: tuple[int, bytes]) -> int:
    assert got[0] == 0x88, got
    return int.from_bytes(got[1][:2], "big")


# The handshake


async def test_the_handshake_is_that_of_the_rfc(site: Site) -> None:
    async with site.socket() as raw:
        assert raw.head.startswith("HTTP/1.1 101 ")
        assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in raw.head
        assert "Extensions" not in raw.head
        assert "Sec-WebSocket-Protocol" not in raw.head
    async with site.socket(Sec_WebSocket_Protocol="other, penstock") as raw:
        assert "Sec-WebSocket-Protocol: penstock\r\n" in raw.head


REFUSED: dict[str, tuple[int, dict[str, str | None]]] = {
    "no upgrade": (426, {"Upgrade": None, "Connection": None}),
    "another upgrade": (426, {"Upgrade": "h2c"}),
    "no connection header": (426, {"Connection": "keep-alive"}),
    "HTTP/1.0": (426, {"version": "1.0"}),
    "an old version": (426, {"Sec_WebSocket_Version": "8"}),
    "no version": (426, {"Sec_WebSocket_Version": None}),
    "no key": (400, {"Sec_WebSocket_Key": None}),
    "a short key": (400, {"Sec_WebSocket_Key": base64.b64encode(b"short").decode()}),
    "a key that is no base64": (400, {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=!"}),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_broken_handshake_is_refused_in_plain_http(site: Site, what: str) -> None:
    status, headers = REFUSED[what]
    async with site.socket(**headers) as raw:
        assert raw.head.split()[1] == str(status)
        if status == 426:
            assert "Sec-WebSocket-Version: 13" in raw.head
        body = json.loads(await raw.reader.readexactly(int(raw.head.partition("Content-Length: ")[2].split()[0])))
        assert body["error"]["hint"]


OFFERS: dict[str, str | None] = {
    "permessage-deflate": "",
    "permessage-deflate; client_max_window_bits": "",
    "permessage-deflate; client_max_window_bits=10; server_no_context_takeover": "",
    "permessage-deflate; server_max_window_bits=15": "; server_max_window_bits=15",
    'permessage-deflate; server_max_window_bits="15"': "; server_max_window_bits=15",
    "permessage-deflate; server_max_window_bits=10": None,
    "permessage-deflate; server_max_window_bits=10, permessage-deflate": "",
    "permessage-deflate; server_max_window_bits": None,
    "permessage-deflate; client_max_window_bits=8": "",
    "permessage-deflate; client_max_window_bits=16": None,
    "permessage-deflate; client_max_window_bits=7": None,
    "permessage-deflate; client_max_window_bits=09": None,
    "permessage-deflate; client_max_window_bits=": None,
    'permessage-deflate; client_max_window_bits="10': None,
    "permessage-deflate; server_no_context_takeover=": None,
    "permessage-deflate; windows=3, permessage-deflate; client_no_context_takeover": "",
    "permessage-deflate; server_no_context_takeover=1": None,
    "permessage-deflate; server_no_context_takeover; server_no_context_takeover": None,
    "permessage-deflate; unheard_of": None,
    "x-permessage-deflate": None,
    "x-webkit-deflate-frame, permessage-deflate": "",
}


async def test_compression_is_agreed_on_or_declined(site: Site) -> None:
    for offer, wanted in OFFERS.items():
        async with site.socket(Sec_WebSocket_Extensions=offer) as raw:
            if wanted is None:
                assert "Extensions" not in raw.head, offer
                raw.write(frame(TEXT, deflate(ASK), rsv=4))
                assert code_of((await raw.end())[-1]) == 1002, offer
            else:
                said = f"permessage-deflate; server_no_context_takeover; client_no_context_takeover{wanted}\r\n"
                assert f"Sec-WebSocket-Extensions: {said}" in raw.head, offer
                assert await answers(raw, frame(TEXT, deflate(ASK), rsv=4)), offer
                assert await raw.json() == ANSWER


# Messages, pings and fragments


async def test_pings_are_answered_with_what_they_carry_and_pongs_are_not(site: Site) -> None:
    async with site.socket() as raw:
        raw.write(frame(PONG, b"unasked"), frame(PING, b"one"), frame(PING, bytes(range(125))), frame(PING))
        pongs = [await raw.read() for _ in range(3)]
        assert pongs == [(0x8A, b"one"), (0x8A, bytes(range(125))), (0x8A, b"")]
        assert await answers(raw)


async def test_a_message_may_come_in_fragments_with_pings_in_between_and_octet_by_octet(site: Site) -> None:
    async with site.socket() as raw:
        parts = [frame(TEXT, ASK[:5], fin=False), frame(PING, b"p"), frame(CONTINUATION, b"", fin=False)]
        sent = b"".join([*parts, frame(CONTINUATION, ASK[5:])])
        for octet in range(len(sent)):
            raw.write(sent[octet : octet + 1])
            await asyncio.sleep(0)
        assert await raw.read() == (0x8A, b"p")
        assert await raw.json() == ANSWER


async def test_a_compressed_message_may_come_in_fragments_too(site: Site) -> None:
    async with site.socket(Sec_WebSocket_Extensions=DEFLATE) as raw:
        data = deflate(ASK)
        raw.write(frame(TEXT, data[:4], fin=False, rsv=4), frame(PING), frame(CONTINUATION, data[4:]))
        assert await raw.read() == (0x8A, b"")
        assert await raw.json() == ANSWER


async def test_a_message_may_be_as_long_as_the_limit(site: Site) -> None:
    filled = ASK[:-1] + b" " * (MOST - len(ASK)) + b"}"
    async with site.socket(Sec_WebSocket_Extensions=DEFLATE) as raw:
        assert len(filled) == MOST
        assert await answers(raw, frame(TEXT, filled), frame(TEXT, deflate(filled), rsv=4))
        assert [await raw.json(), await raw.json()] == [ANSWER, ANSWER]


# Faults


BROKEN: dict[str, tuple[bytes, int]] = {
    "no mask": (frame(TEXT, ASK, mask=None), 1002),
    "reserved bit": (frame(TEXT, ASK, rsv=2), 1002),
    "compressed without a word": (frame(TEXT, deflate(ASK), rsv=4), 1002),
    "compressed ping": (frame(PING, b"", rsv=4), 1002),
    "opcode of data": (frame(7), 1002),
    "opcode of control": (frame(0xB), 1002),
    "ping in fragments": (frame(PING, fin=False), 1002),
    "long ping": (frame(PING, b"x" * 126), 1002),
    "a length written too long": (bytes((0x81, 0xFE, 0, 5)) + bytes(4), 1002),
    "a continuation of nothing": (frame(CONTINUATION, b"x"), 1002),
    "a message within a message": (frame(TEXT, b"", fin=False) + frame(TEXT, b""), 1002),
    "not UTF-8": (frame(TEXT, b"\xff"), 1007),
    "a surrogate": (frame(TEXT, b'"\xed\xa0\x80"'), 1007),
    "half a character at the end": (frame(TEXT, b'"\xce'), 1007),
    "not UTF-8 in a first fragment": (frame(TEXT, b"\xf4\x90", fin=False), 1007),
    "too long": (frame(TEXT, b"x" * (MOST + 1)), 1009),
    "too long in fragments": (frame(TEXT, b"x" * MOST, fin=False) + frame(CONTINUATION, b"x", fin=False), 1009),
    "a length that is absurd": (bytes((0x81, 0xFF)) + (2**62).to_bytes(8, "big"), 1009),
    "close code": (frame(CLOSE, (1005).to_bytes(2, "big")), 1002),
    "close code of nobody": (frame(CLOSE, (1006).to_bytes(2, "big")), 1002),
    "close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "close that is not UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_breaks_the_protocol_ends_the_connection_with_its_code(site: Site, what: str) -> None:
    sent, code = BROKEN[what]
    async with site.socket() as raw:
        assert await answers(raw)
        raw.write(sent, frame(PING, b"after"))
        (last,) = await raw.end()
        assert code_of(last) == code
    assert site.observer.value(site.closed, code=str(code)) == 1


SQUEEZED: dict[str, tuple[bytes, int]] = {
    "not deflated": (frame(TEXT, b"\xff\xff\xff", rsv=4), 1007),
    "a bomb": (frame(TEXT, deflate(b" " * 5_000_000), rsv=4), 1009),
    "not UTF-8": (frame(TEXT, deflate(b"\xff"), rsv=4), 1007),
    "a bit on a continuation": (frame(TEXT, b"", fin=False, rsv=4) + frame(CONTINUATION, b"\x00", rsv=4), 1002),
}


@pytest.mark.parametrize("what", SQUEEZED)
async def test_what_breaks_the_compression_does_too(site: Site, what: str) -> None:
    sent, code = SQUEEZED[what]
    async with site.socket(Sec_WebSocket_Extensions=DEFLATE) as raw:
        assert await answers(raw)
        raw.write(sent)
        (last,) = await raw.end()
        assert code_of(last) == code


async def test_a_client_that_is_still_sending_gets_to_read_why_it_is_sent_away(site: Site) -> None:
    """Closing a connection with bytes unread resets it, and takes the close frame with it."""
    async with site.socket() as raw:
        raw.write(frame(BINARY, b"", rsv=1))
        for _ in range(100):
            raw.write(b"x" * 100_000)
            await asyncio.sleep(0)
        assert code_of((await raw.end())[-1]) == 1002


# Closing


@pytest.mark.parametrize("code", [1000, 1001, 3999, 4999])
async def test_a_close_is_answered_and_the_server_ends_the_connection(site: Site, code: int) -> None:
    async with site.socket() as raw:
        raw.write(frame(CLOSE, code.to_bytes(2, "big") + b"bye"), frame(PING, b"too late"))
        assert await raw.end() == [(0x88, code.to_bytes(2, "big"))]
    async with site.socket() as raw:
        raw.write(frame(CLOSE))
        assert await raw.end() == [(0x88, (1000).to_bytes(2, "big"))]


async def test_nothing_is_written_behind_a_close_frame(site: Site) -> None:
    """A server that stops has said goodbye; pings that come then get no pong, and the client's answer ends it."""
    async with site.socket() as raw:
        closing = asyncio.create_task(site.stop())
        got = await raw.read()
        assert got is not None
        assert code_of(got) == (1001 if site.path.endswith("/publish") else 1012)
        raw.write(frame(PING, b"p"), frame(CLOSE, got[1][:2]))
        assert await raw.end() == []
        await closing


async def test_a_client_that_says_nothing_is_asked_and_then_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PING_S", 0.1)
    monkeypatch.setattr(wire, "PONG_S", 1.5)  # long enough for a pong on a busy machine
    async with site.socket() as raw:
        for _ in range(2):
            assert await raw.read() == (0x89, b"")
            raw.write(frame(PONG))
        last = (await raw.end())[-1]
        assert code_of(last) == 4007


async def test_a_client_that_dies_within_a_frame_is_forgotten(site: Site) -> None:
    async with site.socket() as raw:
        raw.write(frame(TEXT, ASK)[:7])
        await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S), site.socket() as raw:
        assert await answers(raw)
