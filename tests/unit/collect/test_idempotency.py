from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from hands import Hands
from running_edge import Edge, Reply, running
from shop_app import shop

from penstock.collect.ways import door, idempotency, kept_replies

NOW_US = 1_700_000_000_000_000
GOOD = b'[{"order_id": 1}, {"order_id": "x"}]'


async def once(edge: Edge, body: bytes = GOOD, key: str = "k1", stream: str = "orders", **options: Any) -> Reply:
    headers = {"Idempotency-Key": key} | options.pop("headers", {})
    return await edge.post(stream, body, headers=headers, **options)


def replayed(reply: Reply) -> bool:
    return reply.headers.get("Idempotency-Replayed") == "true"


@pytest.mark.parametrize("body", [GOOD, b'{"order_id": 1}', b'{"order_id": "x"}', b"[]"])
async def test_the_same_key_gets_the_same_reply_and_no_second_effect(edge: Edge, body: bytes) -> None:
    first = await once(edge, body)
    again = await once(edge, body)
    assert (replayed(first), replayed(again)) == (False, True)
    assert (again.status, again.body) == (first.status, first.body)
    assert again.headers["Penstock-Ack"] == first.headers["Penstock-Ack"]
    assert len(edge.events("orders")) == first.body["accepted"]
    assert len(edge.dead()) == len(first.body["rejected"])


async def test_what_is_replayed_counts_as_duplicates(edge: Edge) -> None:
    for _ in range(3):
        await once(edge)
    assert edge.collect.counts.of("orders") == {"duplicates": 4, "dead": 1, "shed": 0}
    assert edge.metric("received", "orders") == 6


async def test_another_body_under_the_same_key_is_refused(edge: Edge) -> None:
    await once(edge)
    other = await once(edge, b'{"order_id": 2}')
    assert (other.status, other.code) == (422, "idempotency_key_reused")
    assert len(edge.events("orders")) == 1
    assert edge.refused("orders", "idempotency_key_reused") == 1


async def test_keys_belong_to_a_stream_and_to_an_account(edge: Edge) -> None:
    await once(edge)
    assert not replayed(await once(edge, stream="kept"))
    assert not replayed(await once(edge, key="k2"))


async def test_a_key_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path
    async with running(shop(), path) as edge:
        first = await once(edge)
        dead = await once(edge, b'{"order_id": "x"}', key="k2")
        assert dead.status == 422
    async with running(shop(), path) as edge:
        assert (await once(edge)).body == first.body
        again = await once(edge, b'{"order_id": "x"}', key="k2")
        assert (again.status, again.body) == (422, dead.body)
        assert (await once(edge, b"{}")).code == "idempotency_key_reused"
        assert (len(edge.events("orders")), len(edge.dead())) == (1, 2)


async def test_a_key_in_flight_is_told_to_wait(edge: Edge) -> None:
    held = threading.Event()
    blocked = edge.group.run(held.wait)
    try:
        both = [asyncio.create_task(once(edge)) for _ in range(2)]
        done, waiting = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        (busy,) = [task.result() for task in done]
        assert (busy.status, busy.code, busy.headers["Retry-After"]) == (409, "idempotency_key_in_use", "1")
    finally:
        held.set()
    await asyncio.wrap_future(blocked)
    assert [(await task).status for task in waiting] == [200]
    assert replayed(await once(edge))


async def test_what_was_not_written_is_not_remembered(edge: Edge) -> None:
    with edge.full():
        assert (await once(edge)).status == 507
    assert (await once(edge, b"nope")).status == 400
    taken = await once(edge)
    assert (taken.status, replayed(taken)) == (200, False)


async def test_keys_are_forgotten_after_a_day_and_the_oldest_first(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(kept_replies, "MOST_KEPT", 3)
    clock = Hands(NOW_US)
    path = tmp_path
    async with running(shop(), path, clock=clock) as edge:
        for n in range(5):
            clock.us += 1
            await once(edge, key=f"k{n}")
        kept = [key for key in edge.log.memory() if key.startswith("idem/")]
        assert len(kept) == 3
        assert [replayed(await once(edge, key=f"k{n}")) for n in (2, 3, 4)] == [True] * 3
        clock.us += 24 * 3_600_000_000 + 10
        assert not replayed(await once(edge, key="k4"))
        await once(edge, key="new")
        assert len([key for key in edge.log.memory() if key.startswith("idem/")]) <= 3


async def test_many_rejections_are_remembered_by_their_number(edge: Edge) -> None:
    body = b"[" + b",".join([b'{"order_id": "x"}'] * 150) + b"]"
    first, again = await once(edge, body), await once(edge, body)
    assert (len(first.body["rejected"]), len(again.body["rejected"])) == (150, 100)
    assert again.body["rejected_in_all"] == 150


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Idempotency-Key": "k", "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}, ""),
        ({"Idempotency-Key": "k"}, "?ack=none"),
        ({"Idempotency-Key": ""}, ""),
        ({"Idempotency-Key": "x" * 201}, ""),
    ],
)
async def test_what_a_key_cannot_be_with(edge: Edge, headers: dict[str, str], query: str) -> None:
    reply = await edge.post("orders", b'{"order_id": 1}', headers=headers, query=query)
    assert (reply.status, reply.code) == (400, "bad_request")
    assert edge.events("orders") == []


async def test_many_at_once_under_one_key_have_one_effect(edge: Edge) -> None:
    async def until_answered() -> Reply:
        reply = await once(edge)
        return await until_answered() if reply.status == 409 else reply

    replies = await asyncio.gather(*(until_answered() for _ in range(20)))
    assert [reply.body for reply in replies] == [replies[0].body] * 20
    assert sum(not replayed(reply) for reply in replies) == 1
    assert (len(edge.events("orders")), len(edge.dead())) == (1, 1)


async def test_a_large_body_is_hashed_in_a_thread(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(form: Any, raw: bytes) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return idempotency.body_digest(form, raw)

    monkeypatch.setattr(door, "body_digest", noted)
    for body in (GOOD, GOOD + b" " * 1_000_000):
        assert (await once(edge, body, str(len(body)))).status == 200
        assert replayed(await once(edge, body, str(len(body))))
    assert threads == [True, True, False, False]


@pytest.mark.parametrize(
    "headers",
    [{"Idempotency-Key": "k"}, {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}],
)
async def test_a_preference_that_cannot_be_honoured_is_ignored(edge: Edge, headers: dict[str, str]) -> None:
    reply = await edge.post("orders", GOOD, headers=headers | {"Prefer": "respond-async"})
    assert (reply.status, reply.body["level"]) == (200, "logged")
    assert "Preference-Applied" not in reply.headers
