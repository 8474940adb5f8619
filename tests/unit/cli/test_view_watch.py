"""`watch` is a reader: it shows every batch once, in the view's order, and ends when nobody reads what it says."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from edge import Edge, flows_and_edge
from fake_flows import FakeFlows, topic
from rich.console import Console

from penstock.cli.view_watch import LiveTable, Wanted, lines
from penstock.client import Changes, Notice, ViewFacts
from penstock.errors import BadRequestError
from penstock.run.exit_codes import INTERRUPTED, UNREAD

FACTS = ViewFacts("topics", ("topic",), (("topic", "string"), ("rsvps", "bigint")), ("-rsvps",), 2, None, 3, "p", "ok")


def batch(*rows: dict[str, Any], deletes: tuple[dict[str, Any], ...] = (), **more: Any) -> Changes:
    return Changes("topics", "p2", rows, deletes, **more)


# In a pipe


class Watching:
    """`penstock watch` as a process, and a server that it reads from."""

    def __init__(self, flows: FakeFlows, edge: Edge) -> None:
        self.flows, self.edge, self.stream = flows, edge, flows.build()
        self.process: asyncio.subprocess.Process

    async def begin(self, *words: str, **options: Any) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", "watch", "topics"]
        url = str(self.edge.server.make_url("")).rstrip("/")
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        self.process = await asyncio.create_subprocess_exec(*command, "--url", url, *words, **streams)

    async def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found

    async def end(self) -> tuple[int, str]:
        """The exit code, and what was said on stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            said = (await self.process.stderr.read()).decode()
            return await self.process.wait(), said


@pytest.fixture
async def watching(tmp_path: Path) -> AsyncIterator[Watching]:
    async with asyncio.timeout(60), flows_and_edge(tmp_path) as (flows, edge):
        made = Watching(flows, edge)
        yield made
        with contextlib.suppress(ProcessLookupError, AttributeError):
            made.process.kill()
            await made.process.wait()


async def test_each_change_is_a_line_and_ctrl_c_ends_it_quietly(watching: Watching) -> None:
    await watching.edge.at_offset(watching.flows.commit(watching.stream, [topic("a", 5), topic("b", 1)]))
    await watching.begin("--where", "rsvps > 2", "--select", "rsvps")
    first = await watching.line()
    assert (first["change"], first["row"]) == ("snapshot", {"topic": "a", "rsvps": 5})
    watching.flows.commit(watching.stream, [topic("b", 9), topic("a", 0)])
    assert [(line["change"], line.get("row", line.get("key"))) for line in [await watching.line() for _ in "12"]] == [
        ("upsert", {"topic": "b", "rsvps": 9}),
        ("delete", {"topic": "a"}),
    ]
    watching.process.send_signal(signal.SIGINT)
    assert await watching.end() == (INTERRUPTED, "")


async def test_since_gives_only_what_came_later(watching: Watching) -> None:
    await watching.edge.at_offset(watching.flows.commit(watching.stream, [topic("a", 5)]))
    _, body = await watching.edge.get("/views/topics")
    watching.flows.commit(watching.stream, [topic("b", 7)])
    await watching.begin("--since", body["position"])
    assert (await watching.line())["row"] == topic("b", 7)


async def test_it_ends_when_nobody_reads_any_more(watching: Watching) -> None:
    """As in `penstock watch topics | head -1`, though no further change comes."""
    reading, writing = os.pipe()
    await watching.begin(stdout=writing)
    os.close(writing)
    watching.flows.commit(watching.stream, [topic("a", 1)])
    with open(reading, "rb") as pipe:  # noqa: ASYNC230
        assert await asyncio.to_thread(pipe.readline)
    assert await watching.end() == (UNREAD, "")


async def test_a_server_that_comes_back_is_told_on_stderr_and_nothing_is_lost(watching: Watching) -> None:
    await watching.begin()
    watching.flows.commit(watching.stream, [topic("a", 1)])
    assert (await watching.line())["row"] == topic("a", 1)
    for connection in list(watching.edge.server.runner.server.connections):
        connection.transport.abort()
    watching.flows.commit(watching.stream, [topic("b", 1)])
    assert (await watching.line())["row"] == topic("b", 1)
    watching.process.send_signal(signal.SIGINT)
    _, said = await watching.end()
    assert "trying again" in said
    assert "connected again" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--where", "rsvps >"], "bad_query"),
        (["--url", "http://127.0.0.1:1"], "unreachable: no server answers at http://127.0.0.1:1"),
        (["--params", "[1]"], "bad_request: --params [1] is no JSON object"),
        (["--since", "x"], "bad_position"),
    ],
)
async def test_what_is_wrong_is_a_paragraph(watching: Watching, words: list[str], message: str) -> None:
    await watching.begin(*words)
    code, said = await watching.end()
    assert code == 1
    assert message in said
    assert "Traceback" not in said


def test_one_change_is_one_line() -> None:
    changes = batch({"topic": "a", "rsvps": 1}, deletes=({"topic": "b"},))
    assert [json.loads(line) for line in lines(changes)] == [
        {"change": "upsert", "row": {"topic": "a", "rsvps": 1}, "position": "p2"},
        {"change": "delete", "key": {"topic": "b"}, "position": "p2"},
    ]
    again = batch({"topic": "a"}, snapshot=True, reset="rebuilt")
    assert [json.loads(line)["change"] for line in lines(again)] == ["reset", "snapshot"]


def test_parameters_are_a_json_object() -> None:
    assert Wanted("v", params='{"n": 1}').options()["params"] == {"n": 1}
    assert Wanted("v").options()["params"] is None
    for wrong in ("[1]", "{", "3"):
        with pytest.raises(BadRequestError):
            Wanted("v", params=wrong).options()


# In a terminal


@pytest.fixture
def table() -> LiveTable:
    table = LiveTable("topics")
    table.has(FACTS, Wanted("topics"))
    rows = [{"topic": "a", "rsvps": 5}, {"topic": "b", "rsvps": 12}, {"topic": "c", "rsvps": None}]
    table.apply(batch(*rows, snapshot=True), 0.0)
    return table


def shown(table: LiveTable) -> list[str]:
    return [row["topic"] for _, row in table.ordered()]


def test_rows_stand_in_the_views_order_and_within_its_limit(table: LiveTable) -> None:
    assert shown(table) == ["b", "a"]


def test_columns_and_limit_are_those_that_were_asked_for() -> None:
    table = LiveTable("topics")
    table.has(FACTS, Wanted("topics", select="rsvps", limit=7))
    assert (table.columns, table.limit) == (["topic", "rsvps"], 7)


def test_changes_move_rows(table: LiveTable) -> None:
    table.apply(batch({"topic": "a", "rsvps": 20}, deletes=({"topic": "b"},)), 1.0)
    assert shown(table) == ["a", "c"]


def test_a_snapshot_replaces_all(table: LiveTable) -> None:
    table.apply(batch({"topic": "x", "rsvps": 1}, {"topic": "y", "rsvps": 2}, snapshot=True, reset="rebuilt"), 1.0)
    assert shown(table) == ["y", "x"]


def test_the_title_tells_of_the_connection(table: LiveTable) -> None:
    table.says(Notice("broken", "topics", "no server answers"))
    assert table.status == "no server answers"
    table.says(Notice("back", "topics", "connected again"))
    assert table.status == "live"


def test_numbers_that_come_as_text_are_ordered_as_numbers() -> None:
    table = LiveTable("v", ["k"], ["k", "n"], ["n"], None)
    rows = [{"k": k, "n": n} for k, n in (("a", "10.5"), ("b", "9"), ("c", "1152921504606846976"))]
    table.apply(batch(*rows, snapshot=True), 0.0)
    assert [row["k"] for _, row in table.ordered()] == ["b", "a", "c"]


def test_it_can_be_drawn(table: LiveTable) -> None:
    window = {"start": "2024-01-01T00:00:00.000Z", "end": "2024-01-01T00:01:00.000Z"}
    table.columns.append("window")
    table.rows["w"] = {"topic": "w [x]", "rsvps": 123456, "window": window}
    console = Console(file=io.StringIO(), width=100)
    console.print(table.render(0.0))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "w [x]" in drawn
    assert "123,456" in drawn
    assert "2024-01-01 00:00:00 to 00:01:00" in drawn
