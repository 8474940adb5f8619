"""Large batches and large snapshots: nothing is held for a slow endpoint, and it holds up nobody."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest
from edge import eventually
from fake_flows import topic
from hooked import PlayedClock, flowing, hang, hooked, taking

from penstock.change import Column
from penstock.config import Limits
from penstock.errors import SpoolFullError
from penstock.serve.fanout.messages import Message, RowCodec
from penstock.serve.webhooks import view_source
from penstock.serve.webhooks.delivery import changes_apart
from penstock.serve.webhooks.snapshot_spool import GRACE_S, LetGo, SnapshotSpool
from penstock.serve.webhooks.view_feed import Fell
from penstock.serve.webhooks.view_source import LARGE_BYTES, LargeBatch
from penstock.views.read_query import parse_query


async def longest_pause(until: asyncio.Event) -> float:
    """How long the loop computed between two turns, at its worst: its own time, which another process cannot take."""
    worst, last = 0.0, time.thread_time()
    while not until.is_set():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        worst, last = max(worst, now - last), now
    return worst


# Batches


async def test_a_large_batch_is_delivered_change_by_change_and_goes_on_where_it_failed(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        flows.commit(build, [topic(f"old{n:04}", 1) for n in range(300)])
        await edge.at_rows(300)
        await edge.hook(taker, where="rsvps > 0")
        taker.answers.extend([200] * 310 + [500])
        rows = [topic(f"t{n:04}", n % 7, "g" * 30) for n in range(700)]
        flows.commit(build, rows, [{"topic": f"old{n:04}"} for n in range(300)])
        await eventually(lambda: len(taker.tried) == 311, "the batch did not come")
        await clock.advance(10, edge.quiet)
        passing = [row for row in rows if row["rsvps"] > 0]
        await taker.has(300 + len(passing))
        assert [b["key"]["topic"] for b in taker.bodies[:300]] == [f"old{n:04}" for n in range(300)]
        assert [b["row"] for b in taker.bodies[300:]] == passing
        assert len({id for id, _ in taker.taken}) == len(taker.taken)
        assert len({b["position"] for b in taker.bodies}) == 1
        assert taker.tried[310] == taker.tried[311], "what failed was not repeated first, with its id"


async def test_a_large_batch_gives_the_deliveries_of_a_small_one(tmp_path: Path, monkeypatch: Any) -> None:
    """Both ways of taking one apart agree to the byte, so that a place in one is a place in the other."""
    seen: list[tuple[Any, ...]] = []
    real = LargeBatch.taken_apart

    async def compared(webhook: Any, view: Any, content: Any, query: Any, end: int) -> LargeBatch:
        made = await real(webhook, view, content, query, end)
        seen.append((webhook, made))
        return made

    monkeypatch.setattr(LargeBatch, "taken_apart", staticmethod(compared))
    monkeypatch.setattr(view_source, "LARGE_BYTES", 0)
    messages: list[Message] = []
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        offered = view_source.ViewFeed.offer
        monkeypatch.setattr(
            view_source.ViewFeed, "offer", lambda feed, message: (messages.append(message), offered(feed, message))[1]
        )
        build = flows.build()
        flows.commit(build, [topic("gone", 1), topic("both", 1), topic("same", 2)])
        await edge.at_rows(3)
        await edge.hook(taker, where="rsvps < 9", select="rsvps")
        out = [topic("both", 10), topic("same", 2), topic("ü", 1), topic('"', 2), topic("a", 3), topic("Z", 4)]
        flows.commit(build, out, [{"topic": "gone"}])
        await taker.has(6)
        webhook, large = seen[0]
        (message,) = [m for m in messages if m.kind == "changes"]
        assert [large[n] for n in range(len(large))] == changes_apart(webhook, message.payload, ("topic",))
        assert [d.payload for d in changes_apart(webhook, message.payload, ("topic",))] == taker.raw


async def test_a_large_batch_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    """40,000 changes: taken apart on the loop they would stop it for a quarter of a second."""
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, timeout_s=60) as edge:
        build = flows.build()
        await edge.hook(taker)
        taker.always = hang
        rows = [topic(f"topic {n}", n, "x" * 40) for n in range(40_000)]
        view = edge.views.view("topics")
        await view.loaded()
        content = view.content
        await asyncio.to_thread(flows.commit, build, rows)
        await edge.at_rows(40_000)
        await eventually(lambda: len(taker.tried) == 1, "nothing was tried")
        (endpoint,) = edge.webhooks._endpoints.values()
        query = edge.webhooks._question(endpoint.webhook).query(view, content)
        done = asyncio.Event()
        watch = asyncio.create_task(longest_pause(done))
        await asyncio.sleep(0.02)
        apart = await LargeBatch.taken_apart(endpoint.webhook, view, content, query, content.offset)
        done.set()
        assert len(apart) == 40_000
        assert await watch < 0.1, "the loop stood still"


async def test_nothing_of_a_large_batch_is_held_while_its_endpoint_is_slow(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, timeout_s=60) as edge:
        build = flows.build()
        await edge.hook(taker)
        taker.always = hang
        flows.commit(build, [topic(f"topic {n}", n, "x" * 40) for n in range(2_000)])
        await eventually(lambda: len(taker.tried) == 1, "nothing was tried")
        gc.collect()
        (endpoint,) = edge.webhooks._endpoints.values()
        assert _messages(), "nobody has the message: the test looks at nothing"
        assert [o for o in gc.get_referrers(*_messages()) if _is_delivering(o)] == [], "it is held by who delivers it"
        assert endpoint.state == "delivering"


def _messages() -> list[Any]:
    return [o for o in gc.get_objects() if isinstance(o, Message) and len(o.payload) > LARGE_BYTES]


def _is_delivering(found: Any) -> bool:
    code = getattr(found, "ag_code", None) or getattr(found, "cr_code", None)
    return code is not None and "webhooks" in code.co_filename


async def test_a_batch_that_history_has_forgotten_is_not_made_up(tmp_path: Path) -> None:
    limits = Limits(history_us=0, history_bytes=1, history_bytes_most=200_000)
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, limits=limits, timeout_s=60) as edge:
        build = flows.build()
        await edge.hook(taker)
        view = edge.views.view("topics")
        flows.commit(build, [topic("a", 1)])
        await edge.at_rows(1)
        content = view.content
        (endpoint,) = edge.webhooks._endpoints.values()
        query = edge.webhooks._question(endpoint.webhook).query(view, content)
        apart = await LargeBatch.taken_apart(endpoint.webhook, view, content, query, 1)
        assert apart[0].type == "upsert"
        flows.commit(build, [topic(f"t{n}", n, "x" * 200) for n in range(2_000)])
        await edge.at_rows(2_001)
        with pytest.raises(Fell):
            apart[0]


async def test_a_batch_of_any_size_is_one_digest(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        flows.commit(build, [topic("gone", 1)])
        await edge.at_rows(1)
        await edge.hook(taker, shape="digest", digest_s=10)
        rows = [topic(f"t{n:04}", n) for n in range(7_000)]
        flows.commit(build, rows, [{"topic": "gone"}])
        await edge.at_rows(7_000)
        await clock.advance(10, edge.quiet)
        await taker.has(1)
        (body,) = taker.bodies
        assert sorted(body["upserts"], key=lambda row: row["topic"]) == rows
        assert body["deletes"] == [{"topic": "gone"}]
        assert list(body) == ["type", "view", "since", "position", "upserts", "deletes"]


# Snapshots


async def test_slow_large_snapshots_do_not_hold_up_another(tmp_path: Path) -> None:
    limits = Limits(snapshot_part_rows=100)
    running = hooked(tmp_path, limits=limits, timeout_s=60)
    async with flowing(tmp_path) as flows, taking() as stuck, taking() as well, running as edge:
        build = flows.build()
        flows.commit(build, [topic(f"t{n:03}", n) for n in range(250)])
        await edge.at_rows(250)
        stuck.always = hang
        for number in range(12):
            await edge.hook(stuck.url(f"/{number}"), shape="batch" if number % 2 else "change", since="start")
        await eventually(lambda: len(stuck.tried) == 12, f"{len(stuck.tried)} of 12 have begun")
        await edge.hook(well, shape="batch", since="start")
        await well.has(3)
        assert sorted(row["topic"] for body in well.bodies for row in body["rows"]) == [f"t{n:03}" for n in range(250)]


async def test_a_part_that_has_other_rows_has_another_id(tmp_path: Path) -> None:
    """A large answer comes in no particular order: another start of the server may cut it elsewhere."""
    limits = Limits(snapshot_part_rows=100)
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path, limits=limits) as edge:
            build = flows.build()
            flows.commit(build, [topic(f"t{n:04}", 1) for n in range(2_100)])
            await edge.at_rows(2_100)
            made = await edge.hook(taker, shape="batch", since="start")
            await taker.has(21)
        async with hooked(tmp_path, limits=limits) as edge:
            await edge.at_rows(2_100)
            content = edge.views.view("topics").content
            content.rows = dict(reversed(content.rows.items()))  # as another order of loading would have it
            content._captured = None
            await edge.ask("POST", f"/webhooks/{made['id']}/replay", {"since": "start"})
            await taker.has(42)
        contents: dict[str, Any] = {}
        for id, body in taker.taken:
            assert contents.setdefault(id, body) == body, "the same id came with another content"


async def test_what_is_asked_for_is_part_of_the_id(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        flows.commit(build, [topic("a", 1)])
        await edge.at_rows(1)
        made = await edge.hook(taker, since="start")
        await taker.has(1)
        await edge.ask("PATCH", f"/webhooks/{made['id']}", {"select": "rsvps"})
        await edge.ask("POST", f"/webhooks/{made['id']}/replay", {"since": "start"})
        await taker.has(2)
        assert taker.bodies[0] != taker.bodies[1]
        assert taker.taken[0][0] != taker.taken[1][0]


class TickingClock:
    def __init__(self) -> None:
        self.s = 0.0

    def monotonic(self) -> float:
        return self.s

    def now_us(self) -> int:
        return round(self.s * 1e6)


CODEC = RowCodec(parse_query((Column("topic", "string"), Column("n", "bigint")), ("topic",)))
ROWS = [(f"t{n}", n) for n in range(1_000)]


async def test_the_slow_make_room_and_the_others_do_not(tmp_path: Path) -> None:
    clock = TickingClock()
    spool = SnapshotSpool(tmp_path, clock, most_bytes=70_000)
    slow = await spool.put(CODEC, ROWS, 100)
    assert slow.parts == 10
    fast = await spool.put(CODEC, ROWS, 100)
    with pytest.raises(SpoolFullError):
        await spool.put(CODEC, ROWS, 100)
    await eventually(lambda: len(spool._held) == 2, "what did not fit was kept")
    clock.s = GRACE_S + 1
    fast.taken = 10**6
    third = await spool.put(CODEC, ROWS, 100)
    with pytest.raises(LetGo):
        await slow.part(0)
    assert (await fast.part(9)).startswith(b'[{"topic":"t900","n":')
    assert await third.part(3) == await fast.part(3)
    for one in (slow, fast, third):
        spool.close(one)
    assert os.listdir(tmp_path) == []


async def test_a_snapshot_alone_may_be_larger_than_the_spool(tmp_path: Path) -> None:
    spool = SnapshotSpool(tmp_path, TickingClock(), most_bytes=10)
    held = await spool.put(CODEC, ROWS, 100)
    assert held.parts == 10
    spool.close(held)
