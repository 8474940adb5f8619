"""A processor that fails, stops, stands by or is killed is finished by the next one."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bank import Bank
from played_feed import DEADLINE_S, feed, paid, paying, row, run, until

from penstock.client.processing import NOT_APPLIED, Call, KeyChange, Options, Processor, Progress, open_store
from penstock.client.processing.stores.sqlite import SqliteStore
from penstock.client.processing.work import ProcessorQuestion
from penstock.errors import (
    DiskFullError,
    StoreHeldError,
    StoreUnavailableError,
)


def test_one_poisoned_row_does_not_hold_up_the_others(path: Path) -> None:
    source = feed(("bad", "1"), ("a", "1"))
    source.add(row("bad", "2"), row("a", "2"))
    seen: list[tuple[str, str]] = []

    def handle(change: KeyChange, ctx: Any) -> None:
        if change.key["song"] == "bad":
            raise ValueError("poison")
        assert change.row is not None
        seen.append((change.key["song"], change.row["amount"]))

    done = run(path, source, handle, give_up_after=4)
    assert seen == [("a", "1"), ("a", "2")]
    assert done.failed == 1
    with closing(open_store(path, "pay")) as store:
        (task,) = store.failed()
        assert "ValueError: poison" in task.error
        assert store.retry(task.number)
    order: list[str] = []
    run(path, source, lambda change, ctx: order.append(change.row["amount"]))
    assert order == ["1", "2"]


def test_rows_of_different_keys_are_handled_at_the_same_time_and_those_of_one_key_never(path: Path) -> None:
    source = feed(*((song, "1") for song in "abcdef"))
    source.add(*(row(song, "2") for song in "abcdef"))
    guard, now, most, seen = threading.Lock(), [], [0], []
    together = threading.Barrier(3)

    def handle(change: KeyChange, ctx: Any) -> None:
        song = change.key["song"]
        with guard:
            assert song not in now
            now.append(song)
            most[0] = max(most[0], len(now))
        together.wait(DEADLINE_S)
        with guard:
            now.remove(song)
            assert change.row is not None
            seen.append((song, change.row["amount"]))

    done = run(path, source, handle, at_once=3)
    assert (most[0], done.waiting) == (3, 0)
    assert sorted(seen) == [(song, amount) for song in "abcdef" for amount in "12"]
    assert all(seen.index((song, "1")) < seen.index((song, "2")) for song in "abcdef")


def test_a_store_has_one_owner_and_another_can_stand_by(path: Path) -> None:
    source, seen, stop = feed(("a", "1")), [], threading.Event()

    async def play() -> None:
        with closing(open_store(path, "pay")) as first, closing(open_store(path, "pay")) as second:
            options = Options(stop=stop)
            owner = asyncio.create_task(Processor(source, lambda c, ctx: seen.append("first"), first, options).run())
            await until(lambda: bool(seen))
            with pytest.raises(StoreHeldError):
                await Processor(source, lambda c, ctx: None, second).run()
            waiting = Processor(source, lambda c, ctx: seen.append("second"), second, Options(standby=True, once=True))
            standing_by = asyncio.create_task(waiting.run())
            await asyncio.sleep(0.1)
            stop.set()
            await owner
            source.add(row("b", "1"))
            await standing_by

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
    assert seen == ["first", "second"]


def test_a_store_has_one_owner_however_its_path_is_spelled(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ProcessorQuestion("royalties", ("song",))
    link = tmp_path / "link.db"
    link.symlink_to(path)
    monkeypatch.chdir(tmp_path)
    with closing(open_store(path, "pay")) as first:
        assert first.acquire(question)
        for spelled in (link, Path("work.db"), tmp_path / ".." / tmp_path.name / "work.db"):
            with closing(open_store(spelled, "pay")) as second:
                assert second.acquire(question) is None


def test_a_store_that_somebody_locks_does_not_say_that_the_disk_is_full(path: Path) -> None:
    with closing(open_store(path, "pay")) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        store._db.execute("PRAGMA busy_timeout = 0")  # type: ignore[attr-defined]
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError):
            store.acquire(ProcessorQuestion("royalties", ("song",)))
        other.execute("ROLLBACK")
        store._db.execute("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]
        with pytest.raises(DiskFullError):
            store._transact(  # type: ignore[attr-defined]
                lambda sql: sql.run("CREATE TABLE large AS SELECT zeroblob(1000000) AS content")
            )


def test_an_owner_that_was_replaced_stands_by_and_goes_on_when_it_is_its_turn_again(path: Path) -> None:
    source, seen = feed(("a", "1")), []

    async def play() -> None:
        with closing(open_store(path, "pay")) as first, closing(open_store(path, "pay")) as second:
            handler = lambda change, ctx: seen.append((change.key["song"], ctx.term))  # noqa: E731
            owner = asyncio.create_task(Processor(source, handler, first, Options(standby=True)).run())
            await until(lambda: first.progress().handled == "1")
            assert isinstance(first, SqliteStore)
            held, first._lock = first._lock, os.open(os.devnull, os.O_RDONLY)  # its lock is lost, and it does not know
            os.close(held or -1)
            question = ProcessorQuestion("royalties", ("song",))
            await until(lambda: second.acquire(question) is not None)
            source.add(row("b", "1"))
            await asyncio.sleep(0.2)
            assert seen == [("a", 1)]
            second.release()
            await until(lambda: len(seen) == 2)
            owner.cancel()
            await asyncio.gather(owner, return_exceptions=True)

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
    assert seen == [("a", 1), ("b", 3)]


def test_new_rows_are_handled_as_they_come_and_a_cancelled_processor_lets_go(path: Path) -> None:
    seen: list[str] = []
    told: list[Progress] = []

    async def play() -> None:
        source = feed(("a", "1"))
        with closing(open_store(path, "pay")) as store:
            options = Options(on_progress=told.append)
            running = asyncio.create_task(
                Processor(source, lambda change, ctx: seen.append(change.key["song"]), store, options).run()
            )
            await until(lambda: seen == ["a"])
            source.add(row("b", "1"))
            await until(lambda: store.progress().handled == "2")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            with closing(open_store(path, "pay")) as other:
                assert other.progress().handled == "2"
                done = await Processor(source, lambda change, ctx: None, other, Options(once=True)).run()
                assert done.waiting == 0

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
    assert told


def test_receiving_waits_while_the_backlog_is_full(path: Path) -> None:
    source = feed(("a", "1"), ("b", "1"), ("c", "1"))
    source.add(row("d", "1"))
    go = threading.Event()
    seen: list[str] = []

    def handle(change: KeyChange, ctx: Any) -> None:
        go.wait(DEADLINE_S)
        seen.append(change.key["song"])

    async def play() -> None:
        with closing(open_store(path, "pay")) as store, closing(open_store(path, "pay")) as looking:
            running = asyncio.create_task(Processor(source, handle, store, Options(once=True, backlog=2)).run())
            await until(lambda: looking.progress().received == "1")
            await asyncio.sleep(0.1)
            assert looking.progress().received == "1"
            go.set()
            await running

    asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
    assert seen == ["a", "b", "c", "d"]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_killed_processor_is_finished_by_the_next_one(path: Path, bank: Bank, moment: str) -> None:
    """`kill -9` before the call, while it is answered, and between the answer and the end of the handler."""
    program = textwrap.dedent(f"""
        import asyncio, os, signal, sys
        sys.path.append({str(Path(__file__).parent)!r})
        from played_feed import feed, Processor, Options, open_store
        def die(): os.kill(os.getpid(), signal.SIGKILL)
        def pay(change, ctx):
            if {moment!r} == "before": die()
            ctx.call({bank.url!r}, {{"to": "a", "amount": "1"}})
            die()
        asyncio.run(Processor(feed(("a", "1")), pay, open_store({str(path)!r}, "pay"), Options(once=True)).run())
    """)
    if moment == "during":
        bank.post = _killing(bank.post)  # type: ignore[method-assign]
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    if moment == "during":
        bank.pid = child.pid  # type: ignore[attr-defined]
    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    if moment == "during":  # it kills first, so that nobody reads an answer, and charges then
        asyncio.run(until(lambda: bool(paid(bank))))
    bank.pid = None  # type: ignore[attr-defined]
    asked: list[str] = []

    def confirm(call: Call) -> Any:
        asked.append(call.key)
        return bank.find(call.key) or NOT_APPLIED

    run(path, feed(("a", "1")), paying(bank), confirm=confirm)
    assert paid(bank) == [("a", "1")]
    assert len(asked) == (1 if moment == "during" else 0)


def _killing(post: Callable[[Any], None]) -> Callable[[Any], None]:
    """Charges, and kills who asked before it gets an answer."""

    def answer(request: Any) -> None:
        bank = post.__self__  # type: ignore[attr-defined]
        if getattr(bank, "pid", None):
            bank.next.append("die")
            asked = request.rfile.read(int(request.headers["Content-Length"]))
            os.kill(bank.pid, signal.SIGKILL)
            request.rfile = io.BytesIO(asked)
        post(request)

    return answer
