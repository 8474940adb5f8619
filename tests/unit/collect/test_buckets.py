from __future__ import annotations

from pathlib import Path

import pytest
from manual_clock import ManualClock
from running_edge import running
from shop_app import Order

from penstock import App
from penstock.errors import DeclarationError, TooManyError
from penstock.overload import Rate
from penstock.rights.allowances import Buckets


def test_the_rate_holds_over_time_and_the_burst_at_once() -> None:
    clock = ManualClock()
    buckets = Buckets("orders", Rate(10, 20), clock)
    taken = 0
    for _ in range(1_000):
        try:
            buckets.take("a", 1)
            taken += 1
        except TooManyError:
            clock.pass_s(0.01)
    assert taken == pytest.approx(20 + (1_000 - taken) * 0.01 * 10, abs=1)


def test_after_the_time_that_was_told_the_same_request_is_taken_and_not_before() -> None:
    clock = ManualClock()
    buckets = Buckets("orders", Rate(10, 20), clock)
    buckets.take("a", 15)
    with pytest.raises(TooManyError) as refused:
        buckets.take("a", 12)
    assert refused.value.retry_after_s == pytest.approx(0.7)
    clock.pass_s(0.69)
    with pytest.raises(TooManyError):
        buckets.take("a", 12)
    clock.pass_s(0.01)
    buckets.take("a", 12)


def test_a_request_larger_than_the_burst_is_taken_by_a_full_bucket_and_paid_off() -> None:
    clock = ManualClock()
    buckets = Buckets("orders", Rate(10, 20), clock)
    buckets.take("a", 100)
    with pytest.raises(TooManyError) as refused:
        buckets.check("a")
    assert refused.value.retry_after_s == pytest.approx(8.1)


def test_each_account_has_its_own_bucket_and_their_number_is_bounded() -> None:
    clock = ManualClock()
    buckets = Buckets("orders", Rate(1, 5), clock, most=100)
    for number in range(1_000):
        buckets.take(f"address/{number}", 5)
    assert len(buckets) <= 100
    with pytest.raises(TooManyError):
        buckets.take("address/999", 1)


async def test_a_sender_above_the_rate_gets_429_with_an_honest_retry_after(tmp_path: object) -> None:
    app = App("shop")
    app.stream("orders", Order, rate="2/s", burst=4)
    clock = ManualClock()
    async with running(app, tmp_path, clock=clock) as edge:  # type: ignore[operator]
        assert (await edge.post("orders", b'[{"order_id":1},{"order_id":2},{"order_id":3}]')).status == 200
        refused = await edge.post("orders", b'[{"order_id":4},{"order_id":5},{"order_id":6},{"order_id":7}]')
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "too_many", "2")
        assert edge.refused("orders", "too_many") == 1
        clock.pass_s(2)
        assert (await edge.post("orders", b'[{"order_id":4},{"order_id":5},{"order_id":6}]')).status == 200
        assert edge.metric("received", "orders") == 6
        assert len(edge.events("orders")) == 6


def test_a_rate_that_is_none_is_refused_with_the_users_line() -> None:
    app = App("shop")
    for rate in ("fast", "0/s", "10", "-1/s", "10/fortnight"):
        with pytest.raises(DeclarationError, match=r"test_buckets.py:\d+"):
            app.stream("orders", Order, rate=rate)
    with pytest.raises(DeclarationError, match="without a rate"):
        app.stream("orders", Order, burst=5)


async def test_what_was_not_taken_after_all_costs_no_tokens(tmp_path: Path) -> None:
    app = App("shop")
    app.stream("orders", Order, rate="1/hour", burst=3)
    one = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    async with running(app, tmp_path) as edge:
        with edge.full():
            for _ in range(5):
                assert (await edge.post("orders", b'{"order_id": 1}')).code == "disk_full"
        assert (await edge.post("orders", b'{"order_id": 1}', headers=one)).status == 200
        for _ in range(5):
            assert (await edge.post("orders", b'{"order_id": 1}', headers=one)).status == 204
        assert [(await edge.post("orders", b'{"order_id": 1}')).status for _ in range(3)] == [200, 200, 429]
