"""Seeded faults of every kind, round after round: every receiver that follows the rules holds what the server holds.

Views, hub, streams, log and webhooks are the real ones; the network is played, so that an answer can be lost on its way
back, and the process can die between any two steps: what it had not written to the log by then is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from edge import eventually
from fake_flows import FakeFlows, topic
from hooked import Hooked, PlayedClock, flowing, hooked

from penstock.config import Limits
from penstock.log.control import ControlMap
from penstock.observe.metrics import Observer
from penstock.position import Position
from penstock.rights.credential import ANONYMOUS
from penstock.serve.webhooks.poster import PostOutcome
from penstock.serve.webhooks.webhook import ChangedWebhook, NewWebhook
from penstock.serve.webhooks.webhook_registry import WebhookOptions, Webhooks

ROUNDS = 120
TOPICS = "abcdefgh"
HOOKS: list[dict[str, Any]] = [
    {"view": "topics", "shape": "change"},
    {"view": "topics", "shape": "change", "where": "rsvps > 5", "select": "rsvps"},
    {"view": "topics", "shape": "batch"},
    {"view": "topics", "shape": "batch", "where": "topic < 'd' and rsvps > 3", "since": "start"},
    {"view": "topics", "shape": "digest", "digest_s": 60, "where": "rsvps > 4"},
    {"stream": "rsvps", "shape": "change", "where": "n > 0"},
    {"stream": "rsvps", "shape": "batch"},
    {"stream": "rsvps", "shape": "digest", "digest_s": 45},
]


class Receiver:
    """Does what the documentation says: applies each id once, and reads the view after a reset."""

    def __init__(self, world: World, fields: dict[str, Any]) -> None:
        self._world, self.fields = world, fields
        self.known: dict[str, bytes] = {}
        self.rows: dict[str, Any] = {}
        self.events: list[str] = []
        self.repeated = 0
        self._last: tuple[str, int] | None = None

    def take(self, id: str, payload: bytes) -> None:
        if id in self.known:
            assert self.known[id] == payload, "the same id came with another content"
            self.repeated += 1
            return
        self.known[id] = payload
        body = json.loads(payload)
        assert body["type"] != "error"
        if "stream" in self.fields:
            self._events(body)
        else:
            self._in_order(body)
            self._rows(body)

    def _in_order(self, body: dict[str, Any]) -> None:
        position = Position.parse(body["position"])
        if self._last is not None and self._last[0] == position.epoch:
            assert position.offsets[0] >= self._last[1], "a delivery came out of order"
        self._last = (position.epoch, position.offsets[0])

    def _rows(self, body: dict[str, Any]) -> None:
        if body["type"] == "reset":
            self.rows = self._world.truth(self.fields)
        elif body["type"] == "snapshot":
            self.rows = {row["topic"]: row for row in body["rows"]}
        elif body["type"] == "upsert":
            self.rows[body["row"]["topic"]] = body["row"]
        elif body["type"] == "delete":
            self.rows.pop(body["key"]["topic"], None)
        else:
            for key in body["deletes"]:
                self.rows.pop(key["topic"], None)
            self.rows |= {row["topic"]: row for row in body["upserts"]}

    def _events(self, body: dict[str, Any]) -> None:
        self.events += [event["_id"] for event in body.get("events") or [body["event"]]]


class World:
    """The edge's real parts, a played network, and webhooks that die and come back."""

    def __init__(self, edge: Hooked, clock: PlayedClock, seed: int) -> None:
        self.edge, self.clock, self.random = edge, clock, Random(seed)
        self.durable = ControlMap()
        self.receivers: dict[str, Receiver] = {}
        self.trouble: dict[str, float] = {}
        """By webhook, how often an attempt fails."""
        self.lives = 0
        self.posted: list[tuple[str, int]] = []
        self.hooks = self._born()

    def _born(self) -> Webhooks:
        self.lives += 1
        life, edge = self.lives, self.edge
        memory = ControlMap(dict(self.durable))

        async def remember(values: Mapping[str, Any]) -> None:
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            if life != self.lives:
                await asyncio.Event().wait()  # the process is dead: nobody hears of it, and nothing was written
            self.durable.apply(values)
            memory.apply(values)

        hooks = Webhooks(
            memory,
            remember,
            views=edge.views,
            hub=edge.serving.hub,
            reads=edge.serving._streams,
            log=edge.reader,
            rights=edge.rights,
            clock=self.clock,
            limits=edge.serving.limits,
            observer=Observer(),
            catalogue=edge.serving._catalogue,
            options=WebhookOptions(edge.options.rules, sleep=self.clock.sleep, random=Random(self.random.random())),
        )
        object.__setattr__(hooks._works, "poster", self)
        return hooks

    async def post(self, url: str, headers: dict[str, str], payload: bytes) -> PostOutcome:
        """The network: what arrives may be lost on its way back, and what fails may have arrived."""
        name = url.rpartition("/")[2]
        for _ in range(self.random.randrange(5)):
            await asyncio.sleep(0)
        fails = self.random.random() < self.trouble.get(name, 0.0)
        if not fails or self.random.random() < 0.5:
            self.receivers[name].take(headers["webhook-id"], payload)
        for _ in range(self.random.randrange(5)):
            await asyncio.sleep(0)
        return PostOutcome(1.0, failure="timeout", detail="lost") if fails else PostOutcome(1.0, 200)

    async def crash(self) -> None:
        """Nothing of what was not written survives."""
        self.lives += 1
        dead = self.hooks
        for task in [dead._starting, dead._lazy, dead._keeper._task, *(e._task for e in dead._endpoints.values())]:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for ended in dead._ended.values():
            ended.cancel()
        await dead._news.close()
        await dead._poster.close()
        self.lives -= 1
        self.hooks = self._born()
        await self.hooks.start()

    def truth(self, fields: dict[str, Any]) -> dict[str, Any]:
        content = self.edge.views.view("topics").content
        assert content is not None
        wish = {"limit": None} | {n: fields[n] for n in ("where", "select") if n in fields}
        asked = self.edge.serving._catalogue.question(wish, ANONYMOUS, "topics")
        query = asked.query(self.edge.views.view("topics"), content)
        names = [column.name for column in query.output]
        rows = [dict(zip(names, query.project(row), strict=True)) for row in content.rows.values() if query.passes(row)]
        return {row["topic"]: row for row in rows}

    def expected(self, fields: dict[str, Any]) -> list[str]:
        return [id for id, n in self.posted if "where" not in fields or n > 0]

    # What happens

    async def quiet(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    def event(self, number: int) -> None:
        topics = [self.random.choice(TOPICS) for _ in range(self.random.randrange(1, 4))]
        ids = [f"e{number}-{i}" for i in range(len(topics))]
        self.edge.post_ids(ids, topics)
        self.posted += [(id, i) for i, id in enumerate(ids)]

    def batch(self, flows: FakeFlows, build: Any) -> None:
        keys = self.random.sample(TOPICS, self.random.randrange(1, 5))
        gone = [key for key in keys if self.random.random() < 0.3]
        kept = [topic(key, self.random.randrange(10)) for key in keys if key not in gone]
        flows.commit(build, kept, [{"topic": key} for key in gone])

    def settled(self) -> bool:
        for id, receiver in self.receivers.items():
            if "stream" in receiver.fields:
                if len(receiver.events) < len(self.expected(receiver.fields)):
                    return False
            elif receiver.rows != self.truth(receiver.fields) or self.hooks._endpoints[self.ids[id]].trouble:
                return False
        return True

    ids: dict[str, str]


async def play(path: Path, seed: int) -> dict[str, int]:
    clock = PlayedClock()
    limits = Limits(history_us=0, history_bytes=4_000, history_bytes_most=4_000)
    async with flowing(path) as flows, hooked(path, clock=clock, limits=limits) as edge:
        build = flows.build()
        flows.commit(build, [topic("a", 1)])
        await edge.at_rows(1)
        world = World(edge, clock, seed)
        await world.hooks.start()
        world.ids = {}
        for number, fields in enumerate(HOOKS):
            wish = NewWebhook(url=f"http://127.0.0.1:9/{number}", **fields)
            receiver = world.receivers[str(number)] = Receiver(world, fields)
            receiver.rows = {} if "stream" in fields or fields.get("since") else world.truth(fields)
            endpoint, _ = await world.hooks.create(wish, ANONYMOUS)
            world.ids[str(number)] = endpoint.webhook.id
            world.trouble[str(number)] = world.random.choice([0.0, 0.3, 0.6])
        happened = {"crashes": 0, "rebuilds": 0, "switches": 0}
        for number in range(ROUNDS):
            dice = world.random.random()
            if dice < 0.45:
                world.batch(flows, build)
            elif dice < 0.65:
                world.event(number)
            elif dice < 0.7:
                world.trouble[str(world.random.randrange(len(HOOKS)))] = world.random.choice([0.0, 0.3, 0.9, 1.0])
            elif dice < 0.78:
                await world.crash()
                happened["crashes"] += 1
            elif dice < 0.8:
                build = flows.build()
                flows.commit(build, [topic(key, world.random.randrange(10)) for key in TOPICS])
                happened["rebuilds"] += 1
            elif dice < 0.84:
                id = world.ids[str(world.random.randrange(len(HOOKS)))]
                on = world.random.random() < 0.6
                await world.hooks.change(id, ANONYMOUS, ChangedWebhook(enabled=on))
                happened["switches"] += 1
            else:
                await clock.advance(world.random.choice([1, 10, 10, 40, 1_000]), world.quiet)
            for _ in range(world.random.randrange(20)):
                await asyncio.sleep(0.0005)
        world.trouble.clear()
        for id in world.ids.values():
            await world.hooks.change(id, ANONYMOUS, ChangedWebhook(enabled=True))
        held = edge.views.view("topics")
        ends = flows.log.bounds(build).next_commit
        await held.until(lambda: held.content.epoch == build.epoch and held.content.offset >= ends, 60)
        async with asyncio.timeout(60):
            while not world.settled():
                await clock.advance(15_000, world.quiet)
                await asyncio.sleep(0.02)
        await eventually(world.settled, "the receivers do not hold what the server holds")
        for receiver in world.receivers.values():
            if "stream" in receiver.fields:
                assert receiver.events == world.expected(receiver.fields), "events were lost, doubled or disordered"
            else:
                assert receiver.rows == world.truth(receiver.fields)
        await world.hooks.stop()
        return happened | {"repeated": sum(r.repeated for r in world.receivers.values())}


@pytest.mark.parametrize("seed", range(int(os.environ.get("PENSTOCK_SEEDS", "3"))))
async def test_receivers_hold_what_the_server_holds_whatever_happens(tmp_path: Path, seed: int) -> None:
    async with asyncio.timeout(60):
        happened = await play(tmp_path, seed)
    assert happened["crashes"]
