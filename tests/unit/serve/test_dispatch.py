"""A batch reaches exactly the queries that it can matter to, and the others do nothing at all."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from edge import Edge, Replica, eventually, flows_and_edge
from fake_flows import topic

from penstock.serve.fanout import dispatch, query_group
from penstock.serve.fanout.messages import Message
from penstock.serve.question import Question
from penstock.sockets.frames import text_frame


class Sink:
    """A subscriber in this process that keeps what it gets."""

    transport = "test"
    deflates = False
    joins = False
    is_level = True

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.replica = Replica()
        self.pace_s: float | None = None
        self.on_pace: Any = lambda: None
        self.turn = asyncio.Lock()
        self.unsent_bytes = 0

    def offer(self, message: Message) -> bool:
        self.replica.take(json.loads(message.payload))
        return True

    async def send(self, message: Message) -> None:
        self.offer(message)

    async def drained(self) -> None: ...

    def stall(self, made: Any) -> None: ...

    def cut(self, policy: str, last: Message) -> None: ...


class Crowd:
    """Many subscriptions without connections."""

    def __init__(self, running: Edge) -> None:
        self.running = running
        self.tasks: list[asyncio.Task[None]] = []

    def join(self, where: str | None, **asked: Any) -> Sink:
        sink = Sink(where or "")
        view = self.running.views.view("topics")
        subscription = self.running.serving.hub.subscribe(view, Question(where, **asked), None, sink)
        self.tasks.append(asyncio.create_task(subscription))
        return sink

    @property
    def joined(self) -> float:
        return sum(self.running.serving.hub._subscribers_by_view().values())

    async def all_joined(self) -> None:
        await eventually(lambda: self.joined == len(self.tasks), "joined")

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_only_touched_queries_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    real = query_group.QueryGroup._evaluate

    def counting(group: query_group.QueryGroup, due: Any) -> Any:
        evaluated.append(str(group.query.where.text if group.query.where else None))
        return real(group, due)

    monkeypatch.setattr(query_group.QueryGroup, "_evaluate", counting)
    async with flows_and_edge(tmp_path, position_s=0.05) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic(f"t{i}", 0) for i in range(300)])
        await running.at_offset(1)
        crowd = Crowd(running)
        sinks = [crowd.join("topic = :t", params={"t": f"t{i}"}) for i in range(300)]
        odd = crowd.join("rsvps % 2 = 1")
        await crowd.all_joined()
        assert running.observer.value("penstock_serve_queries", view="topics") == 301
        assert running.observer.value("penstock_serve_queries_unindexed", view="topics") == 1
        tasks = len(asyncio.all_tasks())
        evaluated.clear()
        flows.commit(stream, [topic("t7", 1), topic("t9", 2)])
        await running.at_offset(2)
        await eventually(lambda: len(sinks[9].replica.messages) >= 2, "told")
        assert sorted(evaluated) == ["(rsvps % 2) = 1", "topic = 't7'", "topic = 't9'"]
        assert len(asyncio.all_tasks()) <= tasks + 2, "an idle query has no task that waits"
        content = running.views.view("topics").content
        assert content is not None
        await eventually(lambda: all(s.replica.position == content.position.token() for s in sinks), "positions moved")
        assert [len(s.replica.rows) for s in sinks] == [1] * 300
        assert [row["topic"] for row in odd.replica.rows.values()] == ["t7"]
        await crowd.leave()


WHERES: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    ("topic = 't3'", {}),
    ("topic IN ('t1', 't2') AND rsvps > 10", {"select": ["rsvps"]}),
    ("rsvps BETWEEN 10 AND 30", {}),
    ("rsvps >= 40 OR topic LIKE 't1%'", {"select": "topic"}),
    ("`group` = 'a'", {"order_by": "-rsvps", "limit": 3}),
    ("rsvps > 20", {"order_by": "rsvps", "limit": 2, "select": "rsvps"}),
    ("rsvps % 3 = 0", {"order_by": "-topic", "limit": 4}),
    ("topic = NULL", {}),
    ("60 / rsvps > 2", {}),
]


@pytest.mark.parametrize("seed", range(6))
async def test_every_subscriber_holds_the_answer_to_its_query_whoever_joins_and_leaves(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with flows_and_edge(tmp_path, position_s=0.05) as (flows, running):
        stream = flows.build()
        crowd = Crowd(running)
        sinks: list[tuple[Sink, int]] = []
        offset = 0
        rows: set[str] = set()
        for _ in range(40):
            for _ in range(rng.randint(0, 2)):
                number = rng.randrange(len(WHERES))
                where, asked = WHERES[number]
                sinks.append((crowd.join(where, **asked), number))
            chosen = rng.sample([f"t{i}" for i in range(15)], rng.randint(0, 6))
            gone = [name for name in chosen if name in rows and rng.random() < 0.3]
            new = [topic(name, rng.randrange(60), rng.choice("ab")) for name in chosen if name not in gone]
            rows = (rows - set(gone)) | {row["topic"] for row in new}
            offset = flows.commit(stream, new, [{"topic": name} for name in gone])
            await asyncio.sleep(rng.random() * 0.01)
        await running.at_offset(offset)
        content = running.views.view("topics").content
        assert content is not None
        end = content.position.token()
        await eventually(lambda: all(sink.replica.position == end for sink, _ in sinks), "at the end")
        for sink, number in sinks:
            where, asked = WHERES[number]
            params = {"where": where or "true"} | {
                k: ",".join(v) if isinstance(v, list) else v for k, v in asked.items()
            }
            wanted = await running.rows(**params)
            assert sorted(map(str, sink.replica.rows.values())) == sorted(map(str, wanted)), where
            assert sink.replica.resets == 0
        await crowd.leave()


async def test_who_joins_or_is_told_the_position_while_a_batch_is_looked_up_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking a large batch up takes many steps of the loop; here each change takes one."""
    monkeypatch.setattr(dispatch, "LOOKED_UP", 1)
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic(f"t{i}", i) for i in range(400)])
        await running.at_offset(1)
        crowd = Crowd(running)
        sinks = [crowd.join(f"topic = 't{i}'") for i in (0, 200, 399)]
        await crowd.all_joined()
        flows.commit(stream, [topic(f"t{i}", i + 1) for i in range(400)])
        await running.at_offset(2)
        for i in range(300):
            await running.serving.hub.announce_all()
            if i % 30 == 0:
                sinks.append(crowd.join(f"rsvps >= {i}"))
                sinks.append(crowd.join(f"rsvps >= {i}", order_by="rsvps", limit=3))
            await asyncio.sleep(0)
        await crowd.all_joined()
        flows.commit(stream, [topic("t200", 1000), topic("t399", 0)])
        content = running.views.view("topics").content
        assert content is not None
        await running.at_offset(3)
        end = content.position.token()
        announce = running.serving.hub.announce_all
        await eventually(
            lambda: asyncio.ensure_future(announce()) and all(s.replica.position == end for s in sinks), "end"
        )
        assert [s.replica.resets for s in sinks] == [0] * len(sinks)
        assert running.observer.value("penstock_serve_group_failures_total", view="topics") == 0
        for sink in sinks[3:]:
            limit = 3 if len(sink.replica.rows) == 3 else "null"
            wanted = await running.rows(where=sink.name, order_by="rsvps", limit=limit)
            assert sorted(map(str, sink.replica.rows.values())) == sorted(map(str, wanted))
        assert [next(iter(s.replica.rows.values()))["rsvps"] for s in sinks[:3]] == [1, 1000, 0]
        await crowd.leave()


async def test_a_row_is_encoded_once_for_all_who_select_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.serve.fanout.messages import RowCodec

    made: list[Any] = []
    real = RowCodec.row
    monkeypatch.setattr(RowCodec, "row", lambda codec, row: made.append(row) or real(codec, row))
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        crowd = Crowd(running)
        sinks = [crowd.join(f"rsvps > {i}") for i in range(20)]
        few = [crowd.join(f"rsvps > {i}", select="rsvps") for i in range(20)]
        await crowd.all_joined()
        made.clear()
        flows.commit(stream, [topic("a", 50)])
        await eventually(lambda: all(len(sink.replica.messages) == 2 for sink in sinks + few), "told")
        assert len(made) == 2
        assert list(sinks[3].replica.rows.values()) == [{"topic": "a", "rsvps": 50, "group": "g"}]
        assert list(few[3].replica.rows.values()) == [{"topic": "a", "rsvps": 50}]
        await crowd.leave()


async def test_a_message_made_of_shared_rows_is_the_one_that_the_contract_says(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 1)])
        await running.at_offset(1)
        crowd = Crowd(running)
        sink = crowd.join("rsvps > 0")
        await crowd.all_joined()
        flows.commit(stream, [topic("a", 2), topic("c\n", 3)], [{"topic": "b"}], accepted_us=1_700_000_000_000_000)
        await eventually(lambda: len(sink.replica.messages) == 2, "told")
        content = running.views.view("topics").content
        assert content is not None
        assert sink.replica.messages[1] == {
            "type": "changes",
            "view": "topics",
            "position": content.position.token(),
            "upserts": [topic("a", 2), topic("c\n", 3)],
            "deletes": [{"topic": "b"}],
            "accepted": "2023-11-14T22:13:20.000Z",
        }
        assert list(sink.replica.messages[1]) == ["type", "view", "position", "upserts", "deletes", "accepted"]
        await crowd.leave()


async def test_a_query_that_fails_ends_alone_and_its_subscriber_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = query_group.QueryGroup._evaluate
    broken = [True]

    def failing(group: query_group.QueryGroup, due: Any) -> Any:
        if broken[0] and group.query.where is not None:
            raise RuntimeError("broken")
        return real(group, due)

    monkeypatch.setattr(query_group, "FAILED_S", 0.01)
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        crowd = Crowd(running)
        bad, good = crowd.join("topic = 'a'"), crowd.join(None)
        await crowd.all_joined()
        monkeypatch.setattr(query_group.QueryGroup, "_evaluate", failing)
        flows.commit(stream, [topic("a", 2)])
        await eventually(lambda: bad.replica.resets == 1 and len(good.replica.messages) == 2, "reset")
        broken[0] = False
        await crowd.all_joined()
        flows.commit(stream, [topic("a", 3)])
        for sink in (bad, good):
            await eventually(lambda sink=sink: [r["rsvps"] for r in sink.replica.rows.values()] == [3], "goes on")
        assert good.replica.resets == 0
        await crowd.leave()


async def test_a_query_without_subscribers_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_group, "LINGER_S", 2.0)
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        crowd = Crowd(running)
        for i in range(20):
            crowd.join(f"rsvps = {i}")
        await crowd.all_joined()
        await crowd.leave()
        queries = lambda: running.observer.value("penstock_serve_queries", view="topics")  # noqa: E731
        assert queries() == 20
        await eventually(lambda: not queries(), "forgotten")


async def test_queries_that_differ_and_are_told_the_same_share_one_message(tmp_path: Path) -> None:
    taken: list[Message] = []

    class Keeping(Sink):
        def offer(self, message: Message) -> bool:
            taken.append(message)
            return super().offer(message)

    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 1)])
        await running.at_offset(1)
        crowd = Crowd(running)
        view = running.views.view("topics")
        asked = [Question(f"topic = 'a' AND rsvps > {-i}") for i in range(5)] + [
            Question("topic = 'a'", select="rsvps")
        ]
        for each in asked:
            crowd.tasks.append(asyncio.create_task(running.serving.hub.subscribe(view, each, None, Keeping())))
        await crowd.all_joined()
        taken.clear()
        flows.commit(stream, [topic("a", 2)])
        await eventually(lambda: len(taken) == 6, "told")
        assert len(set(map(id, taken))) == 2, "one for each selection of columns"
        await crowd.leave()


async def test_batches_that_queue_up_reach_a_connection_in_one_piece_and_in_order(tmp_path: Path) -> None:
    class Joining(Sink):
        joins = True

        def __init__(self) -> None:
            super().__init__()
            self.frames: list[bytes] = []
            self.pieces: list[Message] = []

        def offer(self, message: Message) -> bool:
            self.frames.append(message.frame((None, False)))
            self.pieces.append(message)
            return True

    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 0)])
        await running.at_offset(1)
        crowd, joining, alike, other = Crowd(running), Joining(), Joining(), Joining()
        view = running.views.view("topics")
        wheres = {joining: "topic = 'a'", alike: "topic = 'a' AND rsvps >= 0", other: "topic = 'a' AND rsvps <> 2"}
        for sink, where in wheres.items():
            crowd.tasks.append(asyncio.create_task(running.serving.hub.subscribe(view, Question(where), None, sink)))
        single = crowd.join("topic = 'a'")
        await crowd.all_joined()
        for sink in wheres:
            sink.frames.clear()
            sink.pieces.clear()
        content = view.content
        assert content is not None
        for n in (1, 2, 3):  # three batches in one step of the loop
            row = tuple(
                n if name == "rsvps" else value for name, value in zip(content.names, ("a", n, "g"), strict=True)
            )
            view.apply(content.prepare(content.offset + 1, {("a",): row}, None, 0), None, {})
        view.wake()
        await eventually(lambda: len(single.replica.messages) == 4, "told")
        told = [json.dumps(message, separators=(",", ":")).encode() for message in single.replica.messages[1:]]
        assert joining.frames == [b"".join(text_frame(each) for each in told)]
        assert alike.pieces[0] is joining.pieces[0], "two queries that are told the same share the piece"
        gone = {"type": "changes", "upserts": [], "deletes": [{"topic": "a"}]}
        parts = told[0], json.dumps(json.loads(told[1]) | gone, separators=(",", ":")).encode(), told[2]
        assert other.frames == [b"".join(map(text_frame, parts))]
        assert not running.serving.hub._dispatches["topics"]._runs, "nothing is kept behind the round"
        await crowd.leave()


async def test_telling_positions_to_many_gives_the_loop_back(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 0)])
        await running.at_offset(1)
        crowd = Crowd(running)
        sinks = [crowd.join("topic = 'b'") for _ in range(2 * query_group.FAN_OUT)]
        sinks += [crowd.join(f"topic = 'b{i}'") for i in range(2 * query_group.FAN_OUT)]
        await crowd.all_joined()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(2)
        content = running.views.view("topics").content
        assert content is not None
        end = content.position.token()
        await eventually(lambda: all(g.cursor == 2 for g in running.serving.hub._groups.values()), "level")
        announcing, steps = asyncio.create_task(running.serving.hub.announce_all()), 0
        while not announcing.done():
            await asyncio.sleep(0)
            steps += 1
        assert all(sink.replica.position == end for sink in sinks)
        assert steps >= 4
        await crowd.leave()
