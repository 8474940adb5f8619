"""What comes over a connection, played by a script: parts, resets, stalls, refusals, silence, and clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from random import Random
from typing import Any

import pytest

from penstock.client.assembly import StreamAssembly, ViewAssembly, is_newer
from penstock.client.loop_thread import LoopThread
from penstock.client.read_request import ReadRequest
from penstock.client.subscription import Following, Means, Notice
from penstock.client.sync_client import Watch
from penstock.client.transport import OPEN
from penstock.client.verdict import TransientFailure, close_failure, failure_in, reply_failure
from penstock.client.view_rows import Changes
from penstock.errors import (
    BadQueryError,
    ForbiddenError,
    NotReadyError,
    OverBudgetError,
    PenstockError,
    PositionGoneError,
    UnauthorizedError,
    UnknownPathError,
    UnreachableError,
)
from penstock.position import Position
from penstock.protocol import stall


def at(offset: int, epoch: str = "e") -> str:
    return Position("view", "topics", epoch, (offset,)).token()


def batch(offset: int, **more: Any) -> dict[str, Any]:
    return {"type": "changes", "position": at(offset), "upserts": [{"topic": f"t{offset}"}], "deletes": []} | more


def whole(offset: int, **more: Any) -> dict[str, Any]:
    return {"type": "snapshot", "position": at(offset), "rows": []} | more


class Script:
    """A transport whose connections bring what a test says; an exception ends one, an event holds it up."""

    def __init__(self, *connections: list[Any]) -> None:
        self.connections = list(connections)
        self.resumed: list[str | None] = []
        self.open = 0

    async def messages(self, asking: ReadRequest, since: str | None) -> AsyncGenerator[dict[str, Any], None]:
        self.resumed.append(since)
        self.open += 1
        try:
            for one in self.connections.pop(0) if self.connections else [asyncio.Event()]:
                if isinstance(one, asyncio.Event):
                    await one.wait()
                elif isinstance(one, Exception):
                    raise one
                else:
                    yield one
        finally:
            self.open -= 1
        raise TransientFailure(UnreachableError("the script ended"))


class PlayedTime:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0
        self.slept: list[float] = []

    def now_us(self) -> int:
        return int(self.now_s * 1e6)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


class Played:
    """A reader of a script."""

    def __init__(self, *connections: list[Any], since: str | None = None, **more: Any) -> None:
        self.script, self.time, self.told = Script(*connections), PlayedTime(), list[Notice]()
        means = {"backoff_most_s": 10.0, "patience_s": None, "is_new_key": lambda: False} | more
        made = Means(self.script, self.told.append, self.time, Random(1), self.time.sleep, **means)
        self.seen: list[str] = []
        self.watch: Following[Changes] = Following(
            ReadRequest("view", "topics"), since, made, lambda p: ViewAssembly("topics", p), self.seen.append
        )

    async def next(self) -> Changes:
        return await asyncio.wait_for(anext(self.watch), 60)

    async def take(self, count: int) -> list[Changes]:
        return [await self.next() for _ in range(count)]


BROKEN = TransientFailure(UnreachableError("cut"))


async def test_a_break_is_resumed_from_the_last_position_also_one_that_came_alone() -> None:
    played = Played([whole(1), batch(2), BROKEN], [{"type": "position", "position": at(5)}, BROKEN], [batch(6)])
    assert [changes.position for changes in await played.take(3)] == [at(1), at(2), at(6)]
    assert played.script.resumed == [None, at(2), at(5)]
    assert played.seen == [at(1), at(2), at(5), at(6)]
    assert [notice.kind for notice in played.told] == ["broken", "back", "broken", "back"]


async def test_parts_of_a_snapshot_count_when_all_are_there_and_never_over_two_connections() -> None:
    parts = [whole(3, rows=[{"n": n}], part=n, parts=3) for n in (1, 2, 3)]
    played = Played([parts[0], parts[1], BROKEN], parts)
    (changes,) = await played.take(1)
    assert [row["n"] for row in changes.upserts] == [1, 2, 3]
    assert played.script.resumed == [None, None]


async def test_a_reset_is_told_with_the_snapshot_and_again_if_that_did_not_come() -> None:
    reset = {"type": "reset", "reason": "rebuilt"}
    played = Played([reset, whole(9, part=1, parts=2), BROKEN], [reset, whole(3)], since=at(7))
    (changes,) = await played.take(1)
    assert (changes.snapshot, changes.reset, changes.position) == (True, "rebuilt", at(3))
    assert played.script.resumed == [at(7), at(7)]
    assert [notice.kind for notice in played.told].count("reset") == 2


@pytest.mark.parametrize(
    "garbled",
    [
        [batch(2)],
        [batch(1)],
        [{"type": "position", "position": at(2)}],
        [whole(5, part=2, parts=3)],
        [{"type": "reset", "reason": "r"}, batch(9)],
        [whole(5, part=1, parts=2), batch(9)],
    ],
)
async def test_what_cannot_follow_is_not_given_and_the_connection_is_made_anew(garbled: list[Any]) -> None:
    played = Played([*garbled, batch(50)], [batch(3)], since=at(2))
    assert (await played.next()).position == at(3)
    assert played.script.resumed == [at(2), at(2)]


async def test_a_wait_that_is_given_up_in_the_very_moment_loses_nothing() -> None:
    """What was read while the wait was being cancelled is given to the next one."""
    go = asyncio.Event()
    played = Played([whole(1), go, batch(2), batch(3)])
    await played.next()
    waiting = asyncio.ensure_future(anext(played.watch))
    await asyncio.sleep(0)
    reading = played.watch._reading
    assert reading is not None
    go.set()
    while not reading.done():  # noqa: ASYNC110 the very moment is what this is about
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [changes.position for changes in await played.take(2)] == [at(2), at(3)]
    assert len(played.script.resumed) == 1


async def test_nothing_is_read_ahead_of_who_asks() -> None:
    played = Played([whole(1), batch(2), batch(3)])
    await played.next()
    await asyncio.sleep(0.02)
    assert played.watch.position == at(1)
    assert played.seen == [at(1)]


async def test_waits_grow_at_random_are_capped_and_begin_anew_with_a_message() -> None:
    played = Played(*[[BROKEN]] * 40, [whole(1), BROKEN], [batch(2)])
    await played.take(2)
    slept = played.time.slept
    assert all(seconds <= 10 for seconds in slept)
    assert max(slept[:3]) <= 0.4
    assert max(slept[10:40]) > 2
    assert len({round(s, 6) for s in slept[10:40]}) == 30, "full jitter"
    assert slept[40] <= 0.1
    assert {notice.kind for notice in played.told} == {"broken", "away", "back"}


async def test_who_accepts_connections_and_says_nothing_is_asked_ever_more_slowly() -> None:
    played = Played(*[[OPEN, BROKEN]] * 30, [OPEN, whole(1), BROKEN], [OPEN, asyncio.Event()])
    await played.next()
    assert max(played.time.slept[10:]) > 2
    assert not played.watch.lag_s
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(played.watch), 0.05)
    assert played.watch.connected, "it is back, though there is no news"
    assert played.told[-1].kind == "back"
    await played.watch.aclose()


async def test_a_server_that_asks_for_time_gets_it() -> None:
    busy = TransientFailure(NotReadyError("loading").after(7.0))
    played = Played([busy], [whole(1)])
    await played.next()
    assert 7 <= played.time.slept[0] < 8


async def test_patience_ends_with_the_reason() -> None:
    played = Played(*[[TransientFailure(NotReadyError("loading"))]] * 200, patience_s=20.0)
    with pytest.raises(NotReadyError):
        await played.next()
    assert 20 <= sum(played.time.slept) < 31


async def test_a_key_that_was_replaced_is_tried_and_the_same_one_is_not() -> None:
    keys = iter([True, False])
    refusal = UnauthorizedError("expired")
    played = Played([whole(1), refusal], [batch(2), refusal], is_new_key=lambda: next(keys))
    await played.take(2)
    with pytest.raises(UnauthorizedError):
        await played.next()
    assert played.script.resumed == [None, at(1)]


async def test_how_far_behind_is_told() -> None:
    played = Played(
        [
            whole(1),
            batch(2, accepted="2023-11-14T22:13:18.500Z"),
            stall({"batches": 3, "bytes": 9, "seconds": 4.5}),
            go := asyncio.Event(),
            batch(3),
            TransientFailure(UnreachableError("cut").after(30.0)),
        ],
        [batch(4), asyncio.Event()],
    )
    watch = played.watch
    await played.next()
    assert (watch.lag_s, watch.connected) == (None, True)
    await played.next()
    assert watch.lag_s == pytest.approx(1.5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watch), 0.05)
    assert watch.lag_s == pytest.approx(4.5)
    go.set()
    await played.next()
    assert watch.lag_s is None, "the stall is over, and nobody said how old this batch is"
    assert [(notice.kind, notice.text) for notice in played.told] == [("stalled", "too slow by 3 batches, 4.5 s")]
    await played.next()
    assert played.time.slept[0] >= 30
    assert watch.connected
    await watch.aclose()
    assert not watch.connected
    assert played.script.open == 0


async def test_a_slow_reader_of_a_stream_is_told_of_events() -> None:
    played = Played([stall({"events": 7, "bytes": 9, "seconds": 2.0}), whole(1)])
    await played.next()
    assert [notice.text for notice in played.told] == ["too slow by 7 events, 2.0 s"]


async def test_while_it_is_cut_off_a_reader_falls_behind() -> None:
    lags: list[float | None] = []
    played = Played([whole(1, accepted="2023-11-14T22:13:18.000Z"), BROKEN], *[[BROKEN]] * 9, [batch(2)])
    await played.next()
    sleep = played.time.sleep

    async def noted(seconds: float) -> None:
        await sleep(seconds)
        lags.append(played.watch.lag_s)

    object.__setattr__(played.watch._connections._means, "sleep", noted)
    await played.next()
    assert [lag is not None and lag >= 2.0 for lag in lags] == [True] * 10
    assert lags == sorted(lags)  # type: ignore[type-var]
    assert lags[-1] == pytest.approx(2.0 + sum(played.time.slept))


def test_events_of_a_stream_never_go_back_and_a_gap_is_an_error() -> None:
    def event(n: int) -> dict[str, Any]:
        return {"_position": Position("stream", "s", "e", (n, 4)).token()}

    page = {"type": "events", "events": [event(1), event(2)], "position": event(5)["_position"]}
    assembly = StreamAssembly("s", "start")
    assert [p for p, e in assembly.take(page)] == [event(1)["_position"], event(2)["_position"], page["position"]]
    with pytest.raises(UnreachableError, match="follow"):
        list(assembly.take({"type": "events", "events": [event(2)], "position": ""}))
    with pytest.raises(PositionGoneError):
        list(assembly.take({"type": "reset", "reason": "removed"}))


def test_positions_of_other_builds_and_of_unknown_forms_are_news() -> None:
    assert is_newer(at(2), at(1))
    assert not is_newer(at(1), at(1))
    assert not is_newer(at(1), at(2))
    assert is_newer(at(1, "f"), at(2))
    assert is_newer("tomorrow", at(2))


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (failure_in({"code": "bad_query", "message": "m"}), BadQueryError),
        (failure_in({"code": "over_budget", "message": "m"}), OverBudgetError),
        (failure_in({"code": "not_ready", "message": "m"}), TransientFailure),
        (failure_in({"code": "internal", "message": "m"}), TransientFailure),
        (failure_in({"code": "of_tomorrow", "message": "m"}), PenstockError),
        (reply_failure(401, {}, b"", "x"), UnauthorizedError),
        (reply_failure(403, {}, b"<html>", "x"), ForbiddenError),
        (reply_failure(404, {}, b"{}", "x"), UnknownPathError),
        (reply_failure(400, {}, b'{"error": {"code": "bad_query", "message": "m"}}', "x"), BadQueryError),
        (reply_failure(429, {"Retry-After": "3"}, b"", "x"), TransientFailure),
        (reply_failure(502, {}, b"<html>", "x"), TransientFailure),
        (reply_failure(302, {}, b"", "x"), UnreachableError),
        (close_failure(4401, "revoked"), UnauthorizedError),
        (close_failure(1008, ""), ForbiddenError),
        *((close_failure(code, ""), TransientFailure) for code in (1000, 1001, 1006, 1011, 1012, 1013, 4008, None)),
    ],
)
def test_what_passes_is_tried_again_and_the_rest_is_told(failure: Exception, kind: type[Exception]) -> None:
    assert type(failure) is kind
    if isinstance(failure, TransientFailure) and failure.why.retry_after_s is not None:
        assert failure.why.retry_after_s == 3.0


def test_a_thread_that_gives_up_waiting_in_the_very_moment_loses_nothing() -> None:
    """Batches come about as often as a thread gives up: some come while it does."""
    last = 600

    class Steady(Script):
        async def messages(self, asking: ReadRequest, since: str | None) -> AsyncGenerator[dict[str, Any], None]:
            for offset in range(1, last + 1):
                await asyncio.sleep(0.0005)
                yield batch(offset)

    background = LoopThread()
    played = Played()
    object.__setattr__(played.watch._connections._means, "transport", Steady())
    watch, seen, given_up = Watch(played.watch, background), list[str](), 0
    while len(seen) < last:
        try:
            seen.append(watch.next(0.0004).position)
        except TimeoutError:
            given_up += 1
        assert seen[-1:] in ([], [at(len(seen))]), "one is missing"
        assert watch.position == (seen[-1] if seen else None), "one that nobody got would be left out by who resumes"
    assert given_up > 50
    watch.close()
    background.close(played.watch.aclose())


def test_a_thread_that_gave_up_waiting_resumes_before_what_came_then() -> None:
    background = LoopThread()
    played = Played([whole(1), {"type": "position", "position": at(3)}, go := asyncio.Event(), batch(4)])
    watch = Watch(played.watch, background)
    assert watch.next(5).position == watch.position == at(1)
    with pytest.raises(TimeoutError):
        watch.next(0.05)
    assert watch.position == at(3), "a batch that changed nothing for this reader"
    background.run(_set(go))
    while played.watch.position != at(4):
        time.sleep(0.001)
    assert watch.position == at(3)
    assert watch.next(5).position == watch.position == at(4)
    watch.close()
    assert watch.position == at(4)
    background.close(played.watch.aclose())


async def _set(event: asyncio.Event) -> None:
    event.set()
