"""A phone offline for three days with a clock that is hours wrong: each event once, at its corrected time.

The door's part (`time=`, `sent=`, `max_skew=`) is its own; here the correction is done by hand from what arrives:
corrected = received - (sent - occurred).
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from scripted_door import Answer, Request, ScriptedDoor, refusal, taken

from penstock.client import Producer
from penstock.clock import SystemClock

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
            producer.flush(10)
        answered = [True] * len(door.requests)
        answered[0] = answered[1] = answered[3] = False
    corrected: dict[int, int] = {}
    for request, received_ms, ended in zip(door.requests, door.received_ms, answered, strict=True):
        for event in request.events if ended else ():
            assert event["n"] not in corrected
            corrected[event["n"]] = received_ms - (int(request.headers["Penstock-Sent"]) - event["occurred"])
    assert corrected == occurred
