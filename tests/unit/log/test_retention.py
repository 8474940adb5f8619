from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.declaration import Retention
from penstock.log.log import Bounds, Commit, Log, Stream
from penstock.log.retention import Decision, decide, retaining
from penstock.testing.contracts.log_events import ManualClock, everything, put

DAY_US = 86_400_000_000


def commits(count: int, size: int = 100) -> list[Commit]:
    return [Commit(n, (n + 1,), 1, n + 1, None, None, None, n * DAY_US, None, size) for n in range(count)]


def bounds(oldest: list[Commit]) -> Bounds:
    return Bounds((0,), (len(oldest),), 0, len(oldest), len(oldest), sum(c.bytes for c in oldest), None)


def ask(
    retention: Retention, count: int = 10, floor: int | None = None, now: int = 10, most_bytes: int | None = None
) -> Decision:
    oldest = commits(count)
    return decide(retention, bounds(oldest), oldest, floor, now * DAY_US, most_bytes)


def test_without_retention_nothing_goes() -> None:
    assert ask(Retention()) == Decision(0)


def test_what_is_older_than_the_age_goes() -> None:
    assert ask(Retention(age_us=3 * DAY_US)) == Decision(7)


def test_what_is_beyond_the_size_goes() -> None:
    assert ask(Retention(bytes=450)) == Decision(6)
    assert ask(Retention(bytes=1000)) == Decision(0)


def test_the_stricter_of_the_two_counts() -> None:
    assert ask(Retention(age_us=3 * DAY_US, bytes=100)) == Decision(9)


def test_the_newest_commit_stays() -> None:
    assert ask(Retention(age_us=1, bytes=1), now=1000) == Decision(9)


def test_what_a_flow_has_not_absorbed_is_waited_for() -> None:
    assert ask(Retention(age_us=3 * DAY_US), floor=4) == Decision(4)
    assert ask(Retention(bytes=600), floor=2) == Decision(2)
    assert ask(Retention(age_us=3 * DAY_US), floor=8) == Decision(7)


def test_above_the_most_it_goes_on_regardless_and_says_so() -> None:
    assert ask(Retention(bytes=400), floor=0) == Decision(2, overrun=True)
    assert ask(Retention(bytes=400), floor=0, most_bytes=500) == Decision(5, overrun=True)
    assert ask(Retention(age_us=3 * DAY_US), floor=1, most_bytes=600) == Decision(4, overrun=True)


@given(
    age=st.none() | st.integers(0, 12),
    size=st.none() | st.integers(0, 1200),
    floor=st.none() | st.integers(0, 10),
    most=st.none() | st.integers(0, 1200),
    count=st.integers(0, 10),
)
def test_a_decision_never_passes_the_floor_in_silence(
    age: int | None, size: int | None, floor: int | None, most: int | None, count: int
) -> None:
    retention = Retention(None if age is None else age * DAY_US, size)
    decision = ask(retention, count, floor, most_bytes=most)
    assert 0 <= decision.before <= max(count - 1, 0)
    if floor is not None:
        assert decision.overrun == (decision.before > floor)


def test_retaining_trims_in_slices_and_warns(
    log: Log, stream: Stream, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(200):
        put(log, stream, [n])
    size = log.bounds(stream).bytes
    with caplog.at_level(logging.WARNING):
        steps = list(retaining(log, stream, Retention(bytes=size // 4), 150, clock.now_us()))
    assert len(steps) > 1
    assert not caplog.records
    assert everything(log, stream) == list(range(150, 200))
    with caplog.at_level(logging.WARNING):
        assert sum(retaining(log, stream, Retention(bytes=size // 100), 150, clock.now_us())) > 40
    assert "not every flow has absorbed" in caplog.text
