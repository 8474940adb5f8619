"""A client against a real edge: the same on every transport, across cuts and restarts, with nothing lost or doubled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from edge import eventually
from fake_flows import small_app, topic
from served import FAST, WAYS, Copy, serving

from penstock.app import App
from penstock.client import AsyncClient, Channel, Client, Notice, col, where
from penstock.client.subscription import Following
from penstock.config import Limits
from penstock.errors import (
    BadPositionError,
    BadQueryError,
    BadRequestError,
    NotYetError,
    PositionGoneError,
    UnknownStreamError,
    UnknownViewError,
    UnreachableError,
)
from penstock.position import Position
from tests.chaos.proxy import Proxy

DEADLINE_S = 60.0


def offset_of(position: str | None) -> int:
    assert position is not None
    return Position.parse(position).offsets[0]


@pytest.mark.parametrize("way", WAYS)
async def test_a_snapshot_then_every_batch_across_cuts_and_restarts(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client(transport=way) as client:
        served.commit(topic("a", 0))
        copy, watch = Copy(), client.watch("topics")
        await copy.until(watch, lambda rows: len(rows) == 1)
        for n in range(1, 30):
            served.commit(topic(f"t{n}", n), deletes=[f"t{n - 3}"] if n > 3 else [])
            if n % 7 == 0:
                served.cut()
            if n % 11 == 0:
                await served.restart()
            if n % 2:
                await copy.until(watch, lambda rows, n=n: f"t{n}" in rows)
        await copy.until(watch, lambda rows: "t29" in rows)
        assert set(copy.rows) == {"a", "t27", "t28", "t29"}
        assert [offset_of(p) for p in copy.positions] == sorted({offset_of(p) for p in copy.positions})
        assert offset_of(watch.position) == 30


async def test_what_one_transport_has_read_another_goes_on_from(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("t0", 0))
        copy, since = Copy(), None
        for n in range(1, 13):
            async with client.watch("topics", since=since, transport=WAYS[n % 3]) as watch:
                await copy.until(watch, lambda rows, n=n: f"t{n - 1}" in rows)
                served.commit(topic(f"t{n}", n))
                await copy.until(watch, lambda rows, n=n: f"t{n}" in rows)
                since = watch.position
        assert len(copy.rows) == 13
        assert len(copy.positions) == 13


@pytest.mark.parametrize("way", WAYS)
async def test_a_rebuild_is_a_snapshot_that_says_why(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client(transport=way) as client:
        told: list[Notice] = []
        client._notify = told.append
        await served.show(topic("old", 1))
        watch = client.watch("topics")
        first = await anext(watch)
        assert (first.snapshot, first.reset) == (True, None)
        served.stream = served.flows.build(live=False)
        served.commit(topic("new", 1))
        served.flows.serve("topics", served.stream.epoch)
        again = await anext(watch)
        assert (again.snapshot, [row["topic"] for row in again.upserts]) == (True, ["new"])
        assert again.reset
        assert [notice.kind for notice in told if notice.kind == "reset"] == ["reset"]
        assert told[-1].text == again.reset


@pytest.mark.parametrize("way", WAYS)
async def test_a_large_snapshot_is_given_once_and_whole(tmp_path: Path, way: Any) -> None:
    rows = [topic(f"t{n:04}", n, "x" * 100) for n in range(3_000)]
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path, Limits(snapshot_part_rows=250)) as served:
        await served.show(*rows)
        async with Proxy(served.port, Random(3)) as proxy, AsyncClient(proxy.url, transport=way, **FAST) as client:
            proxy.begin("cut_reply")
            watch = client.watch("topics")
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            proxy.end()
            changes = await waiting
            assert len(changes.upserts) == 3_000
            assert changes.snapshot


@pytest.mark.parametrize("way", WAYS)
async def test_a_connection_that_is_dead_without_a_word_is_noticed(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path, heartbeat_s=0.1) as served:
        served.commit(topic("a", 1))
        told: list[Notice] = []
        async with Proxy(served.port, Random(3)) as proxy:
            options = FAST | {"idle_s": 0.6, "timeout_s": 0.6}
            async with AsyncClient(proxy.url, transport=way, notify=told.append, **options) as client:
                copy, watch = Copy(), client.watch("topics")
                await copy.until(watch, lambda rows: "a" in rows)
                proxy.begin("half_open")
                served.commit(topic("b", 1))
                waiting = asyncio.ensure_future(copy.until(watch, lambda rows: "b" in rows))
                if way != "poll":  # a poll that waits 20 s is given up after as much: too long for a test
                    await eventually(lambda: bool(told), "the silence is noticed")
                proxy.end()
                if way == "poll":
                    proxy.begin("reset")
                    proxy.end()
                await waiting
                assert way == "poll" or {notice.kind for notice in told} >= {"broken", "back"}


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_server_refuses_is_raised_and_not_tried_again(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client(transport=way) as client:
        served.commit(topic("a", 1))
        stream = Position("stream", "rsvps", "e", (0,)).token()
        for watch, kind in (
            (client.watch("nope"), UnknownViewError),
            (client.watch("topics", where="rsvps >"), BadQueryError),
            (client.watch("topics", where="rsvps > 'many'"), BadQueryError),
            (client.watch("topics", select="nope"), BadQueryError),
            (client.watch("topics", since=stream), BadPositionError),
            (client.watch("topics", since="garbage"), BadPositionError),
            (client.stream("nope"), UnknownStreamError),
        ):
            with pytest.raises(kind) as caught:
                await anext(watch)
            assert caught.value.hint
            with pytest.raises(StopAsyncIteration):
                await anext(watch)


async def test_nobody_there_is_tried_for_ever_or_as_long_as_one_has_patience(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with AsyncClient("http://127.0.0.1:1", patience_s=0.2, backoff_most_s=0.05) as client:
            with pytest.raises(UnreachableError):
                await anext(client.watch("topics"))
            with pytest.raises(UnreachableError):
                await client.get("topics")
        async with serving(tmp_path) as served, served.client() as client:
            served.commit(topic("a", 1))
            await served.stop()
            waiting = asyncio.ensure_future(anext(client.watch("topics")))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await served.start()
            assert (await waiting).snapshot


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(BadRequestError):
        AsyncClient("localhost:8080").watch("topics")


@pytest.mark.parametrize("way", WAYS)
async def test_a_wait_that_is_given_up_loses_nothing_and_keeps_its_connection(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        told: list[Notice] = []
        async with served.client(transport=way, notify=told.append) as client:
            copy, watch = Copy(), client.watch("topics")
            served.commit(topic("t0", 0))
            await copy.until(watch, lambda rows: len(rows) == 1)
            for n in range(1, 20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.005)
                served.commit(topic(f"t{n}", n))
                if n % 3:
                    await copy.until(watch, lambda rows, n=n: f"t{n}" in rows)
                else:
                    await asyncio.sleep(0.05)  # it has come by now, and nobody was waiting
                    copy.take(await anext(watch))
            assert len(copy.rows) == 20
            assert told == []


async def test_a_reader_that_does_not_ask_does_not_read(tmp_path: Path) -> None:
    """So the server merges what it missed, or cuts it and lets it resume; in either way it ends up with everything."""
    limits, told = Limits(subscriber_bytes=200_000), list[Notice]()
    async with asyncio.timeout(60), serving(tmp_path, limits) as served, served.client(notify=told.append) as client:
        copy, watch = Copy(), client.watch("topics")
        served.commit(topic("t", 0))
        await copy.until(watch, lambda rows: "t" in rows)
        for n in range(1, 200):
            await served.show(*(topic(f"t{i}", n, "x" * 2000) for i in range(50)))
        await copy.until(watch, lambda rows: len(rows) == 51 and all(r["rsvps"] in (0, 199) for r in rows.values()))
        assert offset_of(watch.position) == 200
        assert len(copy.positions) < 200 or {notice.kind for notice in told} & {"broken", "stalled"}


@pytest.mark.parametrize("way", WAYS)
async def test_filters_as_text_and_as_python_mean_the_same(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client(transport=way) as client:
        await served.show(topic("jazz", 5), topic("rock", 2), topic("pop", 9, "h"))
        texts = [
            {"where": "rsvps > 3 AND `group` = 'g'"},
            {"where": "rsvps > :least AND `group` = :group", "params": {"least": 3, "group": "g"}},
            {"where": where((col.rsvps > 3) & (col.group == "g"))},
            {"where": where(col.topic.is_in(["jazz", "o'hara"]), ~col.rsvps.between(0, 4))},
        ]
        for asked in texts:
            assert [row["topic"] for row in (await client.get("topics", **asked)).rows] == ["jazz"]
            async with client.watch("topics", **asked) as watch:
                assert [row["topic"] for row in (await anext(watch)).upserts] == ["jazz"]
                rows = await client.get("topics")
                await served.show(topic("jazz", 1))
                assert (await anext(watch)).deletes == ({"topic": "jazz"},)
                await served.show(topic("jazz", 5))
                assert [row["rsvps"] for row in (await anext(watch)).upserts] == [5]
            assert rows.position


async def test_rows_of_one_moment_with_where_select_order_limit_and_key(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("a", 5), topic("b", 2), topic("c", 9))
        found = await client.get("topics", select=["rsvps"], order_by="rsvps", limit=2)
        assert found.rows == ({"topic": "b", "rsvps": 2}, {"topic": "a", "rsvps": 5})
        assert list(found) == [found[0], found[1]]
        assert len(found) == 2
        assert found.position
        assert await client.get_row("topics", "c") == topic("c", 9)
        assert await client.get_row("topics", "z") is None
        assert await client.get_row("topics", {"topic": "a"}, select="rsvps") == {"topic": "a", "rsvps": 5}
        assert await client.get_row("topics", ("a",)) == topic("a", 5)
        (facts,) = [view for view in await client.views() if view.name == "topics"]
        assert (facts.key, facts.order_by, facts.rows) == (("topic",), ("-rsvps",), 3)
        with pytest.raises(UnknownViewError, match="nope"):
            await client.view("nope")


async def test_reads_never_go_back_behind_what_was_seen(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("a", 1))
        first = await client.get("topics")
        ahead = Position("view", "topics", served.stream.epoch, (3,)).token()
        client._newest.note("topics", ahead)
        with pytest.raises(NotYetError):
            await client.get("topics", wait=0.05)
        waiting = asyncio.ensure_future(client.get("topics"))
        served.commit(topic("a", 2))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        served.commit(topic("a", 3))
        assert (await waiting)[0]["rsvps"] == 3
        assert (await client.get("topics", at_least=first.position))[0]["rsvps"] == 3
        async with served.client(monotonic=False) as careless:
            careless._newest.note("topics", Position("view", "topics", served.stream.epoch, (9,)).token())
            assert (await careless.get("topics"))[0]["rsvps"] == 3


async def test_a_rebuild_does_not_end_reads_that_never_go_back(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        gone = Position("view", "topics", "another", (3,)).token()
        await served.show(topic("a", 1))
        client._newest.note("topics", gone)
        found = await client.get("topics", wait=0.05)
        assert found[0]["rsvps"] == 1
        assert client._newest.at("topics") == found.position
        with pytest.raises(PositionGoneError):
            await client.get("topics", at_least=gone, wait=0.05)


async def test_a_read_waits_for_what_was_written(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        served.commit(topic("a", 1), end=served.door.end())
        await client.get("topics")  # one that is still loading when time is up is another error
        ack = served.door.post("a")
        with pytest.raises(NotYetError):
            await client.get("topics", after=ack, wait=0.05)
        waiting = asyncio.ensure_future(client.get("topics", after=ack))
        served.commit(topic("a", 2), end=served.door.end())
        assert (await waiting)[0]["rsvps"] == 2


@pytest.mark.parametrize("way", WAYS)
async def test_the_events_of_a_stream_come_once_and_in_order(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client(transport=way) as client:
        served.door.post(*(f"t{n}" for n in range(50)))
        reader = client.stream("rsvps", where="topic <> 't7'")
        seen = [await anext(reader) for _ in range(20)]
        since = reader.position
        assert since == seen[-1]["_position"]
        served.cut()
        seen += [await anext(reader) for _ in range(10)]
        await served.restart()
        served.door.post("x1", "t7", "x2")
        seen += [await anext(reader) for _ in range(21)]
        assert [event["topic"] for event in seen] == [f"t{n}" for n in range(50) if n != 7] + ["x1", "x2"]
        async with client.stream("rsvps", since=since or "", select="n") as rest:
            assert (await anext(rest)).keys() >= {"_position", "n"}


@pytest.mark.parametrize("way", WAYS)
async def test_from_the_end_of_a_stream_only_what_is_new(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        served.door.post("old")
        async with Proxy(served.port, Random(3)) as proxy, AsyncClient(proxy.url, transport=way, **FAST) as client:
            reader = client.stream("rsvps", since="end")
            waiting = asyncio.ensure_future(anext(reader))
            await eventually(lambda: reader.position != "end", "the end is known")
            proxy.begin("reset")
            served.door.post("new")  # while nobody is connected: the end was known before
            proxy.end()
            assert (await waiting)["topic"] == "new"


def test_a_program_that_only_sends_imports_nothing_for_reading() -> None:
    code = (
        "import sys, penstock.client; "
        "print([m for m in ('aiohttp', 'pyspark', 'sqlglot', 'uvloop') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_reader_that_is_dropped_ends_its_connection(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        served.commit(topic("a", 1))

        async def first() -> None:
            async for _ in client.watch("topics"):
                break

        await first()
        await eventually(lambda: not served.edge.serving._pipes, "the socket is closed")
        assert not [f for f in client._following if isinstance(f, Following)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_is_closed_between_two_items_without_a_word(
    tmp_path: Path, way: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As Ctrl-C does it: the reader waits for nothing, and its generators stand one inside the other."""
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        served.commit(topic("a", 1))

        def read() -> Any:
            with Client(served.url, transport=way, **FAST) as client:
                watch = client.watch("topics")
                next(watch)
            return watch

        assert (await asyncio.to_thread(read)).position is not None
        await eventually(lambda: not served.edge.serving._pipes, "the connection is closed")
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_channel_is_read_as_its_view_or_stream_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    def with_channels() -> App:
        app = small_app()
        app.channel("busy", "topics", where="rsvps > 3")
        app.channel("jazz", "rsvps", where="topic = 'jazz'")
        return app

    monkeypatch.setattr("edge.small_app", with_channels)
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client(transport=way) as client:
        await served.show(topic("a", 5), topic("b", 1))
        busy = Channel("busy")
        assert [row["topic"] for row in await client.get(busy)] == ["a"]
        async with client.live(busy, where="topic <> 'x'") as rows:
            served.cut()
            served.commit(topic("b", 9), topic("x", 9))
            await rows.changed()
            assert sorted(rows) == ["a", "b"]
        served.door.post("rock", "jazz")
        async with client.stream(Channel("jazz")) as events:
            assert (await anext(events))["topic"] == "jazz"
        with pytest.raises(UnknownViewError):
            await client.view(Channel("nope"))
