from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock
from running_edge import Edge, running
from shop_app import Order

from penstock import App
from penstock.collect.limits.lag import Lag, LagReading, Marks
from penstock.errors import DeclarationError
from penstock.overload import MaxLag
from penstock.position import Frontier

S = 1_000_000


def test_senders_wait_above_the_mark_and_until_half_of_it() -> None:
    lag = Lag("v", "s", MaxLag(events=100), Marks())
    assert [lag.look(LagReading(at, 100 + at, 0)) for at in range(3)] == [False, True, False]
    assert lag.over
    assert lag.since_us == 1
    assert not lag.look(LagReading(3, 102, 42))
    assert lag.over
    assert lag.look(LagReading(4, 102, 53))
    assert not lag.over


def test_a_flow_that_is_stopped_by_an_error_does_not_count() -> None:
    lag = Lag("v", "s", MaxLag(events=100), Marks())
    lag.look(LagReading(0, 500, 0))
    assert lag.over
    assert lag.look(LagReading(1, 500, 0, counts=False))
    assert not lag.over


def test_a_lag_in_time_is_the_age_of_the_oldest_event_that_is_not_absorbed() -> None:
    marks = Marks()
    lag = Lag("v", "s", MaxLag(us=10 * S), marks)
    for second in range(30):
        marks.add(second * S, second * 100)
    lag.look(LagReading(30 * S, 2_900, 2_300))
    assert lag.us == 6 * S
    assert not lag.over
    assert lag.look(LagReading(30 * S, 2_900, 1_800))
    assert lag.us == 11 * S
    assert not lag.look(LagReading(30 * S, 2_900, 2_900)) or lag.us == 0


def test_retry_after_is_about_when_half_of_the_mark_will_be_reached() -> None:
    lag = Lag("v", "s", MaxLag(events=1_000), Marks())
    absorbed, end, now = 0, 3_000, 0
    for _ in range(50):
        lag.look(LagReading(now, end, absorbed))
        now, absorbed = now + S // 5, absorbed + 20
    told = lag.retry_after_s
    began = now - S // 5
    while lag.over:
        lag.look(LagReading(now, end, absorbed))
        now, absorbed = now + S // 5, absorbed + 20
    assert told == pytest.approx((now - S // 5 - began) / S, rel=0.1)


def test_marks_stay_few_and_old_ones_are_only_thinned_out() -> None:
    marks = Marks()
    for at in range(100_000):
        marks.add(at * S, at)
    assert len(marks._us) <= 4_096
    for length in (10, 1_000, 50_000, 99_000):
        came = marks.came_us(length)
        assert came is not None
        assert came / S == pytest.approx(length, abs=100)
    marks.forget(99_999)
    assert marks.came_us(99_000) is None
    marks.add(200_000 * S, 100_001)
    marks.add(200_001 * S, 100_002)
    assert marks.came_us(100_001) == 200_001 * S


def test_a_lag_that_grows_for_minutes_is_told_from_one_that_goes_away() -> None:
    growing, falling = (Lag("v", "s", MaxLag(events=100), Marks()) for _ in range(2))
    for second in range(200):
        growing.look(LagReading(second * S, 1_000 + second * 10, second * 5))
        falling.look(LagReading(second * S, 10_000, second * 40))
    assert growing.grows(120)
    assert not falling.grows(120)
    assert not growing.grows(300)


class Flow:
    """Stands for a view: absorbs what a test says."""

    def __init__(self) -> None:
        self.frontier: Frontier = {}
        self.counts = True

    def __call__(self, view: str) -> tuple[Frontier, bool]:
        return self.frontier, self.counts


class Pausing:
    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def pause(self, stream: str, reason: str) -> None:
        self.told.append(("pause", stream, reason))

    def resume(self, stream: str) -> None:
        self.told.append(("resume", stream))


def lagging_app(max_lag: Any = 3) -> App:
    app = App("shop")
    app.stream("orders", Order)
    app.stream("visits", Order)

    @app.flow
    def large(orders: Any) -> Any:
        return orders

    @app.view(key="order_id", max_lag=max_lag)
    def top(large: Any) -> Any:
        return large

    return app


async def test_a_view_that_lags_closes_its_root_stream_names_itself_and_opens_it_again(tmp_path: Path) -> None:
    flow, pulls, clock = Flow(), Pausing(), ManualClock()
    async with running(lagging_app(), tmp_path, clock=clock, absorbed=flow) as edge:
        pressure = edge.collect.pressure
        assert pressure._lags is not None
        pressure._lags.pulls = pulls
        await four_orders(edge)
        pressure.look()
        refused = await edge.post("orders", b'{"order_id":5}')
        assert (refused.status, refused.code) == (503, "lagging")
        assert "'top'" in refused.body["error"]["message"]
        assert (await edge.post("visits", b'{"order_id":5}')).status == 200
        assert pulls.told[0][:2] == ("pause", "orders")
        (because,) = pressure.status()["because"]
        assert (because["stream"], because["view"], because["lag_events"]) == ("orders", "top", 4)
        assert (pressure.status()["state"], because["max_lag"]) == ("limiting", "3 events")

        flow.counts = False
        pressure.look()
        assert pressure.status()["state"] == "ok"
        flow.counts = True
        pressure.look()
        end = edge.collect.intakes["orders"].end
        flow.frontier = {"orders": end}
        pressure.look()
        assert pulls.told[-1] == ("resume", "orders")
        assert (await edge.post("orders", b'{"order_id":5}')).status == 200


async def test_limits_that_go_on_and_off_are_thrashing_and_a_growing_lag_is_lagging(tmp_path: Path) -> None:
    flow, clock = Flow(), ManualClock()
    async with running(lagging_app(), tmp_path, clock=clock, absorbed=flow) as edge:
        pressure = edge.collect.pressure
        await four_orders(edge)
        end = edge.collect.intakes["orders"].end
        for _ in range(5):
            flow.frontier = {}
            pressure.look()
            flow.frontier = {"orders": end}
            pressure.look()
            clock.pass_s(1)
        assert pressure.status()["state"] == "thrashing"
        assert "raise max_lag" in pressure.status()["hint"]
        flow.frontier = {}
        for _ in range(200):
            clock.pass_s(1)
            pressure.look()
        assert pressure.status()["state"] == "lagging"
        assert "slower than what comes" in pressure.status()["hint"]


async def four_orders(edge: Edge) -> None:
    await edge.post("orders", b'[{"order_id":1},{"order_id":2},{"order_id":3},{"order_id":4}]')


def test_a_max_lag_that_is_none_is_refused() -> None:
    for wrong in ("soon", 0, "0 seconds", -5):
        with pytest.raises(DeclarationError):
            lagging_app(wrong)


async def test_pulls_into_the_streams_of_a_lagging_view_pause_and_go_on(tmp_path: Path) -> None:
    flow, app = Flow(), lagging_app()
    (orders, visits) = app.declared().streams
    app.pull(orders, "ws://127.0.0.1:9/orders")
    app.pull(visits, "ws://127.0.0.1:9/visits")
    async with running(app, tmp_path, clock=ManualClock(), absorbed=flow) as edge:
        await four_orders(edge)
        edge.collect.pressure.look()
        paused, free = edge.collect.pulls.status()
        assert "'top' is behind" in paused["paused"]
        assert free["paused"] is None
        flow.frontier = {"orders": edge.collect.intakes["orders"].end}
        edge.collect.pressure.look()
        assert edge.collect.pulls.status()[0]["paused"] is None
