"""Endpoints that fail in every way: in order, at least once with the same id, nothing skipped, others unaffected."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web
from edge import DEADLINE_S, eventually
from fake_flows import FakeFlows, topic
from hooked import Hooked, PlayedClock, Taker, flowing, hang, hang_up, hooked, never_ending, redirect, taking

from penstock.config import Limits
from penstock.serve.webhooks import progress_keeper
from penstock.serve.webhooks.endpoint import Lanes
from tests.certificates import Authority


async def commits(edge: Hooked, flows: FakeFlows, build: Any, numbers: range) -> None:
    for number in numbers:
        flows.commit(build, [topic("jazz", number)])
    held = edge.views.view("topics")
    await held.until(
        lambda: held.content is not None and held.content.rows.get(("jazz",), (0, 0))[1] == numbers[-1], 60
    )


def numbers(taker: Taker) -> list[int]:
    return [body["row"]["rsvps"] for body in taker.bodies]


@pytest.mark.parametrize(
    "wrong", [500, 404, 429, hang, hang_up, redirect], ids=lambda how: getattr(how, "__name__", str(how))
)
async def test_what_was_not_taken_is_repeated_with_the_same_id_before_anything_else(tmp_path: Path, wrong: Any) -> None:
    clock = PlayedClock()
    running = hooked(tmp_path, clock=clock, timeout_s=0.3)
    async with flowing(tmp_path) as flows, taking() as taker, taking() as other, running as edge:
        build = flows.build()
        made = await edge.hook(taker)
        await edge.hook(other)
        taker.answers.extend([200, wrong, wrong, wrong])
        await commits(edge, flows, build, range(1, 6))
        await other.has(5)
        await eventually(lambda: edge.endpoint(made["id"]).state == "paused", "it is not paused")
        assert numbers(taker) == [1]
        assert numbers(other) == [1, 2, 3, 4, 5]
        for delay in (6.1, 36.1, 145):
            await clock.advance(delay, edge.quiet)
        await taker.has(5)
        assert numbers(taker) == [1, 2, 3, 4, 5]
        tried = [body["row"]["rsvps"] for _, body in taker.tried]
        assert [number for number, _ in groupby(tried)] == [1, 2, 3, 4, 5], "something overtook what was not taken"
        assert tried.count(2) == 4
        assert len({id for id, body in taker.tried if body["row"]["rsvps"] == 2}) == 1
        _, shown = await edge.ask("GET", f"/webhooks/{made['id']}/deliveries")
        (second,) = [d for d in shown["deliveries"] if d["id"] == taker.taken[1][0]]
        assert second["delivered"] is True
        # a connection that was used before and is closed by the other side is opened anew at once
        tries = 3 if wrong is hang_up else 4
        assert [a["failure"] is None for a in second["newest"]] == [True, *[False] * (tries - 1)]


async def test_an_endless_answer_is_cut_and_its_status_counts(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        await edge.hook(taker)
        taker.answers.append(never_ending)
        await commits(edge, flows, build, range(1, 3))
        await taker.has(1)
        assert [body["row"]["rsvps"] for _, body in taker.tried] == [1, 2]


async def test_an_answer_that_only_announces_itself_is_given_up(tmp_path: Path) -> None:
    """Replies of 1xx without end: each would be read, for as long as an attempt may take."""
    sent = 0

    async def announcing(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        transport = request.transport
        while transport is not None and not transport.is_closing():
            transport.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")  # type: ignore[attr-defined]
            sent += 1
            await asyncio.sleep(0.001)
        return web.Response()

    clock = PlayedClock()
    running = hooked(tmp_path, clock=clock, timeout_s=DEADLINE_S)
    async with flowing(tmp_path) as flows, taking() as taker, running as edge:
        build = flows.build()
        await edge.hook(taker)
        taker.answers.append(announcing)
        await commits(edge, flows, build, range(1, 3))
        await eventually(lambda: len(taker.tried) == 1 and sent > 0, "it was not asked")
        failures = partial(edge.observer.value, "penstock_serve_webhook_failures_total", reason="connection")
        await eventually(lambda: failures() == 1, "it is still read")
        await clock.advance(60, edge.quiet)
        await taker.has(2)
        assert [body["row"]["rsvps"] for _, body in taker.tried] == [1, 1, 2]


async def test_a_status_that_came_in_time_counts_however_slowly_its_body_follows(tmp_path: Path) -> None:
    async def trickling(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1.2)
        response = web.StreamResponse(status=200)
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)

    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, timeout_s=2.0) as edge:
        build = flows.build()
        await edge.hook(taker)
        taker.answers.append(trickling)
        await commits(edge, flows, build, range(1, 3))
        await taker.has(1)
        assert [body["row"]["rsvps"] for _, body in taker.tried] == [1, 2]
        assert edge.observer.value("penstock_serve_webhook_failures_total", reason="timeout") == 0


async def test_an_endpoint_that_is_down_for_an_hour_misses_nothing(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, taking() as other, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        await edge.hook(other)
        await commits(edge, flows, build, range(1, 4))
        await taker.has(3)
        await taker.stop()
        for minute in range(60):
            await commits(edge, flows, build, range(4 + minute, 5 + minute))
            await clock.advance(60, edge.quiet)
        assert edge.endpoint(made["id"]).state == "paused"
        assert 4 < edge.endpoint(made["id"]).trouble.attempts < 12
        assert numbers(other) == list(range(1, 64))
        assert edge.endpoint(made["id"]).lag_s() >= 3_500
        await taker.start()
        await clock.advance(3 * 3_600, edge.quiet)
        await taker.has(63)
        assert numbers(taker) == list(range(1, 64))
        assert edge.endpoint(made["id"]).trouble is None


async def test_after_three_days_it_is_disabled_and_goes_on_from_its_place_when_enabled(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        taker.always = 503
        began = clock.us
        await commits(edge, flows, build, range(1, 4))
        await eventually(lambda: len(taker.tried) == 1, "nothing was tried")
        await clock.advance(3 * 86_400 - 60, edge.quiet)
        assert edge.endpoint(made["id"]).webhook.disabled is None
        tries = len(taker.tried)
        assert tries < 40
        await clock.advance(61, edge.quiet)
        assert len(taker.tried) == tries + 1, "the last try is at the end of the three days"
        await eventually(lambda: edge.endpoint(made["id"]).state == "disabled", "it is not disabled")
        _, shown = await edge.ask("GET", f"/webhooks/{made['id']}")
        assert (shown["enabled"], shown["disabled"]["reason"]) == (False, "failing")
        assert edge.observer.value("penstock_serve_webhooks_disabled_total", reason="failing") == 1
        await clock.advance(86_400, edge.quiet)
        assert len(taker.tried) == tries + 1
        taker.always = 200
        status, _ = await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": True})
        assert status == 200
        await taker.has(3)
        assert numbers(taker) == [1, 2, 3]
        assert clock.us - began > 4 * 86_400 * 1e6


async def test_a_410_disables_at_once_with_the_position_kept(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path, clock=clock) as edge:
            build = flows.build()
            made = await edge.hook(taker)
            taker.answers.extend([200, 410])
            await commits(edge, flows, build, range(1, 5))
            await eventually(lambda: edge.endpoint(made["id"]).state == "disabled", "it is not disabled")
            assert len(taker.tried) == 2
        async with hooked(tmp_path, clock=clock) as edge:
            _, shown = await edge.ask("GET", f"/webhooks/{made['id']}")
            assert shown["disabled"]["reason"] == "gone"
            await asyncio.sleep(0.1)
            assert len(taker.tried) == 2
            await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": True})
            await taker.has(4)
            assert numbers(taker) == [1, 2, 3, 4]


async def test_retry_after_is_honoured_within_bounds(tmp_path: Path) -> None:
    clock = PlayedClock()

    async def later(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": "1000"})

    async def never(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": "99999999"})

    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        await edge.hook(taker)
        taker.answers.extend([later, never])
        await commits(edge, flows, build, range(1, 2))
        await eventually(lambda: len(taker.tried) == 1, "nothing was tried")
        await clock.advance(999, edge.quiet)
        assert len(taker.tried) == 1
        await clock.advance(1.5, edge.quiet)
        assert len(taker.tried) == 2
        await clock.advance(6 * 3_600, edge.quiet)
        assert numbers(taker) == [1]


async def test_who_falls_behind_the_history_gets_one_reset_and_goes_on_from_its_position(tmp_path: Path) -> None:
    clock = PlayedClock()
    limits = Limits(history_us=0, history_bytes=3_000, history_bytes_most=3_000)
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock, limits=limits) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        await commits(edge, flows, build, range(1, 2))
        await taker.has(1)
        taker.always = 500
        await commits(edge, flows, build, range(2, 60))
        _, read = await edge.ask("GET", "/views/topics")
        await clock.advance(200, edge.quiet)
        await commits(edge, flows, build, range(60, 61))  # its retries are of the same position all the same
        await clock.advance(700, edge.quiet)
        taker.always = 200
        await clock.advance(4_000, edge.quiet)
        await taker.has(3)
        assert [body["type"] for body in taker.bodies] == ["upsert", "reset", "upsert"]
        resets = [(id, body["position"]) for id, body in taker.tried if body["type"] == "reset"]
        assert len(resets) >= 2
        assert len(set(resets)) == 1, "the reset was not the same over its retries"
        assert taker.bodies[1]["position"] == read["position"]
        assert edge.observer.value("penstock_serve_webhook_resets_total") == 1
        await commits(edge, flows, build, range(61, 63))
        await taker.has(5)
        assert [body["row"]["rsvps"] for body in taker.bodies[2:]] == [60, 61, 62]
        assert made["id"] in edge.webhooks._endpoints


@pytest.mark.parametrize("shape", ["change", "batch", "digest"])
async def test_a_rebuilt_view_resets_its_webhooks(tmp_path: Path, shape: str) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        digest = {"digest_s": 10} if shape == "digest" else {}
        await edge.hook(taker, shape=shape, **digest)
        await commits(edge, flows, build, range(1, 2))
        await clock.advance(10, edge.quiet)
        await taker.has(1)
        again = flows.build()
        await commits(edge, flows, again, range(7, 8))
        await clock.advance(10, edge.quiet)
        await eventually(lambda: "reset" in [b["type"] for b in taker.bodies], "no reset came")
        await commits(edge, flows, again, range(8, 10))
        await clock.advance(20, edge.quiet)
        newest = '"rsvps":9'
        await eventually(lambda: newest in taker.raw[-1].decode(), "it did not go on")
        assert [b["type"] for b in taker.bodies].count("reset") == 1


async def test_progress_survives_a_restart_and_so_does_trouble(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path, clock=clock) as edge:
            build = flows.build()
            made = await edge.hook(taker)
            taker.answers.extend([200, 200])
            taker.always = 500
            await commits(edge, flows, build, range(1, 5))
            await eventually(lambda: len(taker.tried) == 3, "it was not tried")
            await clock.advance(40, edge.quiet)
            trouble = edge.endpoint(made["id"]).trouble
            assert trouble.attempts >= 2
        tried = len(taker.tried)
        taker.always = 200
        async with hooked(tmp_path, clock=clock) as edge:
            await edge.quiet()
            assert edge.endpoint(made["id"]).trouble == trouble
            assert len(taker.tried) == tried, "a restart does not make it hurry"
            await clock.advance(200, edge.quiet)
            await taker.has(4)
            assert numbers(taker) == [1, 2, 3, 4]
        async with hooked(tmp_path, clock=clock) as edge:
            await commits(edge, flows, build, range(5, 6))
            await taker.has(5)
            assert numbers(taker) == [1, 2, 3, 4, 5], "what was delivered before the restart came again"


async def test_batches_that_do_not_concern_it_move_its_place_without_a_delivery(tmp_path: Path) -> None:
    """Else a webhook with a rare filter would fall behind the history, and be reset for nothing."""
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        made = await edge.hook(taker, where="topic = 'rare'")
        endpoint = edge.endpoint(made["id"])
        await eventually(lambda: endpoint.state == "level", "it is not level")
        before = endpoint.progress().place.position
        await commits(edge, flows, build, range(1, 6))
        _, read = await edge.ask("GET", "/views/topics")
        assert read["position"] != before

        def moved() -> bool:
            asyncio.ensure_future(edge.serving.hub.announce_all())  # noqa: RUF006
            return endpoint.progress().place.position == read["position"]

        await eventually(moved, "its place did not move")
        assert endpoint.moved
        assert taker.tried == []


# Others


async def test_hanging_endpoints_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """More endpoints hang than there are places under way; one that is well gets everything at once."""
    running = hooked(tmp_path, timeout_s=60.0)
    async with flowing(tmp_path) as flows, taking() as stuck, taking() as well, running as edge:
        edge.webhooks._works.__dict__["lanes"] = Lanes(fast=4, slow=2, moment_s=0.2)
        build = flows.build()
        for number in range(10):
            await edge.hook(stuck.url(f"/{number}"))
        await edge.hook(well)
        await commits(edge, flows, build, range(1, 2))
        await well.has(1)
        await stuck.has(10)
        stuck.always = hang
        await commits(edge, flows, build, range(2, 12))
        await well.has(11)  # before any of them has answered
        assert numbers(well) == list(range(1, 12))
        assert edge.observer.value("penstock_serve_webhook_failures_total", reason="crowded") > 0


async def test_new_endpoints_that_hang_take_no_place_of_those_that_are_known_to_be_well(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as stuck, taking() as well, hooked(tmp_path, timeout_s=30) as edge:
        edge.webhooks._works.__dict__["lanes"] = Lanes(fast=1, slow=2, moment_s=30)
        build = flows.build()
        await edge.hook(well)
        await commits(edge, flows, build, range(1, 2))
        await well.has(1)
        stuck.always = hang
        for number in range(10):
            await edge.hook(stuck.url(f"/{number}"))
        await commits(edge, flows, build, range(2, 4))
        await well.has(3)
        await eventually(lambda: len(stuck.tried) == 2, "the slow lane is not full")


async def test_many_places_are_written_down_in_several_commits(tmp_path: Path) -> None:
    """Gathering thousands at once would hold up the loop."""
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        flows.build()
        ids = [(await edge.hook(taker))["id"] for _ in range(3)]
        written: list[set[str]] = []
        real = edge.webhooks._keeper._remember

        async def remember(values: Any) -> None:
            written.append({key.split("/")[1] for key in values})
            await real(values)

        with patch.object(progress_keeper, "TOGETHER", 2):
            edge.webhooks._keeper._remember = remember
            for id in ids:
                edge.webhooks._keeper.note(id)
            await eventually(lambda: sum(map(len, written)) == 3, "not all were written")
        assert sorted(map(len, written)) == [1, 2]
        assert set().union(*written) == set(ids)


async def test_hundreds_of_idle_webhooks_do_nothing(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        await commits(edge, flows, build, range(1, 2))
        for number in range(300):
            made = await edge.hook(taker, where=f"topic = 'none{number % 3}'", stream=None, view="topics")
        await eventually(lambda: edge.endpoint(made["id"]).state == "level", "it is not level")
        await asyncio.sleep(0.5)
        loop = asyncio.get_running_loop()
        steps, began = 0, loop.time()

        real = asyncio.Handle._run

        def counted(self: asyncio.Handle) -> None:
            nonlocal steps
            steps += 1
            real(self)

        asyncio.Handle._run = counted
        try:
            await asyncio.sleep(2.0)
        finally:
            asyncio.Handle._run = real
        assert steps / (loop.time() - began) < 300, "idle webhooks keep the loop busy"


async def test_a_changed_certificate_is_taken_if_it_is_good_and_waited_out_if_it_is_not(tmp_path: Path) -> None:
    ours, foreign = Authority(tmp_path, "ours"), Authority(tmp_path, "foreign")
    clock = PlayedClock()
    running = hooked(tmp_path, clock=clock, ca=ours.ca)
    async with flowing(tmp_path) as flows, taking(ours.server()) as taker, running as edge:
        build = flows.build()
        made = await edge.hook(taker.url(scheme="https"))
        await commits(edge, flows, build, range(1, 3))
        await taker.has(2)
        await taker.stop()
        await taker.start(ours.server())
        await commits(edge, flows, build, range(3, 5))
        await clock.advance(60, edge.quiet)
        await taker.has(4)
        await taker.stop()
        await taker.start(foreign.server())
        await commits(edge, flows, build, range(5, 7))
        await clock.advance(200, edge.quiet)
        assert len(taker.tried) == 4, "something was sent to somebody whom no trusted authority knows"
        assert edge.observer.value("penstock_serve_webhook_failures_total", reason="tls") > 0
        await taker.stop()
        await taker.start(ours.server())
        await clock.advance(3_600, edge.quiet)
        await taker.has(6)
        assert numbers(taker) == [1, 2, 3, 4, 5, 6]
        assert edge.endpoint(made["id"]).trouble is None
