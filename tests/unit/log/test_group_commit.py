from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import (
    ConditionError,
    DiskFullError,
    LogUnavailableError,
    OutcomeUnknownError,
    OverloadedError,
    SequenceGapError,
)
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Appended, KeyIs, Log, Producer, Stream
from penstock.testing.contracts.log_events import events, everything


class Held:
    """A log whose commits wait until they are let through, so that tests decide what waits meanwhile."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.entered = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.calls: list[int] = []
        self.failing: list[Exception] = []

    def append(self, appends: Sequence[Append], remember: Mapping[str, Any | None] | None = None) -> Any:
        self.calls.append(len(appends))
        self.entered.release()
        assert self.let.acquire(timeout=60)
        if self.failing:
            raise self.failing.pop(0)
        return self._log.append(appends, remember)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.fixture
def held(log: Log) -> Held:
    return Held(log)


@pytest.fixture
def group(log: Log) -> Iterator[GroupCommit]:
    group = GroupCommit(log)
    yield group
    group.close()


@pytest.fixture
def slow(held: Held) -> Iterator[GroupCommit]:
    group = GroupCommit(held)
    yield group
    for _ in range(50):
        held.let.release()
    group.close()


def append(stream: Stream, *numbers: int, **more: Any) -> Append:
    return Append(stream, events(numbers), **more)


def accepted(results: Sequence[Appended | Exception]) -> list[int]:
    return [result.accepted for result in results if isinstance(result, Appended)]


def test_an_append_is_written_and_answered(group: GroupCommit, log: Log, stream: Stream) -> None:
    (result,) = group.submit([append(stream, 1, 2)], {"a": 1}).result()
    assert isinstance(result, Appended)
    assert (result.accepted, log.memory()["a"]) == (2, 1)


def test_all_that_waits_goes_into_the_next_commit_in_order(slow: GroupCommit, held: Held, stream: Stream) -> None:
    futures = [slow.submit([append(stream, 0)])]
    assert held.entered.acquire(timeout=60)
    futures += [slow.submit([append(stream, n), append(stream, n + 100)]) for n in range(1, 5)]
    for _ in range(2):
        held.let.release()
    results = [future.result(60) for future in futures]
    assert held.calls == [1, 8]
    assert [len(r) for r in results] == [1, 2, 2, 2, 2]
    assert everything(held._log, stream) == [0, 1, 101, 2, 102, 3, 103, 4, 104]


async def test_a_loop_awaits_its_own_result(group: GroupCommit, stream: Stream) -> None:
    results = await asyncio.gather(*(group.append([append(stream, n)]) for n in range(50)))
    assert all(accepted(result) == [1] for result in results)


async def test_an_error_stands_in_its_own_place_only(group: GroupCommit, stream: Stream) -> None:
    gap = group.append([append(stream, 1, producer=Producer("p", 0, 7))])
    fine = group.append([append(stream, 2)])
    (error,) = await gap
    assert isinstance(error, SequenceGapError)
    assert accepted(await fine) == [1]


async def test_what_a_loop_appends_is_on_its_way_before_it_is_awaited(
    slow: GroupCommit, held: Held, stream: Stream
) -> None:
    written = slow.append([append(stream, 1)])
    assert held.entered.acquire(timeout=60), "the writer has it, and this task has not let go of its loop"
    held.let.release()
    assert accepted(await written) == [1]


async def test_a_caller_that_has_gone_disturbs_nobody(group: GroupCommit, log: Log, stream: Stream) -> None:
    group.append([append(stream, 1)]).cancel()
    assert accepted(await group.append([append(stream, 2)])) == [1]
    assert everything(log, stream) == [1, 2]


def test_a_full_disk_is_told_to_every_caller_and_writing_goes_on(slow: GroupCommit, held: Held, stream: Stream) -> None:
    held.failing = [DiskFullError("full")]
    futures = [slow.submit([append(stream, 1)])]
    assert held.entered.acquire(timeout=60)
    held.let.release()
    with pytest.raises(DiskFullError):
        futures[0].result(60)
    later = slow.submit([append(stream, 2)])
    held.let.release()
    assert later.result(60)
    assert everything(held._log, stream) == [2]
    assert slow.unwritten_bytes == 0


def test_a_bad_append_fails_alone(slow: GroupCommit, held: Held, stream: Stream) -> None:
    first = slow.submit([append(stream, 0)])
    assert held.entered.acquire(timeout=60)
    bad = slow.submit([Append(stream, pa.record_batch({"x": [1]}))])
    good = slow.submit([append(stream, 1)])
    for _ in range(4):
        held.let.release()
    assert first.result(60)
    with pytest.raises(ValueError, match="columns"):
        bad.result(60)
    assert good.result(60)
    assert everything(held._log, stream) == [0, 1]


def test_keys_are_set_in_the_order_in_which_they_were_submitted(slow: GroupCommit, held: Held, stream: Stream) -> None:
    first = slow.submit([append(stream, 0)])
    assert held.entered.acquire(timeout=60)
    absent = Append(sets={"a": "conditional"}, requires=(KeyIs("a", None),))
    before, between, after = slow.submit([absent]), slow.submit([], {"a": 2}), slow.submit([append(stream, 1), absent])
    for _ in range(2):
        held.let.release()
    assert first.result(60)
    assert accepted(before.result(60)) == [0]
    assert between.result(60) == []
    taken, refused = after.result(60)
    assert accepted([taken]) == [1]
    assert isinstance(refused, ConditionError)
    assert held._log.memory()["a"] == 2


def test_above_the_bound_a_submission_is_refused_at_once(held: Held, stream: Stream) -> None:
    group = GroupCommit(held, unwritten_bytes=events([1]).nbytes * 2)
    taken = [group.submit([append(stream, n)]) for n in range(2)]
    with pytest.raises(OverloadedError):
        group.submit([append(stream, 9)])
    for _ in range(2):
        held.let.release()
    assert all(future.result(60) for future in taken)
    held.let.release()
    assert group.submit([append(stream, 2)]).result(60)
    group.close()
    assert everything(held._log, stream) == [0, 1, 2]


def test_a_single_append_above_the_bound_is_taken_when_nothing_waits(log: Log, stream: Stream) -> None:
    group = GroupCommit(log, unwritten_bytes=1)
    assert group.submit([append(stream, *range(100))]).result(60)
    group.close()


def test_nobody_waits_for_ever_and_what_was_submitted_is_written_all_the_same(held: Held, stream: Stream) -> None:
    group = GroupCommit(held, give_up_s=0.1)
    futures = [group.submit([append(stream, n)]) for n in range(3)]
    for future in futures:
        with pytest.raises(OutcomeUnknownError):
            future.result(60)
    assert group.unwritten_bytes > 0, "it still waits"
    for _ in range(3):
        held.let.release()
    assert group.submit([append(stream, 3)]).result(60)
    assert everything(held._log, stream) == [0, 1, 2, 3]
    assert (group.unwritten_bytes, group.problem) == (0, None)
    group.close()


def test_what_still_waits_for_its_turn_is_taken_back_where_that_is_wanted(held: Held, stream: Stream) -> None:
    group = GroupCommit(held, give_up_s=0.3, withdraw=True)
    first = group.submit([append(stream, 1)])
    assert held.entered.acquire(timeout=60)
    second = group.submit([append(stream, 2)])
    with pytest.raises(OutcomeUnknownError):
        first.result(60)
    with pytest.raises(LogUnavailableError, match="nothing of this was taken"):
        second.result(60)
    for _ in range(3):
        held.let.release()
    assert group.submit([append(stream, 3)]).result(60)
    assert everything(held._log, stream) == [1, 3]
    group.close()


async def test_a_task_waits_no_longer_than_a_thread(held: Held, stream: Stream) -> None:
    group = GroupCommit(held, give_up_s=0.1)
    with pytest.raises(OutcomeUnknownError):
        await group.append([append(stream, 1)])
    held.let.release()
    held.let.release()
    assert accepted(await group.append([append(stream, 2)])) == [1]
    assert everything(held._log, stream) == [1, 2]
    group.close()


def test_a_commit_takes_no_more_than_its_size(held: Held, stream: Stream) -> None:
    size = events([1]).nbytes
    group = GroupCommit(held, commit_bytes=3 * size)
    first = group.submit([append(stream, 0)])
    assert held.entered.acquire(timeout=60)
    rest = [group.submit([append(stream, n)]) for n in range(1, 8)]
    for _ in range(10):
        held.let.release()
    assert first.result(60)
    assert all(future.result(60) for future in rest)
    group.close()
    assert held.calls == [1, 3, 3, 1]


def test_two_metas_for_one_stream_become_two_commits(slow: GroupCommit, held: Held, stream: Stream) -> None:
    first = slow.submit([append(stream, 0)])
    assert held.entered.acquire(timeout=60)
    rest = [slow.submit([append(stream, n, meta={"batch": n})]) for n in (1, 2)]
    for _ in range(3):
        held.let.release()
    assert first.result(60)
    assert all(future.result(60) for future in rest)
    assert [c.meta for c in held._log.commits(stream, 0)] == [None, {"batch": 1}, {"batch": 2}]


def test_work_runs_on_the_writers_thread_and_its_error_comes_back(group: GroupCommit) -> None:
    assert group.run(lambda: threading.current_thread().name).result() == "group-commit"
    with pytest.raises(ZeroDivisionError):
        group.run(lambda: 1 // 0).result()
    assert group.run(lambda: 3).result() == 3


def test_slices_are_taken_between_commits(slow: GroupCommit, held: Held, stream: Stream) -> None:
    first = slow.submit([append(stream, 0)])
    assert held.entered.acquire(timeout=60)
    seen: list[int] = []

    def steps() -> Iterator[int]:
        for n in range(3):
            seen.append(len(everything(held._log, stream)))
            if n < 2:
                slow.submit([append(stream, n + 1)])
            yield n

    total = slow.sliced(steps())
    for _ in range(5):
        held.let.release()
    assert first.result(60)
    assert total.result(60) == 3
    assert seen == [1, 2, 3]


def test_a_call_goes_before_slices_that_wait(group: GroupCommit) -> None:
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def steps() -> Iterator[int]:
        begun.set()
        assert go_on.wait(60)
        for _ in range(5):
            order.append("slice")
            yield 1

    total = group.sliced(steps())
    assert begun.wait(60)
    called = group.run(lambda: order.append("call"))
    go_on.set()
    called.result(60)
    assert total.result(60) == 5
    assert order == ["slice", "call", *["slice"] * 4]


def test_an_error_in_a_slice_comes_back(group: GroupCommit) -> None:
    def steps() -> Iterator[int]:
        yield 1
        raise KeyError("broken")

    with pytest.raises(KeyError):
        group.sliced(steps()).result(60)
    assert group.run(lambda: 1).result(60) == 1


def test_close_writes_what_waits_and_refuses_what_comes_later(log: Log, stream: Stream) -> None:
    group = GroupCommit(log)
    futures = [group.submit([append(stream, n)]) for n in range(20)]
    total = group.sliced(iter([1, 2]))
    group.close()
    assert all(future.done() for future in futures)
    assert total.result() == 3
    assert len(everything(log, stream)) == 20
    with pytest.raises(LogUnavailableError):
        group.submit([append(stream, 1)])
    with pytest.raises(LogUnavailableError):
        group.run(lambda: 1)


def test_an_idle_log_is_tidied_up(monkeypatch: pytest.MonkeyPatch, log: Log, stream: Stream) -> None:
    from penstock.log import group_commit

    tidied = threading.Event()
    monkeypatch.setattr(group_commit, "TIDY_S", 0.01)

    def tidying() -> Iterator[int]:
        tidied.set()
        yield 0

    monkeypatch.setattr(log, "tidying", tidying)
    group = GroupCommit(log)
    assert tidied.wait(60)
    tidied.clear()
    group.submit([append(stream, 1)]).result(60)
    assert tidied.wait(60)
    group.close()


async def test_a_caller_that_stops_waiting_does_not_take_the_writer_along(group: GroupCommit) -> None:
    hold = threading.Event()
    first = group.run(hold.wait)
    gone = asyncio.ensure_future(asyncio.wrap_future(group.run(lambda: 1)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    hold.set()
    first.result(60)
    assert group.run(lambda: 2).result(60) == 2
