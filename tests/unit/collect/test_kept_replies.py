from __future__ import annotations

from typing import Any

from manual_clock import ManualClock

from penstock.collect.ways.kept_replies import ReplyBook
from penstock.log import control_keys
from penstock.log.control import ControlMap

HOUR_US = 3_600_000_000


def write(book: ReplyBook, memory: ControlMap, id: str, **more: Any) -> int:
    """As a commit does it; gives how many were forgotten."""
    sets, reply = book.keys(id, **more)
    assert reply is not None
    memory.apply({**sets, reply[0]: reply[1]})
    return len(sets)


def test_expired_replies_are_forgotten_a_few_with_each_commit() -> None:
    clock, memory = ManualClock(), ControlMap()
    book = ReplyBook(memory, control_keys.receipt, clock, HOUR_US)
    for n in range(150):
        assert write(book, memory, str(n)) == 0
    clock.pass_s(3_601)
    assert book.find("0") is None
    assert [write(book, memory, f"new {n}") for n in range(4)] == [64, 64, 22, 0]
    assert memory.size(control_keys.receipt) == 4


def test_the_oldest_go_when_their_rejections_take_too_much() -> None:
    memory = ControlMap({control_keys.idempotency("old"): {"at_us": 1, "rejected": [{"detail": "x" * 50_000}]}})
    book = ReplyBook(memory, control_keys.idempotency, ManualClock(2), HOUR_US, most_bytes=90_000)
    assert write(book, memory, "first") == 1, "it takes 100 kB"
    assert [write(book, memory, str(n)) for n in range(3)] == [0, 0, 0]
    write(book, memory, "large", rejected=[{"detail": "y" * 50_000}])
    assert write(book, memory, "after") == 5, "the large one is the newest of those that must go"
    assert list(memory) == [control_keys.idempotency("after")]


def test_a_reply_that_is_replaced_is_the_newest() -> None:
    clock, memory = ManualClock(), ControlMap()
    book = ReplyBook(memory, control_keys.receipt, clock, HOUR_US)
    write(book, memory, "a")
    clock.pass_s(3_000)
    write(book, memory, "b")
    write(book, memory, "a")
    clock.pass_s(1_000)
    assert write(book, memory, "c") == 0
    assert book.find("a") is not None
