"""What becomes of events whose commit takes longer than anybody waits: each is taken once, whoever sends it again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from running_edge import Edge, held, running, until
from shop_app import Order, shop

from penstock import App

BODY = b'{"order_id": 1}'
GIVE_UP_S = 0.1


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running(shop(), tmp_path, give_up_s=GIVE_UP_S) as edge:
        yield edge


def written(edge: Edge, stream: str, number: int) -> Callable[[], bool]:
    return lambda: len(edge.events(stream)) == number and edge.group.unwritten_bytes == 0


async def test_a_sender_is_told_that_nobody_knows(edge: Edge) -> None:
    with held(edge):
        reply = await edge.post("orders", BODY)
        assert (reply.status, reply.code, reply.headers["Retry-After"]) == (503, "outcome_unknown", "1")
        assert "Idempotency-Key" in reply.body["error"]["hint"]
    await until(written(edge, "orders", 1))
    assert edge.refused("orders", "outcome_unknown") == 1


@pytest.mark.parametrize(
    ("stream", "headers"),
    [
        ("orders", {"Idempotency-Key": "k"}),
        ("orders", {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}),
        ("once", {}),
    ],
)
async def test_sent_again_under_its_id_it_is_taken_once(edge: Edge, stream: str, headers: dict[str, str]) -> None:
    with held(edge):
        replies = [await edge.post(stream, BODY, headers=headers) for _ in range(3)]
        assert [reply.code for reply in replies] == ["outcome_unknown"] * 3
    last = await edge.post(stream, BODY, headers=headers)
    assert last.status in (200, 204)
    await until(written(edge, stream, 1))


async def test_a_retry_that_waits_behind_the_first_attempt_gets_its_reply(edge: Edge) -> None:
    once = {"Idempotency-Key": "k"}
    with held(edge) as go:
        assert (await edge.post("orders", BODY, headers=once)).code == "outcome_unknown"
        retry = asyncio.create_task(edge.post("orders", BODY, headers=once))
        await until(lambda: edge.group.unwritten_bytes > 0)
        await asyncio.sleep(GIVE_UP_S / 4)
        go()
        reply = await retry
    assert (reply.status, reply.headers["Idempotency-Replayed"], reply.body["accepted"]) == (200, "true", 1)
    assert len(edge.events("orders")) == 1


async def test_a_receipt_leads_to_events_that_were_written_after_all(edge: Edge) -> None:
    with held(edge):
        token = (await edge.post("orders", BODY, query="?ack=none")).body["ack"]
        lost = await edge.ack(token, "?wait=5")
        assert (lost.status, "outcome_unknown" in lost.body["error"]["detail"]) == (404, True)
    await until(written(edge, "orders", 1))
    await edge.post("orders", BODY)
    assert (await edge.ack(token)).body["accepted"] == 1


async def test_a_pull_writes_what_it_has_read_once(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def source(since: int | None) -> AsyncIterator[Any]:
        for n in range(0 if since is None else since + 1, 6):
            if n == 3:
                await go_on.wait()
            yield n, {"order_id": n}
        await asyncio.sleep(60)

    app = App("pulls")
    app.pull(app.stream("orders", Order), source)

    async def soon(_: float) -> None:
        await asyncio.sleep(0.002)

    async with running(app, tmp_path, sleep=soon, give_up_s=GIVE_UP_S) as edge:
        await until(lambda: len(edge.events("orders")) == 3)
        with held(edge):
            go_on.set()
            await until(lambda: edge.collect.pulls.status()[0]["state"] == "disconnected")
            await asyncio.sleep(3 * GIVE_UP_S)
        await until(lambda: len(edge.events("orders")) >= 6)
        assert [event["order_id"] for event in edge.events("orders")] == list(range(6))


async def test_datagrams_are_not_written_twice(tmp_path: Path) -> None:
    app = App("plant")
    app.udp(app.stream("orders", Order), port=0)
    async with running(app, tmp_path, give_up_s=GIVE_UP_S) as edge:
        with held(edge), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(BODY, ("127.0.0.1", edge.collect.udps.status()[0]["port"]))
            await until(lambda: edge.group.unwritten_bytes > 0)
            await asyncio.sleep(4 * GIVE_UP_S)
        await until(written(edge, "orders", 1))
