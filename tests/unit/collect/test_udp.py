from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock
from running_edge import Edge, held, running, until
from shop_app import Order

from penstock import App
from penstock.config import Limits
from penstock.errors import DeclarationError, LaggingError, PortInUseError


def plant(port: int = 0, **options: Any) -> App:
    app = App("plant")
    stream = app.stream("orders", Order, key="country", **options)
    app.udp(stream, port=port)
    return app


def send(edge: Edge, *datagrams: bytes) -> None:
    port = edge.collect.udps.status()[0]["port"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        for data in datagrams:
            made.sendto(data, ("127.0.0.1", port))


def counts(edge: Edge) -> dict[str, float]:
    names = ("received", "accepted", "duplicate", "dead", "shed")
    return {name: edge.metric(name, "orders") for name in names}


def order(number: int) -> bytes:
    return json.dumps({"order_id": number}).encode()


async def test_a_datagram_holds_one_event_or_several_lines_and_garbage_is_dead(tmp_path: Path) -> None:
    async with running(plant(), tmp_path) as edge:
        send(edge, order(1), order(2) + b"\n" + order(3) + b"\n", b"garbage", b"", b"\xff\xfe")
        await until(lambda: edge.metric("received", "orders") == 5)
        assert counts(edge) == {"received": 5, "accepted": 3, "duplicate": 0, "dead": 2, "shed": 0}
        assert [row["order_id"] for row in edge.events("orders")] == [1, 2, 3]
        assert {letter["sender"] for letter in edge.dead()} == {"127.0.0.1"}
        assert edge.observer.value("penstock_collect_events_accepted_total", stream="orders", way="udp") == 3


async def test_a_full_queue_drops_and_every_event_of_it_is_counted_in_the_log(tmp_path: Path) -> None:
    async with running(plant(), tmp_path, limits=Limits(udp_bytes=2_000)) as edge:
        with held(edge):
            for start in range(0, 200, 20):
                send(edge, *(order(number) + b"\n" + order(number) for number in range(start, start + 20)))
                await asyncio.sleep(0.01)
        await until(lambda: edge.metric("received", "orders") == 400)
        found = counts(edge)
        assert found["shed"] > 0
        assert found["accepted"] > 0
        assert found["accepted"] + found["shed"] == 400
        assert len(edge.events("orders")) == found["accepted"]
        assert edge.collect.counts.of("orders")["shed"] == found["shed"]
    async with running(plant(), tmp_path) as edge:
        assert edge.collect.counts.of("orders")["shed"] == found["shed"]


async def test_what_exceeds_the_rate_is_shed_because_nobody_can_be_told_to_wait(tmp_path: Path) -> None:
    async with running(plant(rate="1/hour", burst=3), tmp_path) as edge:
        for number in range(5):
            send(edge, order(number))
            await until(lambda sent=number + 1: edge.metric("received", "orders") == sent)  # type: ignore[misc]
        assert counts(edge) == {"received": 5, "accepted": 3, "duplicate": 0, "dead": 0, "shed": 2}


async def test_what_was_read_is_written_when_the_edge_stops(tmp_path: Path) -> None:
    async with running(plant(), tmp_path) as edge:
        send(edge, *(order(number) for number in range(500)))
        await until(lambda: edge.metric("received", "orders") > 0)
    async with running(plant(), tmp_path) as again:
        assert len(again.events("orders")) == edge.metric("received", "orders")


async def test_what_waits_behind_a_lag_is_written_when_the_edge_stops(tmp_path: Path) -> None:
    async with running(plant(), tmp_path) as edge:
        edge.collect.pressure.guards["orders"].lagging = LaggingError("behind").after(1)
        send(edge, *(order(number) for number in range(5)))
        await asyncio.sleep(0.1)
        assert edge.metric("received", "orders") == 0
    assert counts(edge) == {"received": 5, "accepted": 5, "duplicate": 0, "dead": 0, "shed": 0}


async def test_datagrams_keep_the_time_of_their_arrival_while_they_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    came_us = clock.us
    async with running(plant(), tmp_path, clock=clock) as edge:
        guard = edge.collect.pressure.guards["orders"]
        guard.lagging = LaggingError("behind").after(1)
        for number in (1, 2, 3):
            send(edge, order(number))
            queued = number * len(order(1))
            await until(lambda queued=queued: edge.collect.udps.status()[0]["queued_bytes"] == queued)  # type: ignore[misc]
            clock.pass_s(60)
        guard.lagging = None
        await until(lambda: edge.metric("accepted", "orders") == 3)
        times = [edge.events("orders")[n]["_received"] for n in range(3)]
        assert [round(time.timestamp() * 1e6) for time in times] == [came_us + n * 60_000_000 for n in range(3)]


async def test_one_datagram_of_thousands_of_bad_lines_is_dead_line_by_line(tmp_path: Path) -> None:
    async with running(plant(), tmp_path) as edge:
        send(edge, b"1\n" * 12_000)
        await until(lambda: edge.metric("dead", "orders") == 12_000)


async def test_what_an_error_of_ours_loses_is_counted_in_the_log(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(plant(), tmp_path) as edge:
        intake = edge.collect.intakes["orders"]
        with monkeypatch.context() as broken:
            broken.setattr(intake.judge, "decode_each", lambda raws: 1 // 0)
            send(edge, order(1), order(2) + b"\n" + order(3))
            await until(lambda: edge.metric("shed", "orders") == 3)
        send(edge, order(4))
        await until(lambda: edge.metric("accepted", "orders") == 1)
        assert edge.collect.counts.of("orders")["shed"] == 3


async def test_what_a_full_disk_takes_no_more_at_the_end_is_counted_as_far_as_it_can_be(tmp_path: Path) -> None:
    async with running(plant(), tmp_path) as edge:
        with edge.full():
            send(edge, *(order(number) for number in range(5)))
            await asyncio.sleep(0.2)
            await edge.collect.udps.close()
        assert counts(edge) == {"received": 5, "accepted": 0, "duplicate": 0, "dead": 0, "shed": 5}


async def test_a_taken_port_is_an_error_with_the_users_line(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(PortInUseError, match=r"test_udp.py:\d+: the UDP port 127.0.0.1:\d+ cannot be opened"):
            async with running(plant(other.getsockname()[1]), tmp_path):
                pass


async def test_what_the_kernel_dropped_is_shown(tmp_path: Path) -> None:
    async with running(plant(), tmp_path) as edge:
        (udp,) = edge.collect.udps._ports
        assert udp._socket is not None
        udp._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_304)
        send(edge, *(b"x" * 1_000 for _ in range(50)))  # nothing is read until this test awaits
        (status,) = edge.collect.udps.status()
        assert status["kernel_drops"] > 0
        await until(lambda: edge.metric("received", "orders") + status["kernel_drops"] == 50)


def test_a_port_that_others_can_reach_must_be_declared_open() -> None:
    app = App("plant")
    stream = app.stream("orders", Order)
    with pytest.raises(DeclarationError, match="takes events from whoever reaches it"):
        app.udp(stream, port=9125, host="0.0.0.0")
    app.udp(stream, port=9125, host="0.0.0.0", open=True)


async def test_an_app_with_keys_opens_no_port_that_is_not_declared_open(tmp_path: Path) -> None:
    async with running(plant(), tmp_path) as edge:
        await edge.collect.udps.close()
        with pytest.raises(DeclarationError, match="takes events without one"):
            await edge.collect.udps.start(secured=True)


async def test_the_first_key_of_a_running_app_closes_the_ports_that_are_not_open_to_all(tmp_path: Path) -> None:
    app = plant()
    app.udp(app.stream("open", Order), port=0, open=True)
    async with running(app, tmp_path) as edge:
        send(edge, order(1))
        await until(lambda: edge.metric("received", "orders") == 1)
        (why,) = await edge.collect.udps.secure()
        assert "takes events without one" in why.message
        send(edge, order(2))
        port = edge.collect.udps.status()[1]["port"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.sendto(order(3), ("127.0.0.1", port))
        await until(lambda: edge.metric("received", "open") == 1)
        assert [row["order_id"] for row in edge.events("orders")] == [1]
