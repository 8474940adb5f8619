"""Batches run in turn, in the order of asking, and nobody waits longer than a turn for one that does not end."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.clock import SystemClock
from penstock.flows.turns import Turns

LONG_S = 60.0


def _until(holds: threading.Event) -> None:
    assert holds.wait(LONG_S)


def test_those_who_wait_run_one_at_a_time_in_the_order_of_asking() -> None:
    turns, done, most = Turns(SystemClock(), turn_s=LONG_S), [], [0]
    running: list[int] = []

    def work(number: int) -> None:
        with turns.turn():
            running.append(number)
            most[0] = max(most[0], len(running))
            time.sleep(0.005)
            running.remove(number)
            done.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    with turns.turn():
        for number, thread in enumerate(threads):
            thread.start()
            while len(turns._waiting) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join(LONG_S)
    assert done == [0, 1, 2, 3, 4]
    assert most == [1]


def test_one_that_does_not_end_loses_its_turn() -> None:
    turns, began, ended = Turns(SystemClock(), turn_s=0.05), threading.Event(), threading.Event()

    def hang() -> None:
        with turns.turn():
            began.set()
            _until(ended)

    thread = threading.Thread(target=hang)
    thread.start()
    _until(began)
    before = time.monotonic()
    with turns.turn():
        assert thread.is_alive()
        assert time.monotonic() - before >= 0.03
    ended.set()
    thread.join(LONG_S)


def test_as_many_run_at_once_as_there_are_places() -> None:
    turns, both = Turns(SystemClock(), places=2, turn_s=LONG_S), threading.Barrier(2, timeout=LONG_S)

    def work() -> None:
        with turns.turn():
            both.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not both.broken


def test_a_batch_that_fails_gives_its_turn_back() -> None:
    turns = Turns(SystemClock(), turn_s=LONG_S)
    with pytest.raises(ValueError, match="bad"), turns.turn():
        raise ValueError("bad")
    with turns.turn():
        pass
