"""`client.process` over a real edge: across cuts, restarts and rebuilds each change is handed over once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from edge import eventually
from fake_flows import topic
from served import FAST, Served, serving

from penstock.client import AsyncClient, Client
from penstock.client.processing import KeyChange, Progress, open_store
from penstock.client.processing.stores.sqlite import SqliteStore
from penstock.client.verdict import TransientFailure
from penstock.errors import (
    BadQueryError,
    PenstockError,
    StoreMismatchError,
    TooManyError,
    UnknownViewError,
    UnreachableError,
)

DEADLINE_S = 60.0


class Seen:
    """A handler that notes what it is told."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, int | None, int | None]] = []

    async def __call__(self, change: KeyChange, ctx: Any) -> None:
        row, before = change.row, change.before
        self.changes.append((change.key["topic"], row and row["rsvps"], before and before["rsvps"]))


async def once(served: Served, seen: Any, **options: Any) -> Progress:
    async with served.client() as client:
        return await client.process("topics", seen, store=served.path / "work.db", once=True, **options)


async def test_each_change_is_told_once_across_cuts_restarts_and_rebuilds(tmp_path: Path) -> None:
    seen = Seen()
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        served.commit(topic("a", 1), topic("b", 1))
        running = asyncio.create_task(client.process("topics", seen, store=tmp_path / "work.db"))
        await eventually(lambda: len(seen.changes) == 2, "the snapshot")
        served.cut()
        served.commit(topic("a", 2), deletes=["b"])
        await eventually(lambda: len(seen.changes) == 4, "the changes behind the cut")
        await served.restart()
        served.stream = served.flows.build(epoch="rebuilt")
        served.commit(topic("a", 2), topic("c", 1))
        await eventually(lambda: len(seen.changes) == 5, "what the rebuilt view has more")
        served.commit(topic("a", 3))
        await eventually(lambda: len(seen.changes) == 6, "the change behind the rebuild")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert sorted(seen.changes[:2]) == [("a", 1, None), ("b", 1, None)]
    assert seen.changes[2:] == [("b", None, 1), ("a", 2, 1), ("c", 1, None), ("a", 3, 2)]


async def test_once_ends_when_it_is_level_also_where_nothing_was_told(tmp_path: Path) -> None:
    seen = Seen()
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 5), topic("b", 1))
        await once(served, seen, where="rsvps > :least", params={"least": 3})
        await served.show(topic("b", 2))
        await once(served, seen, where="rsvps > :least", params={"least": 3})
        await served.show(topic("b", 9))
        done = await once(served, seen, where="rsvps > :least", params={"least": 3})
    assert seen.changes == [("a", 5, None), ("b", 9, None)]
    assert done.handled == done.received


async def test_what_was_missed_between_two_runs_is_told_batch_by_batch(tmp_path: Path) -> None:
    seen = Seen()
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 1))
        await once(served, seen)
        for n in (2, 3, 2):
            await served.show(topic("a", n))
        await once(served, seen)
    assert [now for _, now, _ in seen.changes] == [1, 2, 3, 2]


async def test_more_rows_than_the_views_limit_are_told(tmp_path: Path) -> None:
    seen = Seen()
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(*(topic(f"t{n}", n) for n in range(300)))
        await once(served, seen, select=["rsvps"])
    assert len(seen.changes) == 300


async def test_a_bad_question_is_an_error_and_another_one_needs_another_name(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 1))
        async with served.client() as client:
            with pytest.raises(UnknownViewError):
                await client.process("nothing", Seen(), store=tmp_path / "work.db", once=True)
        with pytest.raises(BadQueryError):
            await once(served, Seen(), where="no_such_column > 3", name="bad")
        await once(served, Seen())
        with pytest.raises(StoreMismatchError):
            await once(served, Seen(), where="rsvps > 3")


async def test_while_no_server_is_there_a_job_fails_and_a_service_waits_until_it_is_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    async with asyncio.timeout(DEADLINE_S), AsyncClient("http://127.0.0.1:1", **FAST) as client:
        with pytest.raises(UnreachableError):
            await client.process("topics", Seen(), store=tmp_path / "work.db", once=True)
        running = asyncio.create_task(client.process("topics", Seen(), store=tmp_path / "work.db", stop=stop))
        await asyncio.sleep(0.1)
        assert not running.done()
        stop.set()
        assert (await running).received is None


async def test_a_store_is_opened_and_closed_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is away, or somebody who looks at the file, would hold up everything else on the loop."""
    where: list[int] = []

    class Noted(SqliteStore):
        def __init__(self, *values: Any) -> None:
            where.append(threading.get_ident())
            super().__init__(*values)

        def close(self) -> None:
            where.append(threading.get_ident())
            super().close()

    monkeypatch.setattr("penstock.client.processing.work_store.SqliteStore", Noted)
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 1))
        await once(served, Seen())
    assert len(where) == 2
    assert threading.get_ident() not in where


async def test_a_server_that_is_too_busy_to_say_the_key_is_asked_again(tmp_path: Path) -> None:
    seen, stop = Seen(), threading.Event()
    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served, served.client() as client:
        await served.show(topic("a", 1))
        refusals, get = [TooManyError("slower").after(0.01), PenstockError("a bug")], client._calls().get

        async def played(path: str, *more: Any) -> Any:
            if path == "/views" and refusals:
                raise TransientFailure(refusals.pop())
            return await get(path, *more)

        client._calls().get = played  # type: ignore[method-assign]
        running = asyncio.create_task(client.process("topics", seen, store=tmp_path / "work.db", stop=stop))
        await eventually(lambda: len(seen.changes) == 1, "the row")
        stop.set()
        await running


async def test_the_blocking_client_processes_until_it_is_told_to_stop(tmp_path: Path) -> None:
    seen: list[str] = []
    stop = threading.Event()

    def process(url: str) -> Progress:
        with Client(url, **FAST) as client:
            store = open_store(tmp_path / "work.db", "mine")
            try:
                return client.process("topics", lambda change, ctx: seen.append(ctx.key), store=store, stop=stop)
            finally:
                store.close()

    async with asyncio.timeout(DEADLINE_S), serving(tmp_path) as served:
        await served.show(topic("a", 1))
        running = asyncio.create_task(asyncio.to_thread(process, served.url))
        await eventually(lambda: len(seen) == 1, "the row")
        stop.set()
        done = await running
    assert done.waiting == 0
    assert seen[0].startswith("mine/")
