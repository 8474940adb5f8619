"""A file that is sent twice, or sent again after a break, is in the log once."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_server import Answer, FakeServer, json_answer

from penstock.cli.file_sender import CHUNK_BYTES, CHUNK_LINES, FileSender, chunks, fingerprint
from penstock.cli.remote import Remote
from penstock.errors import SequenceGapError, UnknownStreamError, UnreachableError


class Log:
    """What the wire contract says of producers, over a list."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.expected: dict[str, int] = {}

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        if path != "/streams/orders":
            error = {"code": "unknown_stream", "message": "no stream", "detail": None, "hint": None}
            return json_answer(404, {"error": error})
        producer, number = headers["Producer-Id"], int(headers["Producer-Seq"])
        expected = self.expected.get(producer, 0)
        if number != expected:
            return json_answer(204 if number < expected else 409, {}, Producer_Expected_Seq=str(expected))
        self.expected[producer] = expected + 1
        events = [json.loads(line) for line in body.splitlines()]
        good = [event for event in events if "bad" not in event]
        self.events += good
        rejected = [{"index": i, "reason": "bad"} for i in range(len(events) - len(good))]
        body_ = {"accepted": len(good), "duplicates": 0, "rejected": rejected, "ack": "t", "level": "logged"}
        return json_answer(200 if good else 422, body_)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def server(log: Log) -> Iterator[FakeServer]:
    server = FakeServer(log.answer)
    yield server
    server.close()


def write(folder: Path, count: int) -> Path:
    path = folder / "orders.ndjson"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(count)))
    return path


def send(server: FakeServer, path: Path, producer: str | None = None, notes: list[str] | None = None):
    sender = FileSender(server.remote(), "orders", producer or fingerprint(path), (notes or []).append)
    with path.open("rb") as source:
        return sender.send(source, lambda size: None)


def test_chunks_depend_on_the_content_alone():
    lines = [b'{"n": 1}\n'] * (CHUNK_LINES + 1) + [b"\n", b'{"last": 1}']
    assert [len(chunk) for chunk in chunks(lines)] == [CHUNK_LINES, 2]
    assert list(chunks(lines))[-1][-1] == b'{"last": 1}\n'
    assert [len(chunk) for chunk in chunks([b"x" * (CHUNK_BYTES - 10), b"y" * 100])] == [1, 1]


def test_a_file_is_sent_whole_and_in_order(server, log, tmp_path):
    sent = send(server, write(tmp_path, 1234))
    assert [event["n"] for event in log.events] == list(range(1234))
    assert (sent.accepted, sent.rejected, sent.skipped_chunks) == (1234, 0, 0)


def test_the_same_file_again_sends_nothing_twice(server, log, tmp_path):
    path = write(tmp_path, 2600)
    send(server, path)
    before = len(server.asked)
    sent = send(server, path)
    assert len(log.events) == 2600
    assert (sent.accepted, sent.skipped_chunks) == (0, 6)
    assert len(server.asked) - before == 1  # one question tells where to go on


def test_a_broken_run_is_resumed_where_it_stopped(server, log, tmp_path):
    path = write(tmp_path, 2600)
    log.expected[fingerprint(path)] = 3
    sent = send(server, path)
    assert [event["n"] for event in log.events] == list(range(1500, 2600))
    assert sent.skipped_chunks == 3


def test_a_file_that_grew_is_another_file(tmp_path):
    first = fingerprint(write(tmp_path, 3))
    assert fingerprint(write(tmp_path, 4)) != first
    assert fingerprint(write(tmp_path, 3)) == first


def test_rejected_events_are_counted_and_hold_up_nothing(server, log, tmp_path):
    path = tmp_path / "mixed"
    path.write_text('{"bad": 1}\n' * CHUNK_LINES + '{"bad": 1}\n{"n": 1}\n')
    sent = send(server, path)
    assert (sent.accepted, sent.rejected) == (1, CHUNK_LINES + 1)


class Moody:
    """Answers its first request, then fails as often as it is told to, before or after taking what was sent."""

    def __init__(self, log: Log, *, status: int, takes: bool, times: int = 2) -> None:
        self.log, self.status, self.takes, self.times = log, status, takes, times
        self.first = True

    def answer(self, *asked: Any) -> Answer:
        if self.first or not self.times:
            self.first = False
            return self.log.answer(*asked)
        self.times -= 1
        if self.takes:
            self.log.answer(*asked)
        return json_answer(self.status, {"error": {"code": "overloaded", "message": "too much waits"}})


@pytest.fixture
def _no_pause(monkeypatch):
    monkeypatch.setattr("penstock.cli.file_sender.time.sleep", lambda seconds: None)


@pytest.mark.usefixtures("_no_pause")
@pytest.mark.parametrize(("takes", "accepted", "unanswered"), [(False, 1200, 0), (True, 700, 500)])
def test_a_server_that_is_busy_is_asked_again(log, tmp_path, takes, accepted, unanswered):
    server = FakeServer(Moody(log, status=503, takes=takes).answer)
    sent = send(server, write(tmp_path, 1200))
    server.close()
    assert [event["n"] for event in log.events] == list(range(1200))
    assert (sent.accepted, sent.unanswered, sent.skipped_chunks) == (accepted, unanswered, 0)


def test_a_gap_is_told_with_the_way_out(log, tmp_path):
    server = FakeServer(Moody(log, status=409, takes=False).answer)
    log.answer = lambda *asked: json_answer(409, {}, Producer_Expected_Seq="7")  # type: ignore[method-assign]
    with pytest.raises(SequenceGapError, match="expects chunk 7 of the producer 'mine', not 0") as caught:
        send(server, write(tmp_path, 3), "mine")
    server.close()
    assert caught.value.hint == "choose another name with --producer"


def test_an_unknown_stream_is_the_servers_error(server, tmp_path):
    sender = FileSender(server.remote(), "nope", "p", lambda note: None)
    with pytest.raises(UnknownStreamError, match="no stream"):
        sender.send(io.BytesIO(b"{}\n"), lambda size: None)


def test_a_server_that_never_was_there_is_told_at_once():
    sender = FileSender(Remote("http://127.0.0.1:1"), "orders", "p", lambda note: None)
    with pytest.raises(UnreachableError, match=r"no server answers at http://127\.0\.0\.1:1"):
        sender.send(io.BytesIO(b"{}\n"), lambda size: None)
