from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from manual_clock import ManualClock
from running_edge import Edge, running
from shop_app import Order

from penstock import App
from penstock.collect.limits.stream_guard import CALM_S, HALVE_S, Shedder
from penstock.collect.ways import without_ack
from penstock.config import Limits
from penstock.errors import DeclarationError, LaggingError


def shedder(shed: str, clock: ManualClock | None = None) -> Shedder:
    app = App("shop")
    stream = app.stream("orders", Order, key="country", overload="shed", shed=shed)
    assert stream.shed is not None
    return Shedder(stream, stream.shed, clock or ManualClock(), Random(3))


def kept(made: Shedder, events: list[Order]) -> list[int]:
    found = made.kept(len(events), lambda name: [getattr(event, name) for event in events])
    assert found is not None
    return found


def orders(count: int) -> list[Order]:
    return [Order(order_id=number, country=f"k{number}") for number in range(count)]


def test_the_part_is_halved_while_it_is_too_much_and_rises_slowly_when_it_is_calm() -> None:
    clock = ManualClock()
    made = shedder("random", clock)
    parts = []
    for _ in range(4):
        made.look(over=True)
        made.look(over=True)
        parts.append(made.part)
        clock.pass_s(HALVE_S)
    assert parts == [1 / 2, 1 / 4, 1 / 8, 1 / 16]
    made.look(over=False)
    assert made.part == 1 / 16
    clock.pass_s(CALM_S)
    for _ in range(3):
        made.look(over=False)
    assert made.part == 1 / 8
    for _ in range(3):
        clock.pass_s(CALM_S)
        made.look(over=False)
    assert made.part == 1.0


def test_at_random_keeps_about_the_part() -> None:
    made = shedder("random")
    made.part = 1 / 4
    assert len(kept(made, orders(4_000))) == pytest.approx(1_000, rel=0.1)


def test_a_sample_keeps_whole_keys_and_what_a_smaller_part_keeps_a_larger_keeps_too() -> None:
    made = shedder("sample")
    events = orders(4_000) * 2
    found = {}
    for part in (1 / 2, 1 / 4, 1 / 8):
        made.part = part
        stay = kept(made, events)
        assert set(stay) == {at % 4_000 for at in stay} | {at % 4_000 + 4_000 for at in stay}
        found[part] = set(stay)
        assert len(stay) == pytest.approx(8_000 * part, rel=0.15)
    assert found[1 / 8] < found[1 / 4] < found[1 / 2]


def test_by_priority_the_largest_are_kept_and_equal_ones_in_part() -> None:
    made = shedder("priority:order_id")
    made.part = 1 / 4
    events = orders(1_000)
    assert kept(made, events) == pytest.approx(list(range(750, 1_000)), abs=2)
    same = [Order(order_id=7, country="de")] * 1_000
    again = shedder("priority:order_id")
    again.part = 1 / 4
    assert len(kept(again, same)) == pytest.approx(250, rel=0.3)


def lag(edge: Edge, stream: str = "orders") -> None:
    edge.collect.pressure.guards[stream].lagging = LaggingError("the view is behind").after(7)


def app_with(shed: str | None, **options: Any) -> App:
    app = App("shop")
    more = {} if shed is None else {"overload": "shed", "shed": shed}
    app.stream("orders", Order, key="country", **more, **options)
    return app


async def test_what_is_shed_is_final_told_and_counted_in_the_log(tmp_path: Path) -> None:
    async with running(app_with("newest", id="order_id"), tmp_path) as edge:
        await edge.post("orders", b'{"order_id":1}')
        lag(edge)
        reply = await edge.post("orders", b'[{"order_id":1},{"order_id":2},{"order_id":"x"}]')
        assert (reply.status, reply.body["accepted"], reply.body["shed"]) == (200, 0, 2)
        assert reply.reasons == [(2, "wrong_type")]
        alone = await edge.post("orders", b'{"order_id":3}')
        assert (alone.status, alone.body["shed"], alone.body["rejected"]) == (200, 1, [])
        numbered = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
        assert (await edge.post("orders", b'{"order_id":4}', headers=numbered)).body["shed"] == 1
        assert (await edge.post("orders", b'{"order_id":4}', headers=numbered)).status == 204
        assert edge.metric("received", "orders") == 7
        assert (edge.metric("shed", "orders"), edge.metric("duplicate", "orders")) == (4, 1)
        edge.collect.pressure.guards["orders"].lagging = None
        edge.collect.pressure.look()
        assert (await edge.post("orders", b'{"order_id":5}')).body["accepted"] == 1
    async with running(app_with("newest", id="order_id"), tmp_path) as again:
        assert again.collect.counts.of("orders") == {"duplicates": 1, "dead": 1, "shed": 4}
        assert len(again.events("orders")) == 2


async def test_a_receipt_says_what_was_shed(tmp_path: Path) -> None:
    async with running(app_with("newest"), tmp_path) as edge:
        lag(edge)
        token = (await edge.post("orders", b'[{"order_id":1},{"order_id":2}]', query="?ack=none")).body["ack"]
        found = await edge.ack(token, "?wait=60")
        assert (found.body["accepted"], found.body["shed"]) == (0, 2)
    async with running(app_with("newest"), tmp_path) as again:
        assert (await again.ack(token)).body == found.body


async def test_a_room_that_is_half_full_is_too_much_for_a_stream_that_sheds_and_not_for_others(tmp_path: Path) -> None:
    app = app_with("newest")
    app.stream("patient", Order)
    async with running(app, tmp_path, limits=Limits(unwritten_bytes=100_000)) as edge:
        edge.collect.pressure.room.share("somebody").grow(60_000)
        assert (await edge.post("orders", b'{"order_id":1}')).body["shed"] == 1
        assert (await edge.post("patient", b'{"order_id":1}')).body["accepted"] == 1
        assert edge.collect.pressure.status()["because"] == [{"stream": "orders", "shed": "newest", "part": 0.0}]


async def test_without_shedding_senders_wait_and_are_told_how_long(tmp_path: Path) -> None:
    async with running(app_with(None), tmp_path) as edge:
        lag(edge)
        reply = await edge.post("orders", b'{"order_id":1}')
        assert (reply.status, reply.code, reply.headers["Retry-After"]) == (503, "lagging", "7")
        assert (edge.refused("orders", "lagging"), edge.metric("received", "orders")) == (1, 0)


async def test_a_sender_that_does_not_wait_for_an_ack_is_taken_when_the_lag_is_over(tmp_path: Path) -> None:
    async with running(app_with(None), tmp_path) as edge:
        token = (await edge.post("orders", b'{"order_id":1}', query="?ack=none")).body["ack"]
        assert (await edge.ack(token, "?wait=60")).body["accepted"] == 1
        guard = edge.collect.pressure.guards["orders"]
        real, guard.check = guard.check, lambda account: None  # type: ignore[method-assign]
        guard.lagging = LaggingError("behind").after(0.1)
        token = (await edge.post("orders", b'{"order_id":2}', query="?ack=none")).body["ack"]
        await asyncio.sleep(0.15)
        assert edge.metric("received", "orders") == 1
        guard.lagging, guard.check = None, real  # type: ignore[method-assign]
        assert (await edge.ack(token, "?wait=60")).body["accepted"] == 1


async def let_go_while_it_lags(
    edge: Edge, retry_after_s: float, body: bytes = b'[{"order_id":1},{"order_id":2}]'
) -> str:
    """Two events that wait behind the door."""
    guard = edge.collect.pressure.guards["orders"]
    guard.check = lambda account: None  # type: ignore[method-assign]
    guard.lagging = LaggingError("behind").after(retry_after_s)
    return str((await edge.post("orders", body, query="?ack=none")).body["ack"])


async def test_what_waits_without_an_ack_is_written_when_the_edge_stops(tmp_path: Path) -> None:
    a_lag_s = 3600.0
    async with asyncio.timeout(60), running(app_with(None, rate="1/hour", burst=2), tmp_path) as edge:
        token = await let_go_while_it_lags(edge, a_lag_s)
        await asyncio.sleep(0.1)
    async with running(app_with(None), tmp_path) as again:
        assert (await again.ack(token)).body["accepted"] == 2


async def test_what_waited_in_vain_is_shed_by_its_number_of_events_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(without_ack, "PATIENCE_S", 0.2)
    async with running(app_with(None), tmp_path) as edge:
        token = await let_go_while_it_lags(edge, 0.1)
        lost = await edge.ack(token, "?wait=60")
        assert (lost.status, lost.body["error"]["detail"]) == (404, "lagging: behind")
        assert edge.metric("shed", "orders") == edge.metric("received", "orders") == 2
        assert edge.collect.counts.of("orders")["shed"] == 2
    async with running(app_with(None), tmp_path) as again:
        assert again.collect.counts.of("orders")["shed"] == 2


def test_rules_that_cannot_work_are_refused_with_the_users_line() -> None:
    app = App("shop")
    for options in (
        {"overload": "panic"},
        {"overload": "shed", "shed": "oldest"},
        {"overload": "shed", "shed": "priority"},
        {"overload": "shed", "shed": "random:order_id"},
        {"overload": "shed", "shed": "sample"},
        {"shed": "random"},
    ):
        with pytest.raises(DeclarationError, match=r"test_shedding.py:\d+"):
            app.stream("orders", Order, **options)  # type: ignore[arg-type]
    app.stream("orders", Order, overload="shed", shed="priority:country")
    assert [problem.code for problem in app.declared().problems()] == ["bad_priority"]
