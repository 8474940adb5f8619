"""RFC 6455 and RFC 7692 frame by frame, in the order of Autobahn's chapters, against the reader alone."""

from __future__ import annotations

import itertools
import os
import random
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_socket import frame

from penstock.sockets.frames import (
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


def test_bad_text_is_refused_before_its_last_fragment_and_before_the_end_of_its_frame() -> None:
    bad = "κόσμε".encode() + b"\xf4\x90\x80\x80" + b"edited"
    assert fault(frame(TEXT, bad, fin=False)) == BAD_DATA
    for before in (b"", frame(TEXT, b"", fin=False)):
        sent = before + frame(CONTINUATION if before else TEXT, bad)
        cut = len(before) + 6 + len("κόσμε".encode()) + 2
        assert read(*(sent[i : i + 1] for i in range(cut - 1))) == []
        assert fault(*(sent[i : i + 1] for i in range(cut))) == BAD_DATA


@given(st.text(), st.lists(st.integers(0, 300)), st.integers(1, 7))
def test_text_is_the_same_however_its_frames_and_their_bytes_are_cut(text: str, cuts: list[int], step: int) -> None:
    data = text.encode()
    edges = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    parts = [data[a:b] for a, b in itertools.pairwise(edges)] or [b""]
    sent = b"".join(
        frame(CONTINUATION if i else TEXT, part, fin=i == len(parts) - 1, mask=os.urandom(4))
        for i, part in enumerate(parts)
    )
    assert read(*(sent[i : i + step] for i in range(0, len(sent), step))) == [Frame(TEXT, data)]


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
