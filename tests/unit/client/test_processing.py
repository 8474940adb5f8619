"""A handler over a view: each change once, whatever fails in between. The feed is played, all else is real."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bank import Bank

from penstock.client.changes import Changes
from penstock.client.processing import NOT_APPLIED, Answer, Call, KeyChange, Options, Processor, Progress, open_store
from penstock.client.processing.stores.sqlite import SqliteStore
from penstock.client.processing.work import Question
from penstock.errors import (
    BadRequestError,
    CallCutOffError,
    CallRefusedError,
    DiskFullError,
    HandlerDivergedError,
    StoreHeldError,
    StoreMismatchError,
    StoreUnavailableError,
    UnreachableError,
)

DEADLINE_S = 20.0


def row(song: str, amount: str) -> dict[str, Any]:
    return {"song": song, "amount": amount}


class PlayedFeed:
    """Batches that a test has put there; a position is the number of batches before it."""

    def __init__(self, *batches: Changes, key: tuple[str, ...] = ("song",)) -> None:
        self.view = "royalties"
        self.batches = list(batches)
        self._key = key
        self.more = asyncio.Event()

    def add(self, *rows: dict[str, Any], deletes: tuple[dict[str, Any], ...] = (), **more: Any) -> None:
        self.batches.append(Changes(self.view, str(len(self.batches) + 1), rows, deletes, **more))
        self.more.set()

    async def key(self) -> tuple[str, ...]:
        return self._key

    async def watch(self, since: str | None) -> AsyncGenerator[Changes, None]:
        at = int(since or 0)
        while True:
            while at < len(self.batches):
                at += 1
                yield self.batches[at - 1]
            self.more.clear()
            await self.more.wait()

    async def level(self, since: str | None) -> AsyncGenerator[Changes, None]:
        for batch in self.batches[int(since or 0) :]:
            yield batch


def feed(*amounts: tuple[str, str]) -> PlayedFeed:
    made = PlayedFeed()
    made.add(*(row(song, amount) for song, amount in amounts), snapshot=True)
    return made


@pytest.fixture
def bank() -> Iterator[Bank]:
    with Bank() as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


def run(path: Path, source: PlayedFeed, handler: Any, **options: Any) -> Progress:
    """Process until level."""
    chosen = {"once": True, "settle_s": 0.0, "backoff_most_s": 0.02, "random": Random(1)} | options

    async def play() -> Progress:
        with closing(open_store(path, "pay")) as store:
            async with asyncio.timeout(DEADLINE_S):
                return await Processor(source, handler, store, Options(**chosen)).run()

    return asyncio.run(play())


def paying(bank: Bank, calls: int = 1) -> Callable[[KeyChange, Any], None]:
    def pay(change: KeyChange, ctx: Any) -> None:
        for _ in range(calls):
            assert change.row is not None
            ctx.call(bank.url, {"to": change.key["song"], "amount": change.row["amount"]})

    return pay


def paid(bank: Bank) -> list[tuple[str, str]]:
    return sorted((body["to"], body["amount"]) for _, body in bank.charges)


# What is handed over


def test_each_row_is_handed_over_once_over_restarts(path: Path, bank: Bank) -> None:
    source = feed(("a", "1"), ("b", "2"))
    for _ in range(3):
        done = run(path, source, paying(bank))
    assert paid(bank) == [("a", "1"), ("b", "2")]
    assert (done.waiting, done.failed, done.handled) == (0, 0, "1")


def test_a_coroutine_handler_and_a_function_are_handed_the_same(tmp_path: Path, bank: Bank) -> None:
    async def pay(change: KeyChange, ctx: Any) -> None:
        assert change.row is not None
        answers = await asyncio.gather(
            *(ctx.call(bank.url, {"to": change.key["song"], "amount": "1"}) for _ in range(3))
        )
        assert all(answer.status == 201 for answer in answers)

    run(tmp_path / "a.db", feed(("a", "1")), pay)
    assert len(bank.charges) == 3
    assert len({key for key, _ in bank.charges}) == 3


def test_a_whole_batch_may_be_handed_over(path: Path) -> None:
    seen: list[tuple[KeyChange, ...]] = []
    run(path, feed(("a", "1"), ("b", "2")), lambda changes, ctx: seen.append(changes), each="batch")
    assert [[change.key["song"] for change in changes] for changes in seen] == [["a", "b"]]


def test_existing_rows_may_be_left_out(path: Path) -> None:
    source = feed(("a", "1"))
    source.add(row("b", "2"))
    seen: list[str] = []
    run(path, source, lambda change, ctx: seen.append(change.key["song"]), existing=False)
    assert seen == ["b"]


def test_another_key_of_the_view_is_refused(path: Path) -> None:
    run(path, feed(("a", "1")), lambda change, ctx: None)
    with pytest.raises(StoreMismatchError):
        run(path, PlayedFeed(key=("song", "day")), lambda change, ctx: None)


def test_a_view_that_was_rebuilt_with_another_key_is_refused(path: Path) -> None:
    source = feed(("a", "1"))
    run(path, source, lambda change, ctx: None)

    async def changed() -> tuple[str, ...]:
        keys.append(("song",) if not keys else ("song", "day"))
        return keys[-1]

    keys: list[tuple[str, ...]] = []
    source.key = changed  # type: ignore[method-assign]
    source.add(row("a", "1") | {"day": 1}, row("a", "2") | {"day": 2}, snapshot=True, reset="rebuilt")
    with pytest.raises(StoreMismatchError, match="song, day"):
        run(path, source, lambda change, ctx: pytest.fail("nothing can be compared"))


@pytest.mark.parametrize("option", [{"on": "deletes"}, {"each": "day"}, {"at_once": 0}])
def test_options_that_make_no_sense_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        Options(**option)


def test_a_coroutine_in_disguise_is_not_taken_for_success(path: Path) -> None:
    async def pay(change: KeyChange, ctx: Any) -> None: ...

    done = run(path, feed(("a", "1")), lambda change, ctx: pay(change, ctx), give_up_after=2)
    assert done.failed == 1


def test_a_name_that_cannot_begin_a_header_is_refused(path: Path) -> None:
    with pytest.raises(BadRequestError):
        open_store(path, "pay\nme")


# Calls


def test_a_call_that_was_answered_is_not_sent_again_when_the_handler_fails_later(path: Path, bank: Bank) -> None:
    answers: list[Answer] = []

    def pay(change: KeyChange, ctx: Any) -> None:
        answers.append(ctx.call(bank.url, {"n": 1}))
        if len(answers) < 3:
            raise ValueError("not yet")

    run(path, feed(("a", "1")), pay)
    assert len(bank.asked) == 1
    assert len({(answer.status, answer.body) for answer in answers}) == 1
    assert answers[0].json() == {"charge": 1}


def test_a_call_that_was_cut_off_is_sent_again_under_the_same_key(path: Path, bank: Bank) -> None:
    bank.next.extend(["die_first", "die", 500, 503])
    run(path, feed(("a", "1")), paying(bank))
    assert len(bank.asked) == 5
    assert len(set(bank.asked)) == 1


@pytest.mark.parametrize("fault", ["die", "die_first"])
def test_confirm_decides_whether_a_call_that_was_cut_off_is_sent_again(path: Path, bank: Bank, fault: str) -> None:
    def confirm(call: Call) -> Any:
        asked.append(call)
        return bank.find(call.key) or NOT_APPLIED

    asked: list[Call] = []
    bank.next.append(fault)
    run(path, feed(("a", "1")), paying(bank, calls=2), confirm=confirm)
    assert paid(bank) == [("a", "1")] * 2
    (call,) = asked
    assert (call.number, call.method, call.payload) == (1, "POST", {"to": "a", "amount": "1"})
    assert len(bank.asked) == (2 if fault == "die" else 3)


def test_confirm_may_be_a_coroutine_and_may_not_know_yet(path: Path, bank: Bank) -> None:
    answers = [None, None, {"charge": "found"}]
    told: list[Answer] = []

    async def confirm(call: Call) -> Any:
        return answers.pop(0)

    bank.next.append("die")
    run(path, feed(("a", "1")), lambda change, ctx: told.append(ctx.call(bank.url, {})), confirm=confirm)
    assert len(bank.charges) == 1
    assert told[0].json() == {"charge": "found"}


def test_confirm_is_not_asked_about_a_call_that_was_refused(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []
    bank.next.extend([402, 429])
    run(
        path,
        feed(("a", "1")),
        lambda change, ctx: ctx.call(bank.url, {}),
        confirm=lambda call: pytest.fail("it had no effect"),
        on_error=lambda task, error, tries: errors.append(error),
    )
    assert [type(error) for error in errors] == [CallRefusedError] * 2
    assert len(bank.charges) == 1


@pytest.mark.parametrize("status", [303, 409])
def test_a_redirect_and_a_conflict_may_be_told_of_what_took_effect(path: Path, bank: Bank, status: int) -> None:
    asked: list[Call] = []

    def confirm(call: Call) -> Any:
        asked.append(call)
        return {"charge": "found"}

    bank.next.append(status)
    run(path, feed(("a", "1")), lambda change, ctx: ctx.call(bank.url, {}), confirm=confirm)
    assert (len(asked), len(bank.asked)) == (1, 1)


def test_a_call_under_way_when_the_handler_fails_is_waited_for_and_not_sent_twice(path: Path, bank: Bank) -> None:
    """`gather` leaves the handler with the first failure; the other call goes on."""
    sent: list[str] = []
    errors: list[BaseException] = []

    def slow(call: Call) -> str:
        sent.append(call.key)
        time.sleep(0.3)
        return "done"

    async def pay(change: KeyChange, ctx: Any) -> None:
        await asyncio.gather(ctx.call(bank.url, {}), ctx.call(slow, 1))

    bank.next.append(402)
    done = run(
        path,
        feed(("a", "1")),
        pay,
        confirm=lambda call: NOT_APPLIED,
        on_error=lambda task, error, tries: errors.append(error),
    )
    assert [type(error) for error in errors] == [CallRefusedError]
    assert (len(sent), len(bank.charges), done.waiting) == (1, 1, 0)


def test_what_a_handler_leaves_behind_can_make_no_more_calls(path: Path, bank: Bank) -> None:
    left: list[asyncio.Task[Any]] = []

    async def later(ctx: Any) -> None:
        await asyncio.sleep(0.01)
        await ctx.call(bank.url, {})

    async def pay(change: KeyChange, ctx: Any) -> None:
        left.append(asyncio.create_task(later(ctx)))

    async def last(change: KeyChange, ctx: Any) -> None:
        if change.key["song"] == "a":
            await pay(change, ctx)
        else:
            with pytest.raises(BadRequestError, match="has ended"):
                await left[0]

    assert run(path, feed(("a", "1"), ("b", "1")), last, give_up_after=1).failed == 0
    assert bank.asked == []


def test_a_service_that_is_away_is_tried_until_it_is_there(path: Path) -> None:
    errors: list[BaseException] = []

    def pay(change: KeyChange, ctx: Any) -> None:
        ctx.call("http://127.0.0.1:9/charges", {})

    done = run(path, feed(("a", "1")), pay, give_up_after=3, on_error=lambda task, error, tries: errors.append(error))
    assert [type(error) for error in errors] == [UnreachableError] * 3
    assert done.failed == 1


@pytest.mark.parametrize("fault", ["half", "drip"])
def test_half_an_answer_is_none(path: Path, bank: Bank, fault: str) -> None:
    bank.next.append(fault)
    asked: list[Call] = []

    def confirm(call: Call) -> Any:
        asked.append(call)
        return bank.find(call.key) or NOT_APPLIED

    run(path, feed(("a", "1")), paying(bank), confirm=confirm, timeout_s=0.3)
    assert len(asked) == len(bank.charges) == 1


def test_a_status_in_accept_is_an_answer(path: Path, bank: Bank) -> None:
    bank.next.append(409)
    seen: list[int] = []
    run(path, feed(("a", "1")), lambda change, ctx: seen.append(ctx.call(bank.url, {}, accept=(200, 201, 409)).status))
    assert seen == [409]


def test_a_function_is_called_as_a_url_is(path: Path) -> None:
    keys: list[str] = []

    def send_mail(call: Call) -> dict[str, Any]:
        keys.append(call.key)
        if len(keys) == 1:
            raise ConnectionResetError("cut")
        return {"to": call.payload, "at": {1}}  # a set: JSON has none, so a list comes back

    seen: list[Any] = []
    run(path, feed(("a", "1")), lambda change, ctx: seen.append(ctx.call(send_mail, change.key["song"])))
    assert seen == [{"to": "a", "at": [1]}]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_value_is_made_once(path: Path) -> None:
    made: list[float] = []
    seen: list[float] = []

    def handle(change: KeyChange, ctx: Any) -> None:
        seen.append(ctx.once(lambda: made.append(Random().random()) or made[-1]))
        if len(seen) < 3:
            raise ValueError("again")

    run(path, feed(("a", "1")), handle)
    assert len(made) == 1
    assert seen == made * 3


def test_a_handler_that_takes_another_way_is_stopped_and_says_where(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []
    amounts = iter("123456")

    def pay(change: KeyChange, ctx: Any) -> None:
        ctx.call(bank.url, {"amount": next(amounts)})
        raise ValueError("after the call")

    done = run(path, feed(("a", "1")), pay, give_up_after=3, on_error=lambda t, error, n: errors.append(error))
    assert [type(error) for error in errors] == [ValueError, HandlerDivergedError, HandlerDivergedError]
    assert "call 1 was POST" in str(errors[1].detail)  # type: ignore[attr-defined]
    assert len(bank.charges) == 1
    assert done.failed == 1


def test_a_handler_that_leaves_out_a_call_is_not_done(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []

    def pay(change: KeyChange, ctx: Any) -> None:
        if not errors:
            ctx.call(bank.url, {})
            raise ValueError("after the call")

    run(path, feed(("a", "1")), pay, give_up_after=2, on_error=lambda task, error, tries: errors.append(error))
    assert isinstance(errors[1], HandlerDivergedError)


def test_a_handler_that_swallows_a_cut_off_call_is_not_done(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []
    bank.next.extend(["die_first", "charge"])

    def pay(change: KeyChange, ctx: Any) -> None:
        try:
            ctx.call(bank.url, {})
        except CallCutOffError:
            return

    run(path, feed(("a", "1")), pay, on_error=lambda task, error, tries: errors.append(error))
    assert [type(error) for error in errors] == [CallCutOffError]
    assert len(bank.charges) == 1


# Failing, stopping, owning


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
            await _until(lambda: bool(seen))
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
    question = Question("royalties", ("song",))
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
            store.acquire(Question("royalties", ("song",)))
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
            await _until(lambda: first.progress().handled == "1")
            assert isinstance(first, SqliteStore)
            held, first._lock = first._lock, os.open(os.devnull, os.O_RDONLY)  # its lock is lost, and it does not know
            os.close(held or -1)
            question = Question("royalties", ("song",))
            await _until(lambda: second.acquire(question) is not None)
            source.add(row("b", "1"))
            await asyncio.sleep(0.2)
            assert seen == [("a", 1)]
            second.release()
            await _until(lambda: len(seen) == 2)
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
            await _until(lambda: seen == ["a"])
            source.add(row("b", "1"))
            await _until(lambda: store.progress().handled == "2")
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
            await _until(lambda: looking.progress().received == "1")
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
        from test_processing import feed, Processor, Options, open_store
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
        asyncio.run(_until(lambda: bool(paid(bank))))
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
            os.kill(bank.pid, signal.SIGKILL)
        post(request)

    return answer


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
