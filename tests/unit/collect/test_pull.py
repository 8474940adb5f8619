from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from feed_server import Feed, serving, until
from manual_clock import ManualClock
from running_edge import Edge, running

from penstock import App, Event
from penstock.collect.pulling import pull as pull_module
from penstock.collect.pulling.pull_source import SourceEvents


class Tick(Event):
    n: int
    mtime: int


def ticks(count: int) -> Feed:
    """Mtimes are behind by up to three, and several events share one."""
    mtimes = [n // 3 for n in range(count)]
    return Feed([b'{"n": %d, "mtime": %d}' % (n, mtimes[n]) for n in range(count)], mtimes)


def market(url: str, resume: str | None = "since=mtime", map: Any = None, **options: Any) -> App:
    app = App("market")
    app.pull(app.stream("ticks", Tick, time="mtime", id="n", **options), url, resume=resume, map=map)
    return app


async def soon(_: float) -> None:
    await asyncio.sleep(0.001)


def numbers(edge: Edge) -> list[int]:
    return [event["n"] for event in edge.events("ticks")]


def held(edge: Edge) -> int:
    stream = edge.log.find("ticks")
    assert stream is not None
    return edge.log.bounds(stream).rows


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_feed_that_breaks_off_again_and_again_loses_nothing_and_repeats_nothing(
    tmp_path: Path, seed: int
) -> None:
    feed = ticks(1500)
    feed.random = Random(seed)
    async with serving(feed), running(market(feed.url), tmp_path, sleep=soon) as edge:
        await until(lambda: held(edge) >= 1500)
        assert numbers(edge) == list(range(1500))
        assert len(feed.asked) > 10
        assert edge.metric("received", "ticks") == edge.metric("accepted", "ticks") + edge.metric("duplicate", "ticks")


@pytest.mark.parametrize("seed", [4, 5])
async def test_a_restarted_edge_goes_on_where_its_log_ends(tmp_path: Path, seed: int) -> None:
    feed = ticks(2000)
    feed.random = Random(seed)
    path = tmp_path
    async with serving(feed):
        for goal in (300, 900, 2000):
            async with running(market(feed.url), path, sleep=soon) as edge:
                first = len(feed.asked)
                before = held(edge)
                await until(lambda edge=edge, goal=goal: held(edge) >= goal)
                assert feed.asked[first] == (str(max(0, before - 1) // 3) if before else None)
        async with running(market(feed.url), path, sleep=soon) as edge:
            assert numbers(edge) == list(range(2000))


async def test_the_position_is_never_ahead_of_the_log(tmp_path: Path) -> None:
    feed = ticks(400)
    async with serving(feed), running(market(feed.url), tmp_path, sleep=soon) as edge:
        key = f"pull/ticks/{feed.url}"

        def behind() -> bool:
            stored = edge.log.memory().get(key)
            assert stored is None or stored["since"] <= max(0, held(edge) - 1) // 3
            return held(edge) == 400

        for _ in range(5):
            with edge.full():
                await until(lambda: behind() or edge.group.problem is not None)
        await until(behind)
        await until(lambda: (edge.log.memory().get(key) or {}).get("since") == 133)
        assert numbers(edge) == list(range(400))


async def test_a_source_is_not_read_while_the_log_stands_still(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pull_module, "BUFFER_EVENTS", 20)
    monkeypatch.setattr(pull_module, "TOGETHER_EVENTS", 10)
    feed = Feed([b'{"n": %d, "mtime": 0, "x": "%s"}' % (n, b"x" * 20_000) for n in range(2000)], [0] * 2000)
    stop = threading.Event()
    async with serving(feed), running(market(feed.url), tmp_path, sleep=soon) as edge:
        edge.group.run(stop.wait)
        before = -1
        while feed.sent != before:
            before = feed.sent
            await asyncio.sleep(0.5)
        sent = feed.sent
        stop.set()
        await until(lambda: held(edge) == 2000)
        assert sent < 1500  # what fits into the buffers of two sockets; the rest waited at the sender


async def test_bad_events_of_a_source_are_dead_letters_and_do_not_move_its_position(tmp_path: Path) -> None:
    far = 253_370_764_800_000
    feed = Feed(
        [b'{"n": 0, "mtime": 5}', b"nope", b'{"n": 1, "mtime": %d}' % far, b" ", b'{"n": 2, "mtime": 3}'], [5] * 5
    )
    async with serving(feed), running(market(feed.url), tmp_path, sleep=soon) as edge:
        await until(lambda: held(edge) == 2)
        assert [(letter["reason"], letter["raw"]) for letter in edge.dead()] == [
            ("malformed", b"nope"),
            ("from_the_future", b'{"n": 1, "mtime": %d}' % far),
        ]
        assert edge.dead()[0]["sender"] == feed.url
        await until(lambda: edge.collect.pulls.status()[0]["position"] == 5)


async def test_map_makes_events_of_what_a_source_sends(tmp_path: Path) -> None:
    def unpack(sent: Any) -> Any:
        if sent["kind"] == "noise":
            return None
        return Tick(n=1 // sent["n"], mtime=1) if sent["kind"] == "tick" else {"n": "x"}

    events = [{"kind": "noise"}, {"kind": "tick", "n": 1}, {"kind": "tick", "n": 0}, {"kind": "odd"}]
    raws = [msgspec.json.encode(event) for event in events]
    feed = Feed(raws, [0] * 4)
    async with serving(feed), running(market(feed.url, map=unpack), tmp_path, sleep=soon) as edge:
        await until(lambda: len(edge.dead()) == 2)
        assert numbers(edge) == [1]
        assert [(letter["reason"], letter["raw"]) for letter in edge.dead()] == [
            ("map_failed", raws[2]),
            ("wrong_type", raws[3]),
        ]


async def test_a_source_that_is_away_disturbs_nobody_and_is_seen(tmp_path: Path, caplog: Any) -> None:
    feed = ticks(3)
    feed.refuse = True
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await soon(seconds)

    caplog.set_level("INFO", logger="penstock")
    async with serving(feed), running(market(feed.url), tmp_path, sleep=note) as edge:
        await until(lambda: len(waits) > 30)
        (status,) = edge.collect.pulls.status()
        assert (status["stream"], status["url"], status["state"]) == ("ticks", feed.url, "disconnected")
        assert "503" in status["error"]
        assert status["since"].endswith("Z")
        assert (await edge.post("ticks", b'{"n": 99, "mtime": 1}')).status == 200
        feed.refuse = False
        await until(lambda: edge.collect.pulls.status()[0]["state"] == "connected")
        await until(lambda: held(edge) == 4)
        assert edge.collect.pulls.status()[0]["error"] is None
    states = [line.message for line in caplog.records if "PullStateChanged" in line.message]
    assert len(states) == 2  # one line when it was found away, one when it came back
    assert all(0 <= wait <= 30 for wait in waits)
    assert max(waits) > 5
    assert max(waits[:3]) <= 2


async def test_a_source_without_a_resume_parameter_is_just_read_again(tmp_path: Path) -> None:
    feed = ticks(10)
    path = tmp_path
    async with serving(feed):
        for _ in range(2):
            async with running(market(feed.url, resume=None), path, sleep=soon) as edge:
                await until(lambda edge=edge: edge.metric("received", "ticks") == 10)
                assert numbers(edge) == list(range(10))
    assert feed.asked == [None, None]


async def test_what_waits_in_the_buffer_keeps_the_time_of_its_arrival() -> None:
    clock = ManualClock()
    came_us = clock.us

    async def source() -> AsyncIterator[SourceEvents]:
        for n, wait_s in enumerate((0.0, 0.5, 60.0)):
            clock.pass_s(wait_s)
            yield SourceEvents([b"%d" % n], {"n": n})

    buffer = pull_module.PullBuffer(clock)
    await buffer.fill(source())
    clock.pass_s(600)
    assert await buffer.take() == (SourceEvents([b"0", b"1"], {"n": 1}), came_us)
    assert await buffer.take() == (SourceEvents([b"2"], {"n": 2}), came_us + 60_500_000)
    assert await buffer.take() is None
