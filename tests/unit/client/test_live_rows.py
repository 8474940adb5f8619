"""A copy that keeps itself current, and a function that is called for rows: for asyncio and for threads."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from edge import eventually
from fake_flows import topic
from running_edge import running
from served import FAST, Served, serving
from shop_app import shop

from penstock.client import AsyncClient, Changes, Client, RowChange
from penstock.client.verdict import TransientFailure
from penstock.errors import (
    BadQueryError,
    ClientClosedError,
    NotReadyError,
    PenstockError,
    TooManyError,
    UnknownViewError,
)

DEADLINE_S = 60.0
TS = pa.timestamp("us", tz="UTC")
WINDOWS = pa.schema([("group", pa.struct([("start", TS), ("end", TS)])), ("topic", pa.string()), ("rsvps", pa.int64())])


async def test_a_copy_is_current_by_key_and_says_so(tmp_path: Path) -> None:
    told: list[Changes] = []
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("jazz", 1), topic("rock", 2), accepted_us=1_700_000_000_000_000)
        async with client.live("topics", on_change=told.append) as topics:
            assert topics["jazz"]["rsvps"] == 1
            assert (len(topics), sorted(topics), "pop" in topics, topics.get("pop")) == (
                2,
                ["jazz", "rock"],
                False,
                None,
            )
            first = topics.position
            served.commit(topic("jazz", 5), deletes=["rock"], accepted_us=1_700_000_000_000_000)
            assert await topics.changed(first) == topics.position
            assert dict(topics) == {"jazz": topic("jazz", 5)}
            rows, position = topics.snapshot()
            assert (rows, position) == (dict(topics), topics.position)
            assert topics.connected
            assert topics.lag_s is not None
            assert topics.lag_s > 1e6
            await served.restart()
            served.commit(topic("rock", 7))
            await topics.changed(position)
            assert topics["rock"]["rsvps"] == 7
        assert [len(changes.upserts) for changes in told] == [2, 1, 1]
        assert "jazz" in topics, "what was known stays"
        assert not topics.connected


async def test_a_key_of_two_columns_is_a_tuple_and_a_window_may_be_given_as_it_looks(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        stream = served.flows.build("elsewhere", WINDOWS, ("topic", "group"))
        window = {"start": "2024-01-01T00:00:00.000Z", "end": "2024-01-01T00:01:00.000Z"}
        start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        row = {"topic": "a", "group": {"start": start, "end": start + dt.timedelta(minutes=1)}, "rsvps": 3}
        await served.edge.at_offset(served.flows.commit(stream, [row]), "elsewhere")
        async with client.live("elsewhere") as rows:
            key = ("a", (window["start"], window["end"]))
            assert list(rows) == [key]
            assert rows[key] == rows["a", window] == {"topic": "a", "group": window, "rsvps": 3}
            assert await client.get_row("elsewhere", key) == rows[key]
            assert await client.get_row("elsewhere", {"topic": "a", "group": window}) == rows[key]
            with pytest.raises(BadQueryError):
                await client.get_row("elsewhere", ("a",))


async def test_a_rebuild_with_another_key_is_followed(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("jazz", 1, "g1"))
        async with client.live("topics") as topics:
            served.stream = served.flows.build(key=("topic", "group"), live=False)
            served.flows.commit(served.stream, [topic("jazz", 1, "g1"), topic("jazz", 2, "g2")])
            served.flows.serve("topics", served.stream.epoch)
            await topics.changed()
            assert dict(topics) == {("jazz", "g1"): topic("jazz", 1, "g1"), ("jazz", "g2"): topic("jazz", 2, "g2")}


async def test_who_waits_for_a_copy_is_told_what_ended_it(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        for options, kind in (({"where": "rsvps >"}, BadQueryError), ({"select": "nope"}, BadQueryError)):
            with pytest.raises(kind):
                async with client.live("topics", **options):
                    pass
        with pytest.raises(UnknownViewError):
            async with client.live("nope"):
                pass


def _refusing(client: AsyncClient, *refusals: PenstockError) -> list[PenstockError]:
    """What the server says when it is asked for the key, until nothing is left."""
    left, get = list(refusals), client._calls().get

    async def played(path: str, *more: Any) -> Any:
        if path == "/views" and left:
            raise TransientFailure(left.pop(0))
        return await get(path, *more)

    client._calls().get = played  # type: ignore[method-assign]
    return left


async def test_a_server_that_cannot_say_the_key_yet_ends_neither_a_copy_nor_calls(tmp_path: Path) -> None:
    seen: list[RowChange] = []
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("jazz", 1))
        passing = (TooManyError("slower").after(0.01), NotReadyError("starting"), PenstockError("a bug"))
        left = _refusing(client, *passing, *passing)
        async with client.live("topics") as topics:
            assert list(topics) == ["jazz"]
        left += passing
        async with client.on("topics", None, seen.append, existing=True):
            await eventually(lambda: len(seen) == 1, "the row")
        assert left == []


async def test_a_server_that_never_says_the_key_is_asked_as_long_as_one_has_patience(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client(patience_s=0.1) as client:
        await served.show(topic("jazz", 1))
        _refusing(client, *[TooManyError("slower")] * 10_000)
        with pytest.raises(TooManyError):
            async with client.live("topics"):
                pass


async def test_a_callback_that_fails_is_logged_and_the_copy_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(changes: Changes) -> None:
        raise ValueError("mine")

    async with (
        asyncio.timeout(DEADLINE_S),
        serving(tmp_path) as served,
        served.client() as client,
        client.live("topics", on_change=fail) as topics,
    ):
        served.commit(topic("a", 1))
        await eventually(lambda: "a" in topics, "it goes on")
    assert "on_change failed" in caplog.text


async def test_a_function_is_called_for_rows_that_come_or_change(tmp_path: Path) -> None:
    calls: list[RowChange] = []

    async def handle(change: RowChange) -> None:
        await asyncio.sleep(0)
        calls.append(change)

    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("old", 9), topic("low", 1))
        async with client.on("topics", "rsvps > 3", handle) as calling:
            await eventually(lambda: calling.position is not None, "it has begun")
            await served.show(topic("low", 5))
            await eventually(lambda: len(calls) == 1, "one call")
            await served.show(topic("old", 9))
            await served.show(topic("low", 6), topic("x", 1))
            await eventually(lambda: len(calls) == 2, "another")
            known = calling.position
            await served.show(topic("low", 0))
            await eventually(lambda: calling.position != known, "it knows that the row is gone")
            await served.restart()
            await served.show(topic("low", 7))
            await eventually(lambda: len(calls) >= 3, "three calls")
            served.stream = served.flows.build(live=False)  # after a reset only what is not as before
            served.commit(topic("old", 9), topic("low", 8))
            served.flows.serve("topics", served.stream.epoch)
            await eventually(lambda: len(calls) >= 4, "one more")
        seen = [(c.row["topic"], c.row["rsvps"], c.before and c.before["rsvps"]) for c in calls]
        assert seen == [("low", 5, None), ("low", 6, 5), ("low", 7, None), ("low", 8, 7)]
        assert calls[0].view == "topics"
        assert calls[0].position


async def test_a_function_that_fails_ends_the_calls_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(change: RowChange) -> None:
        raise ValueError(change.row["topic"])

    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("a", 1))
        calling = client.on("topics", None, fail, existing=True)
        with pytest.raises(ValueError, match="a"):
            await calling.wait()
        await calling.stop()
    assert "calls for rows have ended" in caplog.text


# Threads


async def threaded(served: Served, use: Callable[[Client], Any]) -> Any:
    """Use a client for threads in one, while the server lives in this one."""

    def run() -> Any:
        with Client(served.url, **FAST) as client:
            return use(client)

    return await asyncio.to_thread(run)


async def test_threads_read_the_same(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 1), topic("b", 2))
        served.door.post("x", "y")

        def use(client: Client) -> None:
            assert client.get("topics", where="rsvps > 1").rows == (topic("b", 2),)
            assert client.get_row("topics", "a") == topic("a", 1)
            assert client.view("topics").key == client.views()[0].key == ("topic",)
            with client.watch("topics", limit=1) as watch:
                assert next(watch).upserts == (topic("b", 2),)
                with pytest.raises(TimeoutError):
                    watch.next(0.02)
                served.commit(topic("a", 9))
                changes = watch.next(DEADLINE_S)
                assert (changes.upserts, changes.deletes) == ((topic("a", 9),), ({"topic": "b"},))
                assert changes.position == watch.position
                assert (watch.connected, watch.lag_s) == (True, None)
            assert list(watch) == []
            with client.stream("rsvps", where="topic <> 'x'") as events:
                assert next(events)["topic"] == "y"
            with pytest.raises(UnknownViewError):
                client.get("nope")

        await threaded(served, use)


async def test_a_reader_that_a_thread_drops_is_ended_as_one_that_is_closed(tmp_path: Path) -> None:
    """Not by the garbage collector of whichever thread, which ends its generators one by one while they run."""
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 1))

        def use(client: Client) -> None:
            watch = client.watch("topics")
            next(watch)
            following = watch._following
            del watch
            deadline = time.monotonic() + DEADLINE_S
            while not following._ended or served.edge.serving._pipes:
                assert time.monotonic() < deadline, "it goes on"
                time.sleep(0.01)

        await threaded(served, use)


async def test_threads_share_a_copy_and_none_sees_half_a_batch(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(*(topic(f"t{n}", 0) for n in range(50)))
        torn: list[Any] = []

        def look(topics: Any, over: threading.Event) -> None:
            while not over.is_set():
                rows, _ = topics.snapshot()
                if len({row["rsvps"] for row in rows.values()}) > 1 or len(rows) != 50:
                    torn.append(rows)

        def use(client: Client) -> None:
            over = threading.Event()
            with client.live("topics") as topics:
                looking = [threading.Thread(target=look, args=(topics, over)) for _ in range(3)]
                for thread in looking:
                    thread.start()
                position = topics.position
                for batch in range(1, 30):
                    served.commit(*(topic(f"t{n}", batch) for n in range(50)))
                while topics["t0"]["rsvps"] != 29:
                    position = topics.changed(position, timeout_s=DEADLINE_S)
                over.set()
                for thread in looking:
                    thread.join()
                with pytest.raises(TimeoutError):
                    topics.changed(timeout_s=0.02)

        await threaded(served, use)
        assert torn == []


async def test_threads_are_called_for_rows(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 1))
        called = threading.Event()

        def use(client: Client) -> None:
            with client.on("topics", "rsvps > 3", lambda change: called.set()) as calling:
                with pytest.raises(TimeoutError):
                    calling.wait(0.05)
                deadline = time.monotonic() + DEADLINE_S
                while calling.position is None and time.monotonic() < deadline:  # what is there when it begins is old
                    time.sleep(0.01)
                served.commit(topic("a", 5))
                assert called.wait(DEADLINE_S)
                assert calling.position

        await threaded(served, use)


async def test_a_closed_client_says_so(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:

        def use(client: Client) -> Client:
            next(client.watch("topics"))
            return client

        client = await threaded(served, use)
        client.close()
        with pytest.raises(ClientClosedError):
            client.views()
        await eventually(lambda: not served.edge.serving._pipes, "its sockets are closed")
        assert not [t for t in threading.enumerate() if t.name == "penstock-reader"]


async def test_what_is_sent_through_a_client_is_read_through_it(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        running(shop(), tmp_path) as edge,
        AsyncClient(edge.url) as client,
        client.producer("orders", linger_ms=1) as orders,
    ):
        receipt = await (await orders.send({"order_id": 1}))
        assert receipt.ack
