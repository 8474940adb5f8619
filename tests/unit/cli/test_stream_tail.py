"""`tail` shows the newest events first, then what comes, and loses none of them in between."""

from collections.abc import Iterator
from typing import Any

import pytest
from fake_server import Answer, FakeServer, json_answer

from penstock.cli.stream_tail import NEWEST, TailReader
from penstock.position import Position

EVENTS = [{"n": number} for number in range(30)]


def token(offset: int) -> str:
    return Position("stream", "orders", "e1", (offset,)).token()


class Stream:
    def __init__(self, starts: int = 0) -> None:
        self.starts = starts

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        after = query["after"]
        offset = {"start": self.starts, "end": 30}.get(after)
        offset = Position.parse(after).offsets[0] if offset is None else offset
        if offset < self.starts:
            return json_answer(410, {"error": {"code": "position_gone", "message": "gone"}})
        page = EVENTS[offset : offset + min(7, int(query["limit"]))]
        return json_answer(200, {"stream": "orders", "events": page, "next": token(offset + len(page))})


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer(Stream().answer)
    yield server
    server.close()


def read(server: FakeServer, since: str | None = None, limit: int | None = None, where: str | None = None):
    return [event["n"] for event in TailReader(server.remote(), "orders", where, print).events(since, limit, False)]


def test_the_newest_events_come_first(server):
    assert read(server) == list(range(30 - NEWEST, 30))


def test_from_the_start_page_by_page(server):
    assert read(server, "start") == list(range(30))


def test_from_a_position(server):
    assert read(server, token(25)) == [25, 26, 27, 28, 29]


def test_a_limit_ends_it(server):
    assert read(server, "start", limit=9) == list(range(9))
    assert read(server, "start", limit=0) == []


def test_nothing_new_at_the_end(server):
    assert read(server, "end") == []


def test_the_condition_goes_to_the_server(server):
    read(server, "start", where="n > 3")
    assert {query.get("where") for _, _, query in server.asked} == {"n > 3"}


def test_what_retention_has_cut_is_no_reason_to_fail():
    server = FakeServer(Stream(starts=25).answer)
    assert read(server) == [25, 26, 27, 28, 29]
    server.close()
