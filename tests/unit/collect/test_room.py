from __future__ import annotations

import pytest
from manual_clock import ManualClock

from penstock.collect.limits.room import Room
from penstock.errors import OverloadedError


def room(most_bytes: int = 1_000, most_events: int = 1_000) -> Room:
    return Room(most_bytes, most_events, ManualClock())


def fill(of: Room, account: str, size: int = 10) -> int:
    """As much as the account gets in requests of this size."""
    held = 0
    while True:
        try:
            of.share(account).grow(size)
        except OverloadedError:
            return held
        held += size


def test_one_account_alone_gets_half_and_leaves_the_rest_for_those_who_come() -> None:
    made = room()
    assert fill(made, "flood") == 500
    assert fill(made, "other") == 250
    assert fill(made, "third") == 130
    assert made.taken_bytes <= 1_000


def test_two_that_flood_at_once_get_the_same() -> None:
    made = room()
    shares = {name: made.share(name) for name in ("a", "b")}
    for _ in range(200):
        for share in shares.values():
            try:
                share.grow(10)
            except OverloadedError:
                continue
    assert abs(shares["a"].bytes - shares["b"].bytes) <= 10
    assert shares["a"].bytes > 300


def test_a_first_request_may_be_as_large_as_what_is_free() -> None:
    made = room()
    made.share("one").grow(900)
    made.share("two").grow(100)
    with pytest.raises(OverloadedError):
        made.share("three").grow(1)


def test_events_are_bounded_too_but_one_body_alone_is_never_refused() -> None:
    made = room(most_events=100)
    big = made.share("a")
    big.hold(500)
    with pytest.raises(OverloadedError, match="unwritten"):
        made.share("b").hold(1)
    big.close()
    assert (made.taken_events, made.accounts) == (0, 0)
    made.share("b").hold(1)


def test_whoever_is_refused_is_told_when_half_will_be_free_at_the_speed_of_the_last_seconds() -> None:
    clock = ManualClock()
    made = Room(1_000, 1_000, clock)
    full = made.share("a")
    full.grow(1_000)
    for _ in range(4):
        clock.pass_s(1)
        made.give_back("a", 50, 0)
        made.take_bytes("b", 50)
        made._bytes["a"], made._bytes["b"] = 1_000, 0
    with pytest.raises(OverloadedError) as refused:
        made.share("c").grow(1)
    assert refused.value.retry_after_s == pytest.approx(500 / 50, rel=0.1)


def test_who_sends_nothing_leaves_nothing_behind() -> None:
    of = room()
    for n in range(10):
        share = of.share(f"address/{n}")
        share.grow(0)
        share.hold(0)
        share.close()
    assert (of.accounts, len(of._events)) == (0, 0)
