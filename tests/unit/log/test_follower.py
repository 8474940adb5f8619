from __future__ import annotations

import logging
import threading
import time

import pytest

from penstock.log.follower import Follower
from penstock.log.log import Log, Stream
from penstock.testing.contracts.log_events import eventually, put


def test_each_change_is_told_soon(log: Log, stream: Stream) -> None:
    told = threading.Semaphore(0)
    follower = Follower(log.revision, told.release)
    assert told.acquire(timeout=60)
    for n in range(5):
        put(log, stream, [n])
        assert told.acquire(timeout=60)
    follower.close()
    assert not told.acquire(blocking=False)


def test_it_is_called_only_when_something_changed() -> None:
    ticks = iter([1, 1, 1, 2, 2])
    calls: list[int] = []
    ended = threading.Event()

    def revision() -> int:
        value = next(ticks, None)
        if value is None:
            ended.set()
            return 2
        return value

    follower = Follower(revision, lambda: calls.append(1), interval_s=0.0001)
    assert ended.wait(60)
    follower.close()
    assert len(calls) == 2


def test_a_failure_is_told_once_and_the_following_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    looks, told = [], threading.Event()

    def revision() -> int:
        looks.append(1)
        if len(looks) < 5:
            raise OSError("away")
        return 1

    with caplog.at_level(logging.ERROR):
        follower = Follower(revision, told.set, interval_s=0.0001)
        assert told.wait(60)
        follower.close()
    assert len(caplog.records) == 1


def test_an_idle_follower_takes_little_of_a_cpu(log: Log) -> None:
    cpu: list[float] = []

    def revision() -> int:
        value = log.revision()
        cpu.append(time.thread_time())
        return value

    follower = Follower(revision, lambda: None)
    eventually(lambda: len(cpu) > 60)
    follower.close()
    per_look = (cpu[-1] - cpu[5]) / (len(cpu) - 6)
    assert per_look / 0.005 < 0.05, "of one CPU; measured 0.4 % on an idle machine"
