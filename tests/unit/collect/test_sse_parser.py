from __future__ import annotations

from random import Random

import pytest

from penstock.sse_parser import SseParser

STREAM = (
    b"\xef\xbb\xbf: a comment\r\nretry: 2500\n\n"
    b"data: one\n\n"
    b"id: 7\rdata:two\rdata: lines\r\r"
    b"event: odd\r\nid\r\ndata\r\ndata\r\n\r\n"
    b"id: 8\n\n"
    b"id: with\0nul\ndata:  three\nunknown: x\nretry: 9x\n\n"
    b"data: never ends"
)
EVENTS = [
    (b"one", "message", ""),
    (b"two\nlines", "message", "7"),
    (b"\n", "odd", ""),
    (b" three", "message", "8"),
]


def parsed(parser: SseParser, pieces: list[bytes]) -> list[tuple[bytes, str, str]]:
    return [(e.data, e.type, e.id) for piece in pieces for e in parser.feed(piece)]


def test_a_stream_is_read_as_the_standard_says() -> None:
    parser = SseParser(1000)
    assert parsed(parser, [STREAM]) == EVENTS
    assert (parser.retry_ms, parser.last_id) == (2500, "8")


@pytest.mark.parametrize("seed", range(20))
def test_it_makes_no_difference_where_the_pieces_end(seed: int) -> None:
    random, at, pieces = Random(seed), 0, []
    while at < len(STREAM):
        size = random.randrange(1, 6)
        pieces.append(STREAM[at : at + size])
        at += size
    assert parsed(SseParser(1000), pieces) == EVENTS


def test_an_id_counts_only_when_its_block_has_ended() -> None:
    parser = SseParser(1000, "4")
    parser.feed(b"id: 5\ndata: x\n")
    assert parser.last_id == "4"
    parser.feed(b"\n")
    assert parser.last_id == "5"


def test_what_is_too_large_is_held_only_as_far_as_it_must_be() -> None:
    parser = SseParser(100)
    for _ in range(1000):
        assert parser.feed(b"data: " + b"x" * 5000) == []
    (event,) = parser.feed(b"\n\n")
    assert 100 < len(event.data) <= 117
    for _ in range(1000):
        parser.feed(b"data: " + b"x" * 50 + b"\n")
    (event,) = parser.feed(b"\n")
    assert 100 < len(event.data) <= 102
    assert [e.data for e in parser.feed(b"data: next\n\n")] == [b"next"]
