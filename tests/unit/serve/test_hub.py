"""A subscriber ends with exactly the view's rows, over any transport, whatever breaks in between."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from edge import TRANSPORTS, Edge, Replica, edge, eventually, flows_and_edge, follow_socket, follow_sse
from fake_flows import FakeFlows, topic

from penstock.config import Limits
from penstock.log.log import Stream
from penstock.serve.fanout import hub
from tests.memory_folder import memory_folder

QUERIES: dict[str, dict[str, Any]] = {
    "all": {},
    "where": {"where": "rsvps % 3 = 0 or `group` = 'a'"},
    "top": {"order_by": "-rsvps", "limit": "4"},
    "where and top": {"where": "rsvps > 20", "order_by": "rsvps,-topic", "limit": "3", "select": "rsvps"},
    "nothing": {"limit": "0"},
}


class World:
    """Random batches, and what the view must hold after each."""

    def __init__(self, seed: int, flows: FakeFlows, stream: Stream) -> None:
        self.random = random.Random(seed)
        self.flows, self.stream = flows, stream
        self.rows: dict[str, dict[str, Any]] = {}
        self.offset = 0

    def batch(self) -> None:
        names = [f"t{i}" for i in range(12)]
        chosen = self.random.sample(names, self.random.randint(0, 5))
        gone = [n for n in chosen if n in self.rows and self.random.random() < 0.4]
        new = [topic(n, self.random.randrange(60), self.random.choice("ab")) for n in chosen if n not in gone]
        self.rows = {n: r for n, r in self.rows.items() if n not in gone} | {r["topic"]: r for r in new}
        self.offset = self.flows.commit(self.stream, new, [{"topic": n} for n in gone])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_subscriber_ends_with_the_views_rows_across_disconnects(
    tmp_path: Path, transport: str, query: str, seed: int
) -> None:
    follow, params = TRANSPORTS[transport], QUERIES[query]
    async with flows_and_edge(tmp_path, position_s=0.1) as (flows, running):
        world = World(seed, flows, flows.build())
        replica = Replica()
        for _ in range(6):
            for _ in range(world.random.randint(0, 3)):
                world.batch()
            stop_after = len(replica.messages) + world.random.randint(0, 3)
            follower = asyncio.create_task(
                follow(running, replica, lambda stop_after=stop_after: len(replica.messages) >= stop_after, params)
            )
            for _ in range(world.random.randint(1, 4)):
                world.batch()
                await asyncio.sleep(world.random.random() * 0.02)
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            if not follower.cancelled():
                follower.result()
            replica.broken()
        await running.at_offset(world.offset)
        wanted = await running.rows(**params)
        await _follow_to_the_end(running, replica, transport, params)
        assert sorted(replica.rows.values(), key=str) == sorted(wanted, key=str)
        assert replica.resets == 0
        if query == "all":
            assert {row["topic"]: row for row in wanted} == world.rows


async def _follow_to_the_end(running: Edge, replica: Replica, transport: str, params: dict[str, Any]) -> None:
    content = running.views.view("topics").content
    assert content is not None
    end = content.position.token()
    if replica.position != end:
        await TRANSPORTS[transport](running, replica, lambda: replica.position == end, params)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_resume_after_a_restart_of_the_edge_needs_no_reset(tmp_path: Path, transport: str) -> None:
    flows = FakeFlows(memory_folder(tmp_path).flows_log)
    world = World(7, flows, flows.build())
    replica = Replica()
    params = QUERIES["top"]
    try:
        for _ in range(3):
            world.batch()
            async with edge(memory_folder(tmp_path)) as running:
                await running.at_offset(world.offset)
                for _ in range(5):
                    world.batch()
                await running.at_offset(world.offset)
                await _follow_to_the_end(running, replica, transport, params)
            for _ in range(4):
                world.batch()
        async with edge(memory_folder(tmp_path), position_s=0.1) as running:
            await running.at_offset(world.offset)
            await _follow_to_the_end(running, replica, transport, params)
            assert sorted(replica.rows.values(), key=str) == sorted(await running.rows(**params), key=str)
        assert replica.resets == 0
    finally:
        flows.close()


async def test_two_rows_of_one_batch_are_never_seen_apart(tmp_path: Path) -> None:
    """Money moves between two accounts: whoever looks always sees the same sum."""
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        rng = random.Random(5)
        flows.commit(stream, [topic("a", 50), topic("b", 50)])
        replicas = [Replica(), Replica()]
        sums: list[int] = []

        def look(replica: Replica) -> bool:
            if replica.rows:
                sums.append(sum(row["rsvps"] for row in replica.rows.values()))
            return len(replica.messages) > 30

        async def read() -> None:
            while True:
                sums.append(sum(row["rsvps"] for row in await running.rows()))

        followers = [
            asyncio.create_task(follow_socket(running, replicas[0], lambda: look(replicas[0]), {})),
            asyncio.create_task(follow_sse(running, replicas[1], lambda: look(replicas[1]), {})),
        ]
        reader = asyncio.create_task(read())
        while not all(follower.done() for follower in followers):
            share = rng.randrange(100)
            await asyncio.to_thread(flows.commit, stream, [topic("a", share), topic("b", 100 - share)])
        await asyncio.gather(*followers)
        reader.cancel()
        await asyncio.wait([reader])
        assert len(sums) > 60
        assert set(sums) == {100}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_new_build_resets_every_subscriber(tmp_path: Path, transport: str) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("old", 1)])
        replica = Replica()
        follower = asyncio.create_task(
            TRANSPORTS[transport](running, replica, lambda: replica.resets == 1 and len(replica.rows) == 2, {})
        )
        await eventually(lambda: bool(replica.rows), "the old build was shown")
        new = flows.build(live=False)
        flows.commit(new, [topic("new", 1), topic("newer", 2)])
        assert list(replica.rows) == ['["old"]'], "the old build is served until the new one is live"
        flows.serve("topics", new.epoch)
        await follower
        kinds = [message["type"] for message in replica.messages]
        assert kinds == ["snapshot", "reset", "snapshot"]
        assert [row["topic"] for row in replica.rows.values()] == ["newer", "new"]


async def test_resume_with_a_position_of_an_older_build_is_a_reset(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("old", 1)])
        await running.at_offset(1)
        _, before = await running.get("/views/topics")
        new = flows.build()
        flows.commit(new, [topic("new", 1)])
        view = running.views.view("topics")
        await view.until(lambda: view.content is not None and view.content.epoch == new.epoch, 60)
        status, body = await running.get("/views/topics", since=before["position"], wait=60)
        assert status == 200
        assert [message["type"] for message in body["messages"]] == ["reset", "snapshot"]


async def test_resume_from_below_the_history_is_a_reset(tmp_path: Path) -> None:
    limits = Limits(history_bytes=0, history_us=0)
    async with flows_and_edge(tmp_path, limits) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        _, before = await running.get("/views/topics")
        for i in range(5):
            flows.commit(stream, [topic("a", i + 2)])
        await running.at_offset(6)
        status, body = await running.get("/views/topics", since=before["position"], wait=60)
        assert status == 200
        assert [message["type"] for message in body["messages"]] == ["reset", "snapshot"]
        assert body["messages"][1]["rows"] == [topic("a", 6)]


async def test_batches_that_change_nothing_for_a_subscriber_only_move_its_position(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, position_s=0.1) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        replica = Replica()
        follower = asyncio.create_task(
            follow_socket(running, replica, lambda: len(replica.messages) == 2, {"where": "topic = 'a'"})
        )
        await eventually(lambda: bool(replica.rows), "snapshot")
        flows.commit(stream, [topic("b", 1)])
        await follower
        assert [message["type"] for message in replica.messages] == ["snapshot", "position"]


@pytest.mark.parametrize("wait", [0, 0.05])
async def test_a_position_ahead_of_the_server_is_a_reset_however_short_a_poll_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    """A data folder that was put back to an older state: 204 for ever would hide the gap behind it."""
    monkeypatch.setattr(hub, "AHEAD_S", 0.3)
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        status, body = await running.get("/views/topics", since=stream.position((3,)).token(), wait=wait)
        assert (status, [message["type"] for message in body["messages"]]) == (200, ["reset", "snapshot"])
        monkeypatch.setattr(hub, "AHEAD_S", 30.0)
        ahead = asyncio.create_task(running.get("/views/topics", since=stream.position((2,)).token(), wait=wait))
        flows.commit(stream, [topic("a", 2)])
        flows.commit(stream, [topic("a", 3)])
        status, body = await ahead
        assert (status, [message["upserts"][0]["rsvps"] for message in body["messages"]]) == (200, [3])


async def test_long_poll_answers_204_when_nothing_came_and_a_position_when_batches_passed_by(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        _, body = await running.get("/views/topics")
        assert (await running.get("/views/topics", since=body["position"], wait=0.05))[0] == 204
        flows.commit(stream, [topic("b", 1)])
        await running.at_offset(2)
        params = {"since": body["position"], "wait": 0.2, "where": "topic = 'a'"}
        status, moved = await running.get("/views/topics", **params)
        assert status == 200
        assert [message["type"] for message in moved["messages"]] == ["position"]
        assert moved["position"] == moved["messages"][0]["position"] != body["position"]


async def test_equal_queries_are_evaluated_and_encoded_once(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        replicas = [Replica() for _ in range(20)]
        followers = [
            asyncio.create_task(
                follow_socket(
                    running, replica, lambda replica=replica: len(replica.messages) == 2, {"where": "rsvps > 0"}
                )
            )
            for replica in replicas
        ]
        await eventually(lambda: all(replica.rows for replica in replicas), "snapshots")
        flows.commit(stream, [topic("a", 2)])
        await asyncio.gather(*followers)
        assert running.observer.value("penstock_serve_messages_encoded_total", view="topics") == 1
        assert running.observer.value("penstock_serve_messages_total", view="topics") == 20


async def test_large_snapshots_come_in_parts_and_later_changes_follow(tmp_path: Path) -> None:
    limits = Limits(snapshot_part_rows=300)
    async with flows_and_edge(tmp_path, limits) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic(f"t{i:05}", i) for i in range(2500)])
        replica = Replica()
        follower = asyncio.create_task(
            follow_sse(running, replica, lambda: len(replica.rows) == 2501, {"order_by": "rsvps"})
        )
        await eventually(lambda: len(replica.messages) >= 9, "parts")
        flows.commit(stream, [topic("new", 1)])
        await follower
        assert [m.get("parts") for m in replica.messages[:9]] == [9] * 9
        assert [row["rsvps"] for row in replica.messages[0]["rows"][:3]] == [0, 1, 2]


async def test_a_subscription_waits_for_a_view_that_is_loading(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        replica = Replica()
        follower = asyncio.create_task(follow_sse(running, replica, lambda: bool(replica.rows), {}))
        await asyncio.sleep(0.05)
        assert not follower.done()
        flows.commit(flows.build(), [topic("a", 1)])
        await follower


async def test_a_batch_says_when_its_newest_event_was_accepted(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        replica = Replica()
        follower = asyncio.create_task(follow_socket(running, replica, lambda: len(replica.messages) == 2, {}))
        await eventually(lambda: len(replica.messages) == 1, "snapshot")
        flows.commit(stream, [topic("a", 1)], accepted_us=1_500)
        await follower
        assert replica.messages[1]["accepted"] == "1970-01-01T00:00:00.001Z"


@pytest.mark.parametrize("query", ["all", "where", "top"])
async def test_large_batches_on_a_large_view_leave_subscribers_exact(tmp_path: Path, query: str) -> None:
    """Prepared, swapped, evaluated and ranked again in threads: the first thousands leave, then most rows change."""
    params = QUERIES[query]
    async with flows_and_edge(tmp_path, position_s=0.1) as (flows, running):
        stream = flows.build()
        rows = {f"t{i}": topic(f"t{i}", i, "ab"[i % 2]) for i in range(8_000)}
        flows.commit(stream, list(rows.values()))
        await running.at_offset(1)
        live, resumed = Replica(), Replica()
        await follow_socket(running, resumed, lambda: resumed.position is not None, params)
        end = stream.position((4,)).token()
        follower = asyncio.create_task(follow_socket(running, live, lambda: live.position == end, params))
        await eventually(lambda: live.position is not None, "snapshot")
        await asyncio.to_thread(flows.commit, stream, [], [{"topic": f"t{i}"} for i in range(5_000, 8_000)])
        await asyncio.to_thread(flows.commit, stream, [topic(f"t{i}", 3 * i, "c") for i in range(1, 30_000)])
        await asyncio.to_thread(flows.commit, stream, [], [{"topic": f"t{i}"} for i in range(29_000, 30_000)])
        await follower
        await follow_socket(running, resumed, lambda: resumed.position == end, params)
        wanted = sorted(await running.rows(**params, **({} if "limit" in params else {"limit": "null"})), key=str)
        assert sorted(live.rows.values(), key=str) == wanted
        assert sorted(resumed.rows.values(), key=str) == wanted
        assert live.resets == resumed.resets == 0
