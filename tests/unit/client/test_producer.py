"""A producer against a real edge and against answers that a good edge seldom gives."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from running_edge import running
from scripted_door import Answer, ScriptedDoor, refusal, taken
from shop_app import Order, shop

from penstock.client import AsyncProducer, Producer
from penstock.clock import SystemClock
from penstock.config import Limits
from penstock.errors import (
    BadRequestError,
    EventRejectedError,
    FencedError,
    FolderHeldError,
    FolderMismatchError,
    ProducerClosedError,
    QueueFullError,
    TooLargeError,
    UnsentError,
)

FAST: dict[str, Any] = {"linger_ms": 1, "backoff_most_s": 0.05, "timeout_s": 5.0}


def order(n: int) -> dict[str, int]:
    return {"order_id": n}


async def test_what_was_sent_is_in_the_stream_in_order_and_the_bad_ones_are_told(tmp_path: Path) -> None:
    told: list[tuple[bytes, str]] = []
    async with running(shop(), tmp_path) as edge:
        options = FAST | {"batch_events": 7, "on_rejected": lambda line, error: told.append((line, error.reason))}
        async with AsyncProducer(edge.url, "orders", folder=tmp_path / "out", **options) as orders:
            handles = [await orders.send(order(n)) for n in range(20)]
            bad = await orders.send({"order_id": "x"})
            last = [await orders.send(Order(order_id=20)), await orders.send(b'{\n"order_id":\n21}')]
            receipts = await asyncio.gather(*handles, *last)
            with pytest.raises(EventRejectedError) as rejected:
                await bad
        assert [event["order_id"] for event in edge.events("orders")] == list(range(22))
        assert all(receipt.ack and not receipt.repeated for receipt in receipts)
    assert rejected.value.reason == "wrong_type"
    assert told == [(b'{"order_id":"x"}', "wrong_type")]


def test_events_that_are_rejected_for_one_reason_are_one_line_in_the_log(
    door: ScriptedDoor, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [{"index": n, "reason": "wrong_type", "detail": "'n': expected int, found str"} for n in range(5)]
    late = [{"index": 5, "reason": "missing_field", "detail": "'n': expected a value, found nothing"}]
    body = {"accepted": 0, "duplicates": 0, "rejected": wrong + late, "ack": "a", "level": "logged"}
    door.answers.append(Answer(422, body))
    with Producer(door.url, "orders", **FAST | {"linger_ms": 60_000, "batch_events": 6}) as orders:
        for n in range(6):
            orders.send(order(n))
    told = [record.getMessage() for record in caplog.records if "expected" in record.getMessage()]
    assert [line.rpartition("found ")[2] for line in told] == ["str (5 events)", "nothing"]


async def test_nothing_is_lost_or_doubled_over_restarts_of_both_with_answers_lost(tmp_path: Path) -> None:
    """The first batch is taken, its answer lost, the producer ends; the next one repeats it under its old number."""
    async with running(shop(), tmp_path) as edge:
        with ScriptedDoor() as deaf:
            deaf.answers.extend(Answer(cut=True) for _ in range(1000))
            first = AsyncProducer(deaf.url, "orders", folder=tmp_path / "out", **FAST)
            await first.send(order(0))
            await asyncio.to_thread(wait_until, lambda: deaf.requests)
            await first.close(0)
        seen = deaf.requests[0]
        headers = {name: value for name, value in seen.headers.items() if name not in ("Host", "Content-Length")}
        assert (await edge.post("orders", seen.raw, headers=headers)).status == 200
        async with AsyncProducer(edge.url, "orders", folder=tmp_path / "out", **FAST) as second:
            assert second.status().unsent_events == 1
            await second.send(order(1))
            await second.flush(60)
        async with AsyncProducer(edge.url, "orders", folder=tmp_path / "out", **FAST) as third:
            await (await third.send(order(2)))
        assert [event["order_id"] for event in edge.events("orders")] == [0, 1, 2]


def test_a_batch_keeps_its_number_and_its_bytes_until_it_is_answered(door: ScriptedDoor, tmp_path: Path) -> None:
    door.answers.extend([Answer(cut=True), refusal(500, "internal"), refusal(503, "overloaded", Retry_After="0")])
    with Producer(door.url, "orders", folder=tmp_path, **FAST) as orders:
        orders.send({"order_id": 0, "text": "a" * 2000}).result(60)
        orders.send(order(1)).result(60)
    first, *others = door.requests
    assert [(request.number, request.raw) for request in others[:3]] == [(first.number, first.raw)] * 3
    assert first.headers["Content-Encoding"] == "gzip"
    assert others[3].number == (first.number[0], first.number[1] + 1)


def test_each_try_is_stamped_anew(door: ScriptedDoor) -> None:
    class Phone(SystemClock):
        """Hours wrong, and an hour passes at each look."""

        now = 5_000_000_000_000_000

        def now_us(self) -> int:
            self.now += 3_600_000_000
            return self.now

    door.answers.extend([Answer(cut=True), refusal(429, "too_many", Retry_After="0")])
    with Producer(door.url, "orders", clock=Phone(), **FAST) as orders:
        orders.send(order(0)).result(60)
    stamps = [int(request.headers["Penstock-Sent"]) for request in door.requests]
    assert len(stamps) == 3
    assert stamps == sorted(set(stamps))
    assert all((stamp - stamps[0]) % 3_600_000 == 0 for stamp in stamps)


def test_a_new_start_raises_the_epoch_and_an_open_batch_keeps_its_own(door: ScriptedDoor, tmp_path: Path) -> None:
    door.answers.append(Answer(cut=True))
    door.answers.extend(refusal(503, "overloaded", Retry_After="100") for _ in range(3))
    first = Producer(door.url, "orders", folder=tmp_path, **FAST | {"batch_events": 1})
    handles = [first.send(order(n)) for n in range(2)]
    wait_until(lambda: len(door.requests) >= 2)
    first.close(0)
    with pytest.raises(UnsentError):
        handles[0].result(1)
    door.answers.clear()
    asked = len(door.requests)
    with Producer(door.url, "orders", folder=tmp_path, **FAST) as second:
        second.send(order(2)).result(60)
    old, *new = [request for request in door.requests[asked:]]
    assert (old.number, old.events) == (door.requests[0].number, [order(0)])
    assert [event for request in new for event in request.events] == [order(1), order(2)]
    assert new[0].number[0] > old.number[0]
    assert new[0].number[1] == 0


def test_a_page_that_is_not_the_door_settles_nothing(door: ScriptedDoor) -> None:
    """As the sign-in page of a hotel, or a test of connectivity, would answer."""
    door.answers.extend([Answer(200, b"<html>pay here</html>"), Answer(204), Answer(302, b"", {"Location": "/login"})])
    door.answers.append(Answer(422, {"detail": "no"}))
    with Producer(door.url, "orders", **FAST) as orders:
        assert orders.send(order(0)).result(60).ack == "t"
    assert len(door.requests) == 5
    assert len({request.number for request in door.requests}) == 1


@pytest.mark.parametrize(("status", "code"), [(401, "no_key"), (403, "no_right"), (404, "unknown_stream"), (415, "x")])
def test_a_refusal_that_will_not_pass_is_loud_and_loses_nothing(
    door: ScriptedDoor, caplog: pytest.LogCaptureFixture, status: int, code: str
) -> None:
    keys = iter(["old", "new", "new", "new"])
    door.answers.append(refusal(status, code))
    with Producer(door.url, "orders", key=lambda: next(keys), **FAST) as orders:
        orders.send(order(0)).result(60)
    assert [request.headers["Authorization"] for request in door.requests] == ["Bearer old", "Bearer new"]
    assert any(code in record.message and record.levelno == logging.WARNING for record in caplog.records)


def test_a_body_that_is_too_large_is_halved_under_the_same_number(door: ScriptedDoor) -> None:
    door.gate.clear()
    door.answers.extend([taken(), refusal(413, "too_large"), Answer(413, b"nginx")])
    rejected: list[bytes] = []
    options = FAST | {"on_rejected": lambda line, error: rejected.append(line)}
    with Producer(door.url, "orders", **options) as orders:
        orders.send(order(0))
        wait_until(lambda: len(door.requests) == 1)
        handles = [orders.send(order(n)) for n in range(1, 9)]
        door.gate.set()
        for handle in handles:
            handle.result(60)
    large, half, *rest = door.requests[1:]
    assert large.number == half.number == rest[0].number
    assert (len(large.events), len(half.events), len(rest[0].events)) == (8, 4, 2)
    assert [event for request in rest for event in request.events] == [order(n) for n in range(1, 9)]
    assert [request.number[1] for request in rest] == list(range(1, 1 + len(rest)))


def test_one_event_that_is_too_large_is_rejected_and_its_number_used_by_the_next(door: ScriptedDoor) -> None:
    door.answers.append(refusal(413, "too_large"))
    with Producer(door.url, "orders", **FAST | {"batch_events": 1}) as orders:
        with pytest.raises(EventRejectedError, match="bytes"):
            orders.send(order(0)).result(60)
        orders.send(order(1)).result(60)
    assert door.requests[0].number == door.requests[1].number


def test_a_doubtful_batch_is_not_made_smaller_if_it_was_taken(door: ScriptedDoor) -> None:
    """Half of it under its number would send the rest twice."""
    expected = {"Producer_Expected_Seq": "1"}
    door.answers.extend([Answer(cut=True), refusal(413, "too_large"), refusal(409, "sequence_gap", **expected)])
    with Producer(door.url, "orders", **FAST | {"linger_ms": 50}) as orders:
        handles = [orders.send(order(n)) for n in range(4)]
        assert [handle.result(60).repeated for handle in handles] == [True] * 4
        orders.send(order(4)).result(60)
    assert [(len(request.events), request.number[1]) for request in door.requests] == [(4, 0), (4, 0), (1, 2), (1, 1)]


async def test_a_doubtful_batch_that_was_not_taken_is_made_smaller(tmp_path: Path) -> None:
    with ScriptedDoor() as deaf:
        deaf.answers.extend(Answer(cut=True) for _ in range(1000))
        first = AsyncProducer(deaf.url, "orders", folder=tmp_path / "out", **FAST | {"linger_ms": 50})
        for n in range(40):
            await first.send(order(n))
        await asyncio.to_thread(wait_until, lambda: deaf.requests)
        await first.close(0)
    async with running(shop(), tmp_path, limits=Limits(body_bytes=200)) as edge:
        async with AsyncProducer(edge.url, "orders", folder=tmp_path / "out", **FAST | {"compress": False}) as second:
            await second.flush(60)
        assert [event["order_id"] for event in edge.events("orders")] == list(range(40))
        assert edge.dead() == []


def test_a_server_that_forgot_the_producer_gets_the_batch_in_a_new_epoch(
    door: ScriptedDoor, caplog: pytest.LogCaptureFixture
) -> None:
    door.answers.extend([taken(), refusal(409, "sequence_gap", Producer_Expected_Seq="0"), taken(), Answer(cut=True)])
    door.answers.append(refusal(409, "sequence_gap", Producer_Expected_Seq="0"))
    with Producer(door.url, "orders", **FAST) as orders:
        orders.send(order(0)).result(60)
        orders.send(order(1)).result(60)
        assert "twice" not in caplog.text
        orders.send(order(2)).result(60)
    numbers = [request.number for request in door.requests]
    assert [sequence for _, sequence in numbers] == [0, 1, 0, 1, 1, 0]
    assert numbers[2][0] > numbers[1][0]
    assert numbers[5][0] > numbers[4][0]
    assert "may be in the stream twice" in caplog.text


async def test_a_copy_of_a_folder_fences_the_other_which_stops_and_says_so(tmp_path: Path) -> None:
    async with running(shop(), tmp_path) as edge:
        one = AsyncProducer(edge.url, "orders", folder=tmp_path / "one", **FAST)
        await (await one.send(order(0)))
        (tmp_path / "two").mkdir()
        (tmp_path / "two/queue.db").write_bytes((tmp_path / "one/queue.db").read_bytes())
        (tmp_path / "two/queue.db-wal").write_bytes((tmp_path / "one/queue.db-wal").read_bytes())
        two = AsyncProducer(edge.url, "orders", folder=tmp_path / "two", **FAST)
        await (await two.send(order(1)))
        with pytest.raises(FencedError):
            await (await one.send(order(2)))
        assert one.status().state == "fenced"
        with pytest.raises(FencedError):
            await one.send(order(3))
        await one.close(1)
        await two.close(5)
        again = AsyncProducer(edge.url, "orders", folder=tmp_path / "one", **FAST)
        await again.close(5)
        assert [event["order_id"] for event in edge.events("orders")] == [0, 1, 2]


def test_a_full_queue_is_an_error_or_a_wait_by_choice(door: ScriptedDoor) -> None:
    door.gate.clear()
    with Producer(door.url, "orders", full="error", queue_events=2, **FAST) as orders:
        for n in range(2):
            orders.send(order(n))
        with pytest.raises(QueueFullError):
            orders.send(order(2))
        door.gate.set()
    door.gate.clear()
    with Producer(door.url, "orders", queue_bytes=30, **FAST) as orders:
        for n in range(2):
            orders.send(order(n))
        with pytest.raises(QueueFullError):
            orders.send(order(2), timeout_s=0.05)
        threading.Timer(0.1, door.gate.set).start()
        orders.send(order(3)).result(60)


async def test_waiting_for_room_does_not_hold_up_the_loop(door: ScriptedDoor) -> None:
    door.gate.clear()
    async with AsyncProducer(door.url, "orders", queue_events=1, **FAST) as orders:
        await orders.send(order(0))
        waiting = asyncio.create_task(orders.send(order(1)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        door.gate.set()
        assert (await (await waiting)).ack == "t"


def test_a_folder_is_one_producers_and_one_streams(door: ScriptedDoor, tmp_path: Path) -> None:
    with Producer(door.url, "orders", folder=tmp_path, **FAST), pytest.raises(FolderHeldError, match="another"):
        Producer(door.url, "orders", folder=tmp_path)
    with pytest.raises(FolderMismatchError, match="orders"):
        Producer(door.url, "visits", folder=tmp_path)
    (tmp_path / "queue.db").write_bytes(b"no database" * 100)
    with pytest.raises(FolderMismatchError, match="cannot be read"):
        Producer(door.url, "orders", folder=tmp_path)


def test_what_memory_loses_is_told(door: ScriptedDoor) -> None:
    door.gate.clear()
    orders = Producer(door.url, "orders", **FAST)
    handle = orders.send(order(0))
    with pytest.raises(UnsentError, match="1 event"):
        orders.flush(0.05)
    with pytest.raises(UnsentError):
        orders.close(0.05)
    with pytest.raises(UnsentError):
        handle.result(1)
    with pytest.raises(UnsentError):
        orders.send(order(1))
    assert orders.status().state == "closed"


def test_an_answer_that_comes_while_it_ends_is_not_an_error(door: ScriptedDoor, caplog: Any, tmp_path: Path) -> None:
    door.gate.clear()
    orders = Producer(door.url, "orders", folder=tmp_path, **FAST)
    handle = orders.send(order(0))
    wait_until(lambda: door.requests)
    orders._workings.outbox.end(ProducerClosedError("over"))
    with pytest.raises(ProducerClosedError):
        handle.result(1)
    door.gate.set()
    wait_until(lambda: orders.status().unsent_events == 0)
    orders.close(0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_many_threads_and_a_flush(door: ScriptedDoor, tmp_path: Path) -> None:
    with Producer(door.url, "orders", folder=tmp_path, **FAST) as orders:
        threads = [threading.Thread(target=lambda: [orders.send(order(n)) for n in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        orders.flush(60)
        assert orders.status().unsent_events == 0
        assert sum(len(request.events) for request in door.requests) == 200
    with pytest.raises(ProducerClosedError):
        orders.send(order(0))


@pytest.mark.parametrize("event", [5, b"5", b"{", b'{"a": 1} {"b": 2}', {"a": object()}, "text"])
def test_what_is_no_event_is_refused_at_once(door: ScriptedDoor, event: Any) -> None:
    with Producer(door.url, "orders", **FAST) as orders, pytest.raises(BadRequestError):
        orders.send(event)


def test_an_event_beyond_the_limit_is_refused_at_once(door: ScriptedDoor) -> None:
    with Producer(door.url, "orders", **FAST) as orders, pytest.raises(TooLargeError):
        orders.send({"text": "x" * 2**20})


def test_a_program_that_forgets_to_close_still_sends(door: ScriptedDoor) -> None:
    code = (
        f"from penstock.client import Producer; Producer({door.url!r}, 'orders', linger_ms=200).send({{'order_id': 1}})"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
    assert [request.events for request in door.requests] == [[order(1)]]


def test_a_fork_is_told_to_make_its_own(door: ScriptedDoor) -> None:
    with Producer(door.url, "orders", **FAST) as orders:
        child = os.fork()
        if child == 0:
            try:
                orders.send(order(0))
            except ProducerClosedError:
                orders.close()
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def wait_until(condition: Any, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
