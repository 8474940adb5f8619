from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from running_edge import Absorbing, Edge, running
from shop_app import shop

from penstock.collect.ways import kept_replies, without_ack
from penstock.config import Limits
from penstock.position import Position


async def unanswered_post(edge: Edge, body: bytes, stream: str = "orders") -> str:
    reply = await edge.post(stream, body, query="?ack=none")
    assert (reply.status, reply.body["level"]) == (202, "pending")
    assert reply.headers["Penstock-Ack"] == reply.body["ack"]
    return str(reply.body["ack"])


async def test_a_receipt_leads_to_what_became_of_the_events(edge: Edge) -> None:
    token = await unanswered_post(edge, b'[{"order_id": 1}, {"order_id": "x"}]')
    found = await edge.ack(token, "?wait=60")
    assert found.status == 200
    assert (found.body["accepted"], found.body["duplicates"], found.body["level"]) == (1, 0, "applied")
    assert found.body["rejected"] == [
        {"index": 1, "reason": "wrong_type", "detail": "'order_id': expected int, found str"}
    ]
    assert Position.parse(found.body["ack"], "stream", "orders").offsets == (1,)
    assert (len(edge.events("orders")), len(edge.dead())) == (1, 1)


async def test_a_receipt_is_pending_until_its_commit(edge: Edge) -> None:
    held = threading.Event()
    blocked = edge.group.run(held.wait)
    try:
        token = await unanswered_post(edge, b'{"order_id": 1}')
        pending = await edge.ack(token)
        assert pending.body == {"ack": token, "level": "pending"}
        waiting = asyncio.create_task(edge.ack(token, "?wait=60"))
    finally:
        held.set()
    await asyncio.wrap_future(blocked)
    assert (await waiting).body["accepted"] == 1


@pytest.mark.parametrize("body", [b'{"order_id": 1}', b'{"order_id": "x"}', b"nope"])
async def test_a_receipt_survives_a_restart(tmp_path: Path, body: bytes) -> None:
    path = tmp_path
    async with running(shop(), path) as edge:
        token = await unanswered_post(edge, body)
        before = await edge.ack(token, "?wait=60")
        assert before.status == 200
    async with running(shop(), path) as edge:
        assert (await edge.ack(token)).body == before.body


async def test_a_receipt_of_an_unreadable_body_says_so(edge: Edge) -> None:
    found = await edge.ack(await unanswered_post(edge, b"nope"), "?wait=60")
    assert (found.body["accepted"], found.body["error"]["code"]) == (0, "bad_body")
    assert edge.dead()[0]["raw"] == b"nope"


async def test_a_receipt_of_no_events_is_known_too(edge: Edge) -> None:
    found = await edge.ack(await unanswered_post(edge, b"[]"), "?wait=60")
    assert (found.status, found.body["accepted"]) == (200, 0)


async def test_what_came_without_waiting_is_written_when_the_edge_closes(tmp_path: Path) -> None:
    path = tmp_path
    async with running(shop(), path) as edge:
        for n in range(200):
            await unanswered_post(edge, b'{"order_id": %d}' % n)
    async with running(shop(), path) as edge:
        assert [event["order_id"] for event in edge.events("orders")] == list(range(200))


async def test_events_lost_before_their_commit_leave_an_unknown_receipt(edge: Edge) -> None:
    with edge.full():
        token = await unanswered_post(edge, b'[{"order_id": 1}, {"order_id": 2}]')
        lost = await edge.ack(token, "?wait=60")
    assert (lost.status, lost.code) == (404, "unknown_ack")
    assert lost.body["error"]["detail"] == "disk_full: the log's memory has no room"
    assert edge.metric("shed", "orders") == edge.metric("received", "orders") == 2


async def test_too_many_unanswered_requests_are_shed(edge: Edge, monkeypatch: Any) -> None:
    monkeypatch.setattr(without_ack, "MOST_WAITING", 0)
    reply = await edge.post("orders", b'{"order_id": 1}', query="?ack=none")
    assert (reply.status, reply.code, reply.headers["Retry-After"]) == (503, "overloaded", "1")


async def test_room_is_given_back_when_an_unanswered_request_is_written(tmp_path: Path) -> None:
    async with running(shop(), tmp_path, limits=Limits(unwritten_bytes=100)) as edge:
        for body in [b'{"order_id": 1}', b"nope"] * 10:
            assert (await edge.ack(await unanswered_post(edge, body), "?wait=60")).status == 200


async def test_the_oldest_receipts_are_forgotten(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(kept_replies, "MOST_KEPT", 3)
    async with running(shop(), tmp_path) as edge:
        tokens = []
        for n in range(5):
            tokens.append(await unanswered_post(edge, b'{"order_id": %d}' % n))
            await edge.ack(tokens[-1], "?wait=60")
        assert [(await edge.ack(token)).status for token in tokens] == [404, 404, 200, 200, 200]
        assert len([key for key in edge.log.memory() if key.startswith("receipt/")]) == 3


async def test_receipts_are_forgotten_after_an_hour(tmp_path: Path) -> None:
    class Hands:
        us = 1_700_000_000_000_000

        def now_us(self) -> int:
            return self.us

        def monotonic(self) -> float:
            return self.us / 1e6

    hands = Hands()
    async with running(shop(), tmp_path, clock=hands) as edge:
        token = await unanswered_post(edge, b'{"order_id": 1}')
        assert (await edge.ack(token, "?wait=60")).status == 200
        hands.us += 3_600_000_001
        assert (await edge.ack(token)).status == 404
        await edge.ack(await unanswered_post(edge, b'{"order_id": 2}'), "?wait=60")
        assert len([key for key in edge.log.memory() if key.startswith("receipt/")]) == 1


async def test_a_position_is_applied_when_all_views_have_absorbed_it(tmp_path: Path) -> None:
    absorbing = Absorbing()
    async with running(shop(), tmp_path, absorbing=absorbing) as edge:
        token = (await edge.post("orders", b'{"order_id": 1}')).body["ack"]
        absorbing.views = {"a": True, "b": False}
        logged = await edge.ack(token, "?wait=2")
        absorbing.views = {"a": True, "b": True}
        applied = await edge.ack(token)
    assert logged.body == {
        "ack": token,
        "level": "logged",
        "views": {"a": {"applied": True, "position": None}, "b": {"applied": False, "position": None}},
    }
    assert applied.body["level"] == "applied"
    assert [wait_s for _, wait_s in absorbing.asked] == [2.0, 0.0]


async def test_tokens_that_were_never_given_out_are_unknown(edge: Edge) -> None:
    ours = Position.parse((await edge.post("orders", b'{"order_id": 1}')).body["ack"])
    for other in (
        Position("stream", "orders", ours.epoch, (2,)),
        Position("stream", "orders", "ffff", (1,)),
        Position("stream", "nothing", ours.epoch, (1,)),
        Position("receipt", "orders", "ffff", ()),
    ):
        assert (await edge.ack(other.token())).code == "unknown_ack"


async def test_what_is_no_ack_is_refused(edge: Edge) -> None:
    for token in ("nonsense", Position("view", "topics", "a", (1,)).token()):
        reply = await edge.ack(token)
        assert (reply.status, reply.code) == (400, "bad_position")
