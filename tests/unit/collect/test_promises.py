"""Producers that promise say how far a stream is complete, and who holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from running_edge import Edge, running

from penstock import App, Event
from penstock.client import Producer
from tests.unit.collect.manual_clock import ManualClock

SECOND = 1_000_000
START_S = 1_750_000_000


class Reading(Event):
    at: int


def app() -> App:
    made = App("plant")
    made.stream("readings", Reading, time="at", late_after="10 s", idle_after="60 s", complete="producers")
    return made


class Plant:
    """An edge, its clock, and what its stream is complete to, in seconds since the start."""

    def __init__(self, edge: Edge, clock: ManualClock) -> None:
        self.edge, self.clock = edge, clock
        self._next: dict[str, int] = {}

    async def send(self, producer: str, at_s: float | None, promise: Any = None) -> Any:
        number = self._next[producer] = self._next.get(producer, -1) + 1
        headers = {"Producer-Id": producer, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        if promise is not None:
            headers["Penstock-Complete"] = promise if isinstance(promise, str) else str((START_S + promise) * 1000)
        body = b"[]" if at_s is None else b'{"at": %d}' % ((START_S + at_s) * 1000)
        reply = await self.edge.post("readings", body, headers=headers)
        assert reply.status == 200, reply.body
        return self.complete()

    def complete(self) -> float | None:
        stream = self.edge.log.find("readings")
        assert stream is not None
        complete_us = self.edge.log.bounds(stream).complete_us
        return None if complete_us is None else complete_us / SECOND - START_S

    def holder(self) -> str | None:
        promises = self.edge.collect.intakes["readings"].promises
        assert promises is not None
        return promises.holder()


@pytest.fixture
async def plant(tmp_path: Path) -> AsyncIterator[Plant]:
    clock = ManualClock(START_S * SECOND)
    async with running(app(), tmp_path, clock=clock) as edge:
        yield Plant(edge, clock)


async def test_a_stream_is_complete_to_the_least_promise_of_those_who_live(plant: Plant) -> None:
    assert await plant.send("a", 100, promise=90) == 90, "the newest event alone says nothing"
    assert await plant.send("b", 50) == 90, "it never goes back"
    assert plant.holder() == "b", "one that never promises holds everything"
    assert await plant.send("a", 300, promise=200) == 90
    assert await plant.send("b", None, promise=150) == 150
    assert await plant.send("b", 151, promise="end") == 200
    assert plant.holder() == "a"


async def test_one_that_is_silent_for_idle_after_holds_nothing(plant: Plant) -> None:
    await plant.send("b", 50)
    plant.clock.pass_s(30)
    assert await plant.send("a", 100, promise=90) is None
    plant.clock.pass_s(31)
    assert await plant.send("a", None, promise=95) == 95


async def test_a_promise_needs_a_number_and_a_time(plant: Plant) -> None:
    reply = await plant.edge.post("readings", b'{"at": 1}', headers={"Penstock-Complete": "5"})
    assert (reply.status, reply.code) == (400, "bad_request")
    headers = {"Producer-Id": "a", "Producer-Epoch": "0", "Producer-Seq": "0", "Penstock-Complete": "soon"}
    assert (await plant.edge.post("readings", b'{"at": 1}', headers=headers)).status == 400


async def test_the_client_promises_behind_what_it_has_sent_and_says_when_it_is_over(tmp_path: Path) -> None:
    async with running(app(), tmp_path) as edge:
        plant = Plant(edge, ManualClock())

        def sends() -> None:
            with Producer(edge.url, "readings") as producer:
                first = producer.send({"at": START_S * 1000})
                producer.complete(datetime.fromtimestamp(START_S - 5, UTC))
                first.result(60)
                producer.flush(60)
                assert plant.complete() == -5
                producer.complete((START_S + 7) * 1000)
                producer.flush(60)
                assert (plant.complete(), plant.holder() is None) == (7, False)

        await asyncio.to_thread(sends)
        assert plant.holder() is None
        assert len(edge.events("readings")) == 1
