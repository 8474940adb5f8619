"""Followers at the end of a stream share one reader, and each gets exactly what its filter passes, in order."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edge import DEADLINE_S, Door, Edge, edge, eventually

from penstock.position import Position
from penstock.serve.fanout.messages import Message
from penstock.serve.fanout.tail import StreamTail
from penstock.serve.question import Question
from penstock.serve.stream_reads import END, StreamReads
from tests.memory_folder import memory_folder


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.log.close()


class Sink:
    """A follower in this process; while it is `full` it takes nothing, and `last` takes one more."""

    transport = "test"
    deflates = False
    joins = True
    unsent_bytes = 0
    pace_s: float | None = None

    def __init__(self, where: str | None = None) -> None:
        self.where = where
        self.messages: list[dict[str, Any]] = []
        self.full = self.last = False
        self.policy = ""
        self.on_pace: Any = lambda: None
        self.turn = asyncio.Lock()
        self.room = asyncio.Event()

    @property
    def is_level(self) -> bool:
        return not self.full

    @property
    def topics(self) -> list[str]:
        return [event["topic"] for message in self.messages for event in message.get("events", ())]

    @property
    def positions(self) -> list[Position]:
        return [Position.parse(message["position"]) for message in self.messages]

    def offer(self, message: Message) -> bool | None:
        if self.full and not self.last:
            return None
        self.messages.append(json.loads(message.payload))
        taken, self.last = not self.full, False
        return taken

    async def send(self, message: Message) -> None:
        await self.drained()
        self.messages.append(json.loads(message.payload))

    async def drained(self) -> None:
        while self.full:
            self.room.clear()
            await self.room.wait()

    def stall(self, made: Any) -> None: ...

    def cut(self, policy: str, last: Message) -> None: ...

    def read(self) -> None:
        self.full = False
        self.room.set()


class Crowd:
    def __init__(self, running: Edge) -> None:
        self.streams: StreamReads = running.serving._streams
        self.tasks: list[asyncio.Task[None]] = []

    def follow(self, where: str | None = None, since: Any = END, **asked: Any) -> Sink:
        sink = Sink(where)
        following = self.streams.follow("rsvps", since, Question(where, **asked), sink)
        self.tasks.append(asyncio.create_task(following))
        return sink

    @property
    def level(self) -> int:
        return sum(map(len, self.streams._tails.values()))

    async def all_level(self) -> None:
        await eventually(lambda: self.level == len(self.tasks), "all are at the end")

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_many_followers_cost_one_reader_and_one_decoding(
    tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, shared, evaluated = [], [], []
    page, decoded, due = StreamReads._page, StreamReads._decoded, StreamTail._passing
    monkeypatch.setattr(StreamReads, "_page", lambda *a: own.append(a) or page(*a))
    monkeypatch.setattr(StreamReads, "_decoded", lambda *a: shared.append(a) or decoded(*a))
    monkeypatch.setattr(StreamTail, "_passing", lambda *a: evaluated.append(a) or due(*a))
    door.post("before")
    async with edge(memory_folder(tmp_path)) as running:
        crowd = Crowd(running)
        sinks = [crowd.follow("topic = :t", params={"t": f"t{i}"}) for i in range(100)]
        sinks += [crowd.follow("topic = 't7'", select="topic") for _ in range(10)]
        await crowd.all_level()
        own.clear()
        shared.clear()
        for i in range(5):
            door.post(f"t{i}", "t7", "nobody")
        await eventually(lambda: sinks[-1].topics == ["t7"] * 5, "told")
        assert [sink.topics for sink in sinks[:5]] == [[f"t{i}"] for i in range(5)]
        assert sinks[50].messages == []
        assert own == [], "nobody read by itself"
        assert len(shared) <= 5 * 2, "each page was read once, and the end was seen"
        assert len(evaluated) <= 5 * 3, "only filters that an event is filed under were tried"
        await crowd.leave()
        assert crowd.level == 0
        await eventually(lambda: all(tail.ended for tail in crowd.streams._tails.values()), "the reader has ended")
        assert not crowd.streams._waiting


@pytest.mark.parametrize("seed", range(4))
async def test_whoever_comes_leaves_or_is_slow_gets_every_event_once_and_in_order(
    tmp_path: Path, door: Door, seed: int
) -> None:
    rng = random.Random(seed)
    wheres = {None: lambda n: True, "topic LIKE '%3'": lambda n: n % 10 == 3, "topic = 't5'": lambda n: n == 5}
    door.post("t0")
    async with edge(memory_folder(tmp_path)) as running:
        crowd, sinks, posted = Crowd(running), [], 1
        for _ in range(40):
            for _ in range(rng.randint(0, 2)):
                where = rng.choice(list(wheres))
                sinks.append(crowd.follow(where, since="start"))
            for sink in sinks:
                if rng.random() < 0.2:
                    sink.full, sink.last = True, rng.random() < 0.5
                elif sink.full and rng.random() < 0.5:
                    sink.read()
            count = rng.randint(0, 30)
            if count:
                door.post(*(f"t{n}" for n in range(posted, posted + count)))
                posted += count
            await asyncio.sleep(rng.choice([0, 0.002, 0.01]))
        for sink in sinks:
            sink.read()
        for sink in sinks:
            wanted = [f"t{n}" for n in range(posted) if wheres[sink.where](n)]
            await eventually(lambda sink=sink, wanted=wanted: len(sink.topics) >= len(wanted), f"all of {sink.where}")
            assert sink.topics == wanted
            assert all(b.covers(a) and a != b for a, b in zip(sink.positions, sink.positions[1:], strict=False))
        await crowd.all_level()
        await crowd.leave()


async def test_a_filter_that_is_changed_at_the_end_of_a_stream_misses_and_repeats_nothing(
    tmp_path: Path, door: Door
) -> None:
    door.post("t0")
    async with edge(memory_folder(tmp_path)) as running, running.http.ws_connect("/streams/rsvps/socket") as ws:
        await ws.send_json({"type": "subscribe", "id": "s", "since": "end", "where": "topic = 'x'"})
        crowd = Crowd(running)
        for number in range(1, 21):
            await eventually(lambda: crowd.level == 1, "at the end")
            door.post(f"t{number}")
            await ws.send_json({"type": "subscribe", "id": "s", "where": f"topic = 't{number}' OR topic = 'x'"})
        seen = []
        while "t20" not in seen:
            message = await ws.receive_json(timeout=DEADLINE_S)
            seen += [event["topic"] for event in message.get("events", ())]
        assert len(seen) == len(set(seen))


async def test_a_stream_that_is_made_anew_ends_the_tail_and_resets_its_followers(tmp_path: Path, door: Door) -> None:
    door.post("a")
    async with edge(memory_folder(tmp_path)) as running:
        crowd = Crowd(running)
        sink = crowd.follow()
        await crowd.all_level()
        (tail,) = crowd.streams._tails.values()
        tail.position = Position("stream", "rsvps", "another", (1,))
        door.post("b")
        await eventually(lambda: any(m["type"] == "reset" for m in sink.messages), "reset")
        await eventually(lambda: sink.topics == ["a", "b"], "from the beginning")
        assert tail.ended
        await crowd.all_level()
        await crowd.leave()
