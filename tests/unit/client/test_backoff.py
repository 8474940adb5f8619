from __future__ import annotations

from random import Random

from penstock.client.backoff import Backoff, asked_s


def test_pauses_grow_at_random_up_to_the_longest() -> None:
    backoff = Backoff(5.0, Random(1))
    pauses = [backoff.pause_s() for _ in range(200)]
    assert all(pause <= 0.1 * 2**n for n, pause in enumerate(pauses[:5]))
    assert max(pauses) <= 5.0
    assert max(pauses[20:]) > 4.5
    assert min(pauses[20:]) < 0.5


def test_the_server_is_not_asked_before_it_said() -> None:
    backoff = Backoff(5.0, Random(1))
    assert all(7.0 <= backoff.pause_s(7.0) <= 7.5 for _ in range(100))
    assert backoff.pause_s(10.0**9) <= 3601


def test_a_date_is_seen_from_the_servers_own_clock() -> None:
    date = {"Retry-After": "Mon, 16 Nov 2026 02:00:10 GMT", "Date": "Mon, 16 Nov 2026 02:00:00 GMT"}
    assert asked_s(date, now_s=0) == 10
    assert asked_s({"Retry-After": "soon"}, 0) is None
    assert asked_s({"Retry-After": "-1"}, 0) is None
    assert asked_s({}, 0) is None
