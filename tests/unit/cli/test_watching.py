"""`watch` is a subscriber: it applies every message once, in the view's order, and resumes from its position."""

import io
import json
from typing import Any

import pytest
from fake_server import Answer, FakeServer, json_answer
from rich.console import Console

from penstock.cli.remote import Remote, ServerEvent
from penstock.cli.watching import LiveTable, lines, messages, table_of
from penstock.errors import UnknownViewError, UnreachableError

VIEW = {
    "view": "topics",
    "key": ["topic"],
    "columns": [{"name": "topic", "type": "string"}, {"name": "rsvps", "type": "bigint"}],
    "order_by": ["-rsvps"],
    "limit": 2,
}


def event(kind: str, at: str | None = None, **data: Any) -> ServerEvent:
    return ServerEvent(kind, {"type": kind} | data, at)


def sse(kind: str, position: str, **data: Any) -> bytes:
    return f": beat\n\nevent: {kind}\nid: {position}\ndata: {json.dumps(data)}\n\n".encode()


class View:
    """A view whose event stream breaks after each connection's messages."""

    def __init__(self, *connections: bytes) -> None:
        self.connections = list(connections)
        self.resumed: list[str | None] = []

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        if path == "/views":
            return json_answer(200, {"views": [VIEW]})
        self.resumed.append(headers["Last-Event-ID"])
        if not self.connections:
            return json_answer(404, {"error": {"code": "unknown_view", "message": "it is gone"}})
        return 200, {"Content-Type": "text/event-stream"}, self.connections.pop(0)


def test_a_break_is_resumed_from_the_last_position(monkeypatch):
    monkeypatch.setattr("penstock.cli.watching.time.sleep", lambda seconds: None)
    view = View(sse("snapshot", "p1", rows=[]) + b"id: p2\n\n", sse("changes", "p3", upserts=[], deletes=[]))
    server = FakeServer(view.answer)
    notes: list[str] = []
    seen = []
    with pytest.raises(UnknownViewError, match="it is gone"):
        seen += [message.id for message in messages(server.remote(), "topics", {}, notes.append)]
    assert view.resumed == [None, "p2", "p3"]
    assert len(notes) == 2
    server.close()


def test_a_server_that_is_not_there_is_told_at_once():
    with pytest.raises(UnreachableError):
        next(messages(Remote("http://127.0.0.1:1"), "topics", {}, print))


def test_an_unknown_view_names_those_that_there_are():
    server = FakeServer(View().answer)
    with pytest.raises(UnknownViewError) as caught:
        table_of(server.remote(), "nope", None)
    assert caught.value.hint == "the views are: topics"
    assert table_of(server.remote(), "topics", 5).limit == 5
    server.close()


def test_one_change_is_one_line():
    changes = event("changes", "p1", upserts=[{"topic": "a", "rsvps": 1}], deletes=[{"topic": "b"}], position="p1")
    assert [json.loads(line) for line in lines(changes)] == [
        {"change": "upsert", "row": {"topic": "a", "rsvps": 1}, "position": "p1"},
        {"change": "delete", "key": {"topic": "b"}, "position": "p1"},
    ]
    assert [json.loads(line)["change"] for line in lines(event("snapshot", "p", rows=[{}, {}]))] == ["snapshot"] * 2
    assert json.loads(next(lines(event("reset", reason="rebuilt"))))["change"] == "reset"


@pytest.fixture
def table() -> LiveTable:
    table = LiveTable("topics", ["topic"], ["topic", "rsvps"], ["-rsvps"], 2)
    rows = [{"topic": "a", "rsvps": 5}, {"topic": "b", "rsvps": 12}, {"topic": "c", "rsvps": None}]
    table.apply(event("snapshot", "p1", rows=rows), 0.0)
    return table


def shown(table: LiveTable) -> list[str]:
    return [row["topic"] for _, row in table.ordered()]


def test_rows_stand_in_the_views_order_and_within_its_limit(table):
    assert shown(table) == ["b", "a"]


def test_changes_move_rows(table):
    table.apply(event("changes", "p2", upserts=[{"topic": "a", "rsvps": 20}], deletes=[{"topic": "b"}]), 1.0)
    assert shown(table) == ["a", "c"]


def test_a_reset_forgets_and_parts_of_a_snapshot_add_up(table):
    table.apply(event("reset", reason="rebuilt"), 1.0)
    assert shown(table) == []
    table.apply(event("snapshot", "p9", part=1, parts=2, rows=[{"topic": "x", "rsvps": 1}]), 1.0)
    table.apply(event("snapshot", "p9", part=2, parts=2, rows=[{"topic": "y", "rsvps": 2}]), 1.0)
    assert shown(table) == ["y", "x"]


def test_numbers_that_come_as_text_are_ordered_as_numbers():
    table = LiveTable("v", ["k"], ["k", "n"], ["n"], None)
    rows = [{"k": k, "n": n} for k, n in (("a", "10.5"), ("b", "9"), ("c", "1152921504606846976"))]
    table.apply(event("snapshot", "p", rows=rows), 0.0)
    assert [row["k"] for _, row in table.ordered()] == ["b", "a", "c"]


def test_it_can_be_drawn(table):
    window = {"start": "2024-01-01T00:00:00.000Z", "end": "2024-01-01T00:01:00.000Z"}
    table.columns.append("window")
    table.rows["w"] = {"topic": "w [x]", "rsvps": 123456, "window": window}
    console = Console(file=io.StringIO(), width=100)
    console.print(table.render(0.0))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "w [x]" in drawn
    assert "123,456" in drawn
    assert "2024-01-01 00:00:00 to 00:01:00" in drawn
