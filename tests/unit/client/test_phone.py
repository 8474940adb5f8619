"""A phone offline for three days with a clock that is hours wrong: each event once, at its corrected time.

Once against a scripted door, where the correction is done by hand from what arrives (corrected = received - (sent -
occurred)), and once against a real edge behind a network that loses answers.
"""

from __future__ import annotations

import datetime as dt
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from running_edge import running
from scripted_door import Answer, Request, ScriptedDoor, refusal, taken

from penstock import App, Event
from penstock.client import AsyncProducer, Producer
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from tests.chaos.proxy import Proxy

HOUR_MS = 3_600_000
WRONG_MS = -5 * HOUR_MS - 123
START_MS = 1_790_000_000_000


class Phone(SystemClock):
    """`true_ms` is what a good clock would show; the phone's own is hours behind."""

    true_ms = START_MS

    def now_us(self) -> int:
        return (self.true_ms + WRONG_MS) * 1000


class PatientDoor(ScriptedDoor):
    """Notes when each request came by a good clock; an hour passes before the next one."""

    def __init__(self, phone: Phone) -> None:
        super().__init__()
        self.received_ms: list[int] = []
        self._phone = phone

    def note(self, request: Request) -> None:
        self.received_ms.append(self._phone.true_ms)
        self._phone.true_ms += HOUR_MS
        super().note(request)


def test_a_phone_offline_for_days_with_a_wrong_clock_gets_each_event_in_once_at_its_time(tmp_path: Path) -> None:
    phone = Phone()
    options: dict[str, Any] = {
        "folder": tmp_path,
        "clock": phone,
        "batch_events": 5,
        "backoff_most_s": 0.02,
        "linger_ms": 1,
    }
    occurred: dict[int, int] = {}
    with socket.socket() as nobody:  # bound and not listening: every connection is refused
        nobody.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for day in range(3):
            producer = Producer(away, "visits", **options)
            for n in range(day * 8, day * 8 + 8):
                occurred[n] = phone.true_ms
                producer.send({"n": n, "occurred": phone.now_us() // 1000})
                phone.true_ms += 3 * HOUR_MS
            producer.close(0)
    with PatientDoor(phone) as door:
        lost = Answer(cut=True)
        door.answers.extend([lost, refusal(503, "overloaded", Retry_After="0"), taken(), lost, taken()])
        with Producer(door.url, "visits", **options) as producer:
            producer.flush(60)
        answered = [True] * len(door.requests)
        answered[0] = answered[1] = answered[3] = False
    corrected: dict[int, int] = {}
    for request, received_ms, ended in zip(door.requests, door.received_ms, answered, strict=True):
        for event in request.events if ended else ():
            assert event["n"] not in corrected
            corrected[event["n"]] = received_ms - (int(request.headers["Penstock-Sent"]) - event["occurred"])
    assert corrected == occurred


class Tick(Event):
    n: int
    occurred: int


class Truth(SystemClock):
    """The server's clock."""

    ms = START_MS

    def now_us(self) -> int:
        return self.ms * 1000


class WrongPhone(SystemClock):
    """Hours behind the truth; an hour passes before each try looks at it."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def now_us(self) -> int:
        self._truth.ms += HOUR_MS
        return (self._truth.ms + WRONG_MS) * 1000


async def test_the_same_against_a_real_edge_behind_a_network_that_loses_answers(tmp_path: Path) -> None:
    truth, occurred = Truth(), {}
    options: dict[str, Any] = {"folder": tmp_path / "out", "clock": WrongPhone(truth), "batch_events": 5}
    options |= {"backoff_most_s": 0.02, "linger_ms": 1, "timeout_s": 2.0}
    app = App("phones")
    app.stream("ticks", Tick, time="occurred", max_skew="1 day")
    async with (
        running(app, tmp_path, clock=truth) as edge,
        Proxy(int(edge.url.rpartition(":")[2])) as proxy,
    ):
        proxy.begin("drop")
        producer = AsyncProducer(proxy.url, "ticks", **options)
        for n in range(24):
            occurred[n] = truth.ms
            await producer.send({"n": n, "occurred": truth.ms + WRONG_MS})
            truth.ms += 3 * HOUR_MS
        await producer.close(0)
        proxy.begin("cut_reply")
        producer = AsyncProducer(proxy.url, "ticks", **options)
        with suppress(PenstockError):  # by luck all of it gets through
            await producer.flush(0.3)
        proxy.end()
        await producer.flush(60)
        await producer.close()
        found = {event["n"]: event["_time"] for event in edge.events("ticks")}
        assert len(edge.events("ticks")) == 24
        assert edge.collect.counts.of("ticks")["duplicates"] > 0
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert {
        n: (time.replace(tzinfo=dt.UTC) - epoch) // dt.timedelta(milliseconds=1) for n, time in found.items()
    } == occurred
