"""RFC 6455 and RFC 7692 frame by frame, in the order of Autobahn's chapters, against the reader and a real socket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import random
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from edge import DEADLINE_S, Edge, flows_and_edge
from fake_flows import FakeFlows, topic
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve import websocket
from penstock.serve.frames import (
    BAD_DATA,
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    TOO_BIG,
    Fault,
    Frame,
    FrameReader,
    close_answer,
    close_frame,
    deflate,
    deflated_frame,
    inflated,
    text_frame,
)

MOST = 64 * 1024


def frame(
    opcode: int, data: bytes = b"", *, fin: bool = True, rsv: int = 0, mask: bytes | None = b"\x01\x02\x03\x04"
) -> bytes:
    """A frame as a client writes it."""
    first = (0x80 if fin else 0) | (rsv << 4) | opcode
    masked = 0x80 if mask is not None else 0
    if len(data) < 126:
        head = bytes((first, masked | len(data)))
    elif len(data) < 65536:
        head = bytes((first, masked | 126)) + len(data).to_bytes(2, "big")
    else:
        head = bytes((first, masked | 127)) + len(data).to_bytes(8, "big")
    if mask is None:
        return head + data
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


def read(*sent: bytes, deflate: bool = False, most: int = MOST) -> list[Frame]:
    reader = FrameReader(most, deflate=deflate)
    return [got for part in sent for got in reader.feed(part)]


def fault(*sent: bytes, deflate: bool = False, most: int = MOST) -> int:
    with pytest.raises(Fault) as raised:
        read(*sent, deflate=deflate, most=most)
    return raised.value.code


# 1: messages of every length


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 65535, 65536])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_a_message_of_any_length_is_read_whole_and_octet_by_octet(opcode: int, size: int) -> None:
    sent = frame(opcode, b"*" * size)
    assert read(sent) == [Frame(opcode, b"*" * size)]
    if size < 200:
        assert read(*(sent[i : i + 1] for i in range(len(sent)))) == [Frame(opcode, b"*" * size)]


@given(st.lists(st.tuples(st.sampled_from([TEXT, BINARY, PING, PONG]), st.integers(0, 120)), max_size=20), st.randoms())
def test_however_the_bytes_are_cut_the_same_frames_come_out(wanted: list[tuple[int, int]], rng: random.Random) -> None:
    sent = b"".join(frame(opcode, b"x" * size, mask=os.urandom(4)) for opcode, size in wanted)
    cuts = sorted(rng.randrange(len(sent) + 1) for _ in range(10)) if sent else []
    parts = [sent[a:b] for a, b in itertools.pairwise([0, *cuts, len(sent)])]
    assert read(*parts) == [Frame(opcode, b"x" * size) for opcode, size in wanted]


# 2: pings and pongs; 3: reserved bits; 4: opcodes; masks and lengths


def test_control_frames_carry_up_to_125_bytes() -> None:
    assert read(frame(PING, b"x" * 125)) == [Frame(PING, b"x" * 125)]
    assert fault(frame(PING, b"x" * 126)) == PROTOCOL_ERROR
    assert fault(frame(PING, b"", fin=False)) == PROTOCOL_ERROR
    assert read(frame(PONG, b"unasked")) == [Frame(PONG, b"unasked")]


@pytest.mark.parametrize("rsv", range(1, 8))
@pytest.mark.parametrize("opcode", [TEXT, BINARY, PING, CLOSE])
def test_reserved_bits_must_be_zero(opcode: int, rsv: int) -> None:
    assert fault(frame(opcode, rsv=rsv)) == PROTOCOL_ERROR
    if rsv != 4 or opcode in (PING, CLOSE):
        assert fault(frame(opcode, rsv=rsv), deflate=True) == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
def test_reserved_opcodes_are_refused(opcode: int) -> None:
    assert fault(frame(TEXT, b"first"), frame(opcode)) == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [TEXT, BINARY, PING, CLOSE])
def test_a_client_must_mask(opcode: int) -> None:
    assert fault(frame(opcode, b"ab", mask=None)) == PROTOCOL_ERROR


def test_a_length_is_written_in_the_shortest_way() -> None:
    assert fault(bytes((0x81, 0xFE, 0, 125)) + bytes(4)) == PROTOCOL_ERROR
    assert fault(bytes((0x81, 0xFF)) + (65535).to_bytes(8, "big") + bytes(4)) == PROTOCOL_ERROR
    assert fault(bytes((0x81, 0xFF)) + (2**63).to_bytes(8, "big") + bytes(4)) == PROTOCOL_ERROR


# 5: fragments


def test_fragments_make_a_message_and_control_frames_come_in_between() -> None:
    sent = [frame(TEXT, b"a", fin=False), frame(PING, b"p"), frame(CONTINUATION, b"", fin=False)]
    assert read(*sent, frame(CONTINUATION, b"b")) == [Frame(PING, b"p"), Frame(TEXT, b"ab")]


@pytest.mark.parametrize("first", [b"", b"a"])
@pytest.mark.parametrize("fin", [True, False])
def test_a_message_is_complete_before_the_next_begins(first: bytes, fin: bool) -> None:
    """aiohttp takes a new message after an empty first fragment."""
    assert fault(frame(TEXT, first, fin=False), frame(TEXT, b"b", fin=fin)) == PROTOCOL_ERROR
    assert fault(frame(TEXT, first, fin=False), frame(CONTINUATION), frame(CONTINUATION)) == PROTOCOL_ERROR


def test_a_continuation_of_nothing_is_refused() -> None:
    assert fault(frame(CONTINUATION, b"a")) == PROTOCOL_ERROR
    assert fault(frame(CONTINUATION, b"a", fin=False)) == PROTOCOL_ERROR


# 6: UTF-8


VALID = ["κόσμε", "𝄞", "\ufeff", "a\x00b", "\U0010ffff", "\ud7ff", "\ue000"]
INVALID = [b"\xce", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xff", b"\x80", b"a\xce\xbaedited\xf8\x88"]


@pytest.mark.parametrize("text", VALID)
def test_text_may_be_cut_within_a_character(text: str) -> None:
    data = text.encode()
    parts = [frame(TEXT if i == 0 else CONTINUATION, data[i : i + 1], fin=False) for i in range(len(data))]
    assert read(*parts, frame(CONTINUATION)) == [Frame(TEXT, data)]


@pytest.mark.parametrize("data", INVALID)
def test_text_that_is_not_utf8_is_1007_and_binary_may_be_anything(data: bytes) -> None:
    assert fault(frame(TEXT, data)) == BAD_DATA
    assert fault(frame(TEXT, deflate(data), rsv=4), deflate=True) == BAD_DATA
    assert read(frame(BINARY, data)) == [Frame(BINARY, data)]


def test_bad_text_is_refused_before_its_last_fragment() -> None:
    assert fault(frame(TEXT, b"\xce\xba\xf4\x90", fin=False)) == BAD_DATA


# 7: closing


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 3000, 3999, 4000, 4999])
def test_a_good_close_code_is_answered_with_itself(code: int) -> None:
    assert close_answer(code.to_bytes(2, "big") + b"why") == code
    assert close_answer(b"") == 1000


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535])
def test_a_close_code_that_nobody_may_send_is_a_fault(code: int) -> None:
    with pytest.raises(Fault) as raised:
        close_answer(code.to_bytes(2, "big"))
    assert raised.value.code == PROTOCOL_ERROR


def test_a_close_frame_is_empty_or_a_code_and_a_text() -> None:
    for payload, code in ((b"\x03", PROTOCOL_ERROR), (b"\x03\xe8\xce", BAD_DATA)):
        with pytest.raises(Fault) as raised:
            close_answer(payload)
        assert raised.value.code == code
    assert len(close_frame(4401, "ü" * 100)) == 2 + 124, "a reason is cut to whole characters"


# 9: limits


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    assert fault(frame(TEXT, b"x" * 101)[:8], most=100) == TOO_BIG
    assert fault(bytes((0x82, 0xFF)) + (2**62).to_bytes(8, "big")) == TOO_BIG
    assert fault(frame(TEXT, b"x" * 60, fin=False), frame(CONTINUATION, b"x" * 60, fin=False), most=100) == TOO_BIG
    assert read(frame(TEXT, b"x" * 100), most=100) == [Frame(TEXT, b"x" * 100)]


# 12 and 13: compression


@given(st.binary(max_size=5_000))
def test_what_is_deflated_inflates(data: bytes) -> None:
    assert read(frame(BINARY, deflate(data), rsv=4), deflate=True) == [Frame(BINARY, data)]


def test_a_compressed_message_may_be_fragmented_and_empty() -> None:
    data = deflate(b"Hello" * 100)
    sent = [frame(TEXT, data[:3], fin=False, rsv=4), frame(PING), frame(CONTINUATION, data[3:])]
    assert read(*sent, frame(TEXT, b"plain"), deflate=True) == [
        Frame(PING, b""),
        Frame(TEXT, b"Hello" * 100),
        Frame(TEXT, b"plain"),
    ]
    assert read(frame(TEXT, b"\x00", rsv=4), deflate=True) == [Frame(TEXT, b"")]
    assert fault(frame(TEXT, data, fin=False, rsv=4), frame(CONTINUATION, b"", rsv=4), deflate=True) == PROTOCOL_ERROR


def test_the_examples_of_rfc_7692_are_read() -> None:
    for example in ("f248cdc9c90700", "f348cdc9c9070000", "f24805000000ffffcac9c90700", "000500faff48656c6c6f00"):
        assert inflated(bytes.fromhex(example), 100) == b"Hello", example


def test_a_bomb_does_not_go_off() -> None:
    bomb = deflate(bytes(50_000_000))
    assert len(bomb) > MOST
    assert fault(frame(BINARY, deflate(bytes(1_000_000)), rsv=4), deflate=True) == TOO_BIG
    assert read(frame(BINARY, deflate(bytes(MOST)), rsv=4), deflate=True) == [Frame(BINARY, bytes(MOST))]
    finals = b"".join([zlib.compress(b"x" * 10, wbits=-15)] * 200)
    assert fault(frame(BINARY, finals, rsv=4), deflate=True) == BAD_DATA


@given(st.binary(min_size=1, max_size=300))
def test_rubbish_is_never_more_than_a_fault(data: bytes) -> None:
    for deflate_ in (False, True):
        with suppress(Fault):
            read(data, frame(BINARY, data, rsv=4 if deflate_ else 0), deflate=deflate_)


def test_a_compressed_frame_with_an_id_is_one_deflate_stream() -> None:
    made = deflated_frame(b'{"id":"s1",', deflate(b'"type":"reset"}' * 30))
    assert made[0] == 0xC1
    assert inflated(made[2:], 10_000) == b'{"id":"s1",' + b'"type":"reset"}' * 30


def test_frames_have_the_header_that_their_length_needs() -> None:
    assert text_frame(b"x" * 125)[:2] == bytes((0x81, 125))
    assert text_frame(b"x" * 126)[:4] == bytes((0x81, 126, 0, 126))
    assert text_frame(b"x" * 65536)[:10] == bytes((0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0))
    assert close_frame(4008, "a") == bytes((0x88, 3, 0x0F, 0xA8)) + b"a"


# The same over a real connection


class RawSocket:
    """A client that writes bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self.reader, self.writer, self.head = reader, writer, head

    def write(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def read(self) -> tuple[int, bytes] | None:
        """First byte and payload of the next frame; None when the connection ended."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                first, length = await self.reader.readexactly(2)
                if length == 126:
                    length = int.from_bytes(await self.reader.readexactly(2), "big")
                elif length == 127:
                    length = int.from_bytes(await self.reader.readexactly(8), "big")
                return first, await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def json(self) -> dict[str, object]:
        got = await self.read()
        assert got is not None
        first, payload = got
        assert first & 0x8F == 0x81, got
        data = inflated(payload, 10**7) if first & 0x40 else payload
        body: dict[str, object] = json.loads(data)
        return body

    async def end(self) -> list[tuple[int, bytes]]:
        """Everything up to the end of the connection."""
        frames = []
        while (got := await self.read()) is not None:
            frames.append(got)
        return frames


HANDSHAKE = {
    "Host": "x",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@asynccontextmanager
async def raw_socket(
    edge: Edge, path: str = "/views/topics/socket", version: str = "1.1", **headers: str | None
) -> AsyncIterator[RawSocket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.server.port)
    given = HANDSHAKE | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"GET {path} HTTP/{version}", *(f"{n}: {v}" for n, v in given.items() if v is not None), "", ""]
    writer.write("\r\n".join(lines).encode())
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        yield RawSocket(reader, writer, head)
    finally:
        writer.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[FakeFlows, Edge]]:
    async with flows_and_edge(tmp_path) as (flows, running):
        yield flows, running


World = tuple[FakeFlows, Edge]


async def test_the_handshake_is_that_of_the_rfc(world: World) -> None:
    async with raw_socket(world[1]) as raw:
        assert raw.head.startswith("HTTP/1.1 101 ")
        assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in raw.head
        assert "Extensions" not in raw.head
        raw.write(frame(PING, b"one"), frame(PING, b"two"), frame(PING))
        assert [await raw.read() for _ in range(3)] == [(0x8A, b"one"), (0x8A, b"two"), (0x8A, b"")]


REFUSED: dict[str, tuple[int, dict[str, str | None]]] = {
    "no upgrade": (426, {"Upgrade": None, "Connection": None}),
    "another upgrade": (426, {"Upgrade": "h2c"}),
    "an old version": (426, {"Sec_WebSocket_Version": "8"}),
    "no version": (426, {"Sec_WebSocket_Version": None}),
    "no key": (400, {"Sec_WebSocket_Key": None}),
    "a short key": (400, {"Sec_WebSocket_Key": base64.b64encode(b"short").decode()}),
    "a key that is no base64": (400, {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=!"}),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_broken_handshake_is_refused_in_plain_http(world: World, what: str) -> None:
    status, headers = REFUSED[what]
    async with raw_socket(world[1], **headers) as raw:
        assert raw.head.startswith(f"HTTP/1.1 {status} ")
        if status == 426:
            assert "Sec-WebSocket-Version: 13" in raw.head


OFFERS: dict[str, str | None] = {
    "permessage-deflate": "",
    "permessage-deflate; client_max_window_bits": "",
    "permessage-deflate; client_max_window_bits=10; server_no_context_takeover": "",
    "permessage-deflate; server_max_window_bits=15": "; server_max_window_bits=15",
    'permessage-deflate; server_max_window_bits="15"': "; server_max_window_bits=15",
    "permessage-deflate; server_max_window_bits=10": None,
    "permessage-deflate; server_max_window_bits=10, permessage-deflate": "",
    "permessage-deflate; server_max_window_bits": None,
    "permessage-deflate; client_max_window_bits=16": None,
    "permessage-deflate; server_no_context_takeover=1": None,
    "permessage-deflate; server_no_context_takeover; server_no_context_takeover": None,
    "permessage-deflate; unheard_of": None,
    "x-permessage-deflate": None,
    "x-webkit-deflate-frame, permessage-deflate": "",
}


@pytest.mark.parametrize("offer", OFFERS)
async def test_compression_is_agreed_on_or_declined(world: World, offer: str) -> None:
    wanted = OFFERS[offer]
    async with raw_socket(world[1], Sec_WebSocket_Extensions=offer) as raw:
        if wanted is None:
            assert "Extensions" not in raw.head
        else:
            said = f"permessage-deflate; server_no_context_takeover; client_no_context_takeover{wanted}\r\n"
            assert f"Sec-WebSocket-Extensions: {said}" in raw.head


async def test_compressed_and_plain_clients_get_the_same_and_it_is_compressed_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows, running = world
    stream = flows.build()
    flows.commit(stream, [topic("a", 1, "x" * 5_000)])
    squeezed: list[int] = []
    from penstock.serve import messages

    def counting(data: bytes) -> bytes:
        squeezed.append(len(data))
        return deflate(data)

    monkeypatch.setattr(messages, "deflate", counting)
    offer = "permessage-deflate; client_max_window_bits"
    async with (
        raw_socket(running, Sec_WebSocket_Extensions=offer) as one,
        raw_socket(running, Sec_WebSocket_Extensions=offer) as two,
        raw_socket(running) as plain,
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


@pytest.mark.parametrize("code", [1000, 3999, 4999])
async def test_a_close_is_answered_and_the_server_ends_the_connection(world: World, code: int) -> None:
    async with raw_socket(world[1]) as raw:
        raw.write(frame(CLOSE, code.to_bytes(2, "big") + b"bye"), frame(PING, b"too late"))
        assert await raw.end() == [(0x88, code.to_bytes(2, "big"))]


BROKEN: dict[str, tuple[bytes, int]] = {
    "no mask": (frame(TEXT, b"{}", mask=None), 1002),
    "reserved bit": (frame(TEXT, b"{}", rsv=4), 1002),
    "opcode": (frame(7), 1002),
    "not UTF-8": (frame(TEXT, b"\xff"), 1007),
    "too long": (frame(TEXT, b"x" * 70_000), 1009),
    "close code": (frame(CLOSE, (1005).to_bytes(2, "big")), 1002),
    "close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "close that is not UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_breaks_the_protocol_ends_the_connection_with_its_code(world: World, what: str) -> None:
    sent, code = BROKEN[what]
    flows, running = world
    flows.commit(flows.build(), [topic("a", 1)])
    async with raw_socket(running) as raw:
        raw.write(frame(TEXT, b'{"type":"subscribe"}'))
        assert (await raw.json())["type"] == "snapshot"
        raw.write(sent, frame(PING, b"after"))
        ((first, payload),) = await raw.end()
        assert (first, int.from_bytes(payload[:2], "big")) == (0x88, code)
    assert running.observer.value("penstock_serve_sockets_closed_total", code=str(code)) == 1


async def test_nothing_is_written_behind_a_close_frame(world: World) -> None:
    """A server that stops has said goodbye; pings that come then get no pong, and the client's answer ends it."""
    async with raw_socket(world[1]) as raw:
        closing = asyncio.create_task(world[1].server.close())
        first, payload = await raw.read() or (0, b"")
        assert (first, payload[:2]) == (0x88, (1012).to_bytes(2, "big"))
        raw.write(frame(PING, b"p"), frame(CLOSE, (1012).to_bytes(2, "big")))
        assert await raw.end() == []
        await closing


async def test_a_client_that_says_nothing_is_asked_and_then_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_S", 0.2)
    monkeypatch.setattr(websocket, "PONG_S", 0.1)
    async with raw_socket(world[1]) as raw:
        for _ in range(3):
            assert await raw.read() == (0x89, b"")
            raw.write(frame(PONG))
        last = (await raw.end())[-1]
        assert last[1][:2] == (4007).to_bytes(2, "big")
