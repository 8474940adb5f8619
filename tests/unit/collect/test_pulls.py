from __future__ import annotations

import asyncio
import gzip
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from feed_server import until
from running_edge import Edge, running

from penstock import App, Event
from penstock.clock import SystemClock
from penstock.collect.pulling.lease import LEASE_US, Leases
from penstock.errors import ConditionError, DeclarationError, LeaseLostError
from penstock.log.group_commit import GroupCommit, first_taken
from penstock.log.log import Append
from penstock.log.opening import open_log
from penstock.observe.metrics import Observer
from tests.memory_folder import memory_folder


class Tick(Event):
    n: int
    at: int | None = None


def app(source: Any, *, id: Any = None, **options: Any) -> App:
    made = App("pulls")
    made.pull(made.stream("ticks", Tick, id=id, time="at"), source, **options)
    return made


async def soon(_: float) -> None:
    await asyncio.sleep(0.002)


def numbers(edge: Edge) -> list[int]:
    return [event["n"] for event in edge.events("ticks")]


def status(edge: Edge) -> dict[str, Any]:
    return edge.collect.pulls.status()[0]


class ManualClock(SystemClock):
    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


# Functions


async def test_a_function_is_called_with_the_last_stored_position(tmp_path: Path) -> None:
    called: list[Any] = []

    async def source(since: dict[str, int] | None) -> AsyncIterator[Any]:
        called.append(since)
        start = since["page"] + 1 if since else 0
        for n in range(start, start + 3):
            yield {"page": n}, Tick(n=n)

    for _ in range(2):
        async with running(app(source), tmp_path, sleep=soon) as edge:
            goal = len(called) + 2
            await until(lambda goal=goal: len(called) > goal)
            taken = numbers(edge)
    assert taken == list(range(len(taken)))
    assert called[:2] == [None, {"page": 2}]


async def test_a_function_may_yield_events_of_any_form_and_fail(tmp_path: Path) -> None:
    async def source() -> AsyncIterator[Any]:
        yield {"n": 1}
        yield b'{"n": 2}'
        yield '{"n": 3}'
        yield b"nonsense"
        raise ValueError("no more")

    async with running(app(source, id="n"), tmp_path, sleep=soon) as edge:
        await until(lambda: numbers(edge) == [1, 2, 3] and "no more" in str(status(edge)["error"]))
        assert status(edge)["url"].endswith("source")
        assert edge.dead()[0]["reason"] == "malformed"


async def test_a_position_moves_also_where_map_leaves_everything_out(tmp_path: Path) -> None:
    async def source(since: int | None) -> AsyncIterator[Any]:
        yield 41, {"n": 1}
        await asyncio.sleep(60)

    async with running(app(source, map=lambda sent: None), tmp_path, sleep=soon) as edge:
        await until(lambda: status(edge)["position"] == {"at": 41})
        assert numbers(edge) == []


# Lag, pauses, metrics


async def test_lag_is_shown_in_status_and_as_a_metric(tmp_path: Path) -> None:
    path = tmp_path / "in.log"
    now_ms = SystemClock().now_us() // 1000
    path.write_bytes(b'{"n": 1, "at": %d}\n{"n": 2' % (now_ms - 5000))
    async with running(app(f"file://{path}"), tmp_path, sleep=soon) as edge:
        await until(lambda: numbers(edge) == [1] and "seconds" in status(edge)["lag"])
        lag = status(edge)["lag"]
        assert lag["bytes"] == 7
        assert 5 <= lag["seconds"] < 60
        observer = Observer()
        edge.collect.pulls.measure(observer)
        labels = {"stream": "ticks", "source": f"file://{path}"}
        assert observer.value("penstock_collect_pull_lag_bytes", **labels) == 7
        assert observer.value("penstock_collect_pull_lag_seconds", **labels) == lag["seconds"]


async def test_a_paused_pull_takes_nothing_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "in.log"
    path.write_bytes(b'{"n": 1}\n')
    async with running(app(f"file://{path}"), tmp_path, sleep=soon) as edge:
        await until(lambda: numbers(edge) == [1])
        edge.collect.pulls.pause("ticks", "the view 'slow' is behind")
        with path.open("ab") as file:
            file.write(b'{"n": 2}\n')
        await asyncio.sleep(0.1)
        assert numbers(edge) == [1]
        assert (status(edge)["state"], status(edge)["paused"]) == ("paused", "the view 'slow' is behind")
        edge.collect.pulls.resume("ticks")
        await until(lambda: numbers(edge) == [1, 2])
        assert (status(edge)["state"], status(edge)["paused"]) == ("connected", None)


# Leases


async def test_one_edge_at_a_time_runs_a_pull_and_another_takes_over(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(memory_folder(tmp_path).edge_log, app="x")
    group = GroupCommit(log)
    try:
        first, second = (Leases(log, group, name, clock) for name in ("first", "second"))
        assert await first.take("pull/a") == 0
        assert LEASE_US / 1e6 - 1 < await second.take("pull/a") <= LEASE_US / 1e6
        clock.ahead_us += LEASE_US // 2
        await first.renew(["pull/a"])
        clock.ahead_us += LEASE_US // 2 + 1
        assert await second.take("pull/a") > 0  # it was renewed
        clock.ahead_us += LEASE_US  # the first is dead
        assert await second.take("pull/a") == 0
        with pytest.raises(LeaseLostError):
            first.check("pull/a")
        with pytest.raises(ConditionError):
            await first_taken(group.append([Append(sets={"x": 1}, requires=(first.held("pull/a"),))]))
        assert "x" not in log.memory()
        await first.renew(["pull/a"])
        await first.release(["pull/a"])
        second.check("pull/a")
        await first_taken(group.append([Append(sets={"x": 2}, requires=(second.held("pull/a"),))]))
        assert log.memory()["x"] == 2
        await second.release(["pull/a"])
        assert await first.take("pull/a") == 0
    finally:
        group.close()
        log.close()


async def test_an_edge_that_starts_again_does_not_wait_for_its_former_self(tmp_path: Path) -> None:
    for _ in range(2):
        log = open_log(memory_folder(tmp_path).edge_log, app="x")
        group = GroupCommit(log)
        assert await Leases(log, group, os.urandom(4).hex(), SystemClock()).take("pull/a") == 0
        group.close()
        log.close()


async def test_a_pull_whose_lease_another_took_writes_nothing_and_goes_on_when_it_is_free(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def source(since: int | None) -> AsyncIterator[Any]:
        for n in range(0 if since is None else since + 1, 6):
            if n == 3:
                await go.wait()
            yield n, {"n": n}
        await asyncio.sleep(60)

    clock = ManualClock()
    async with running(app(source, id="n"), tmp_path, sleep=soon, clock=clock) as edge:
        await until(lambda: numbers(edge) == [0, 1, 2])
        other = Leases(edge.log, edge.group, "other", clock)
        key = next(key for key in edge.log.memory() if key.startswith("lease/")).removeprefix("lease/")
        clock.ahead_us += 2 * LEASE_US
        assert await other.take(key) == 0
        go.set()
        await until(lambda: status(edge)["state"] == "waiting")
        assert numbers(edge) == [0, 1, 2]
        assert (await edge.post("ticks", b'{"n": 99}')).status == 200
        await other.release([key])
        await until(lambda: numbers(edge) == [0, 1, 2, 99, 3, 4, 5])


# Folders


async def test_a_folder_is_read_as_files_come_and_grow_and_no_file_twice(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    made = app(f"file://{folder}/")
    (folder / "a.ndjson").write_bytes(b'{"n": 1}\n{"n": 2}')
    (folder / "b.ndjson.gz").write_bytes(gzip.compress(b'{"n": 10}\n{"n": 11}'))
    (folder / "c.gz").write_bytes(gzip.compress(b'{"n": 20}\n' * 50)[:30])
    async with running(made, tmp_path, sleep=soon) as edge:
        await until(lambda: sorted(numbers(edge)) == [1, 10, 11])
        (folder / "a.ndjson").rename(folder / "renamed")
        with (folder / "renamed").open("ab") as file:
            file.write(b'\n{"n": 3}')
        await until(lambda: sorted(numbers(edge)) == [1, 2, 10, 11])
        assert edge.dead() == []
    for name in ("renamed", "c.gz"):
        os.utime(folder / name, (1e9, 1e9))  # nobody will write more
    async with running(made, tmp_path, sleep=soon) as edge:
        await until(lambda: sorted(numbers(edge)) == [1, 2, 3, 10, 11] and len(edge.dead()) == 1)
        assert b"cannot be unpacked" in edge.dead()[0]["raw"]
        (folder / "renamed").unlink()
        (folder / "d").write_bytes(b'{"n": 4}\n')
        await until(lambda: 4 in numbers(edge) and len(parts(edge)) == 3)
        await asyncio.sleep(0.05)
        assert sorted(numbers(edge)) == [1, 2, 3, 4, 10, 11]


def parts(edge: Edge) -> list[str]:
    return [key for key in edge.log.memory() if key.startswith("pull/") and "#" in key]


# Declaring


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("gopher://x/y", {}, "scheme that is not known"),
        ("ws://user:word@x/y", {}, "holds a credential"),
        ("tcp://x", {}, "not complete"),
        ("kafka://x:9092", {}, "not complete"),
        ("penstock+http://x/other/y", {}, "not complete"),
        ("file://logs/x", {}, "not complete"),
        ("ws://x/y", {"every": "1 second"}, "takes no option 'every'"),
        ("file:///x/y", {"resume": "a=n"}, "takes no option 'resume'"),
        ("ws://x/y", {"resume": "since"}, "resume='since'"),
        ("ws://x/y", {"key": "Bearer abc"}, "not the name of an environment variable"),
        (len, {}, "neither an address nor an async generator"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_declared(source: Any, options: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as refused:
        app(source, **options)
    assert "word" not in str(refused.value.paragraph())


@pytest.mark.parametrize(
    ("source", "options", "code"),
    [
        ("ws://x/y", {"resume": "since=n"}, "pull_repeats"),
        ("poll+https://x/y", {}, "pull_repeats"),
        ("http://x/y", {}, "pull_repeats"),
        ("ws://x/y", {}, "pull_loses"),
        ("tcps://x:1", {}, "pull_loses"),
        ("ws://x/y", {"resume": "since=m", "id": "n"}, "unknown_field"),
        ("ws://x/y", {"resume": "since=n", "id": "n"}, None),
        ("poll+https://x/y", {"id": "fingerprint"}, None),
        ("sse+https://x/y", {}, None),
        ("file:///x/y", {}, None),
        ("kafkas://x:1,y:2/topic", {}, None),
        ("penstock+https://x/views/y", {}, None),
    ],
)
def test_check_says_what_a_source_needs(source: Any, options: Any, code: str | None) -> None:
    problems = app(source, **options).declared().problems()
    assert [problem.code for problem in problems] == ([code] if code else [])


def test_one_source_twice_is_an_error() -> None:
    made = app("sse+http://x/y")
    made.pull(made.declared().streams[0], "sse+http://x/y")
    assert [problem.code for problem in made.declared().problems()] == ["pull_twice"]


async def test_kafka_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    made = app("kafka://127.0.0.1:1/topic")
    (problem,) = made.declared().problems()
    assert (problem.level, problem.code, problem.hint) == ("error", "missing_package", "pip install 'penstock[kafka]'")
    async with running(made, tmp_path, sleep=soon) as edge:
        await until(lambda: status(edge)["state"] == "stopped")
        assert "pip install 'penstock[kafka]'" in status(edge)["error"]
        assert (await edge.post("ticks", b'{"n": 1}')).status == 200
