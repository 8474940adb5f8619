from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running_edge import Edge, Reply, running
from shop_app import shop

from penstock.errors import DiskFullError
from penstock.position import Position


async def send(
    edge: Edge, epoch: int, sequence: int, body: bytes = b'{"order_id": 1}', stream: str = "orders"
) -> Reply:
    headers = {"Producer-Id": "till 1", "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence)}
    return await edge.post(stream, body, headers=headers)


async def test_a_number_is_taken_once_and_its_repeat_is_told_where_it_stands(edge: Edge) -> None:
    first = await send(edge, 0, 0)
    await send(edge, 0, 1)
    again = await send(edge, 0, 0)
    assert (first.status, first.headers["Producer-Expected-Seq"]) == (200, "1")
    assert (again.status, again.raw, again.headers["Producer-Expected-Seq"]) == (204, b"", "2")
    assert Position.parse(again.headers["Penstock-Ack"]).covers(Position.parse(first.body["ack"]))
    assert len(edge.events("orders")) == 2


async def test_a_repeat_does_not_wait_for_the_views(edge: Edge) -> None:
    headers = {"Producer-Id": "a", "Producer-Epoch": "0", "Producer-Seq": "0"}
    edge.absorbing.views = {"slow": False}
    await edge.post("orders", b'{"order_id": 1}', headers=headers)
    assert (await edge.post("orders", b'{"order_id": 1}', headers=headers, query="?ack=applied")).status == 204
    assert edge.absorbing.asked == []


async def test_a_gap_is_refused_with_the_number_that_is_expected(edge: Edge) -> None:
    await send(edge, 0, 0)
    gap = await send(edge, 0, 2, b'[{"order_id": 1}, 5]')
    assert (gap.status, gap.code, gap.headers["Producer-Expected-Seq"]) == (409, "sequence_gap", "1")
    assert (await send(edge, 1, 1)).headers["Producer-Expected-Seq"] == "0"
    assert len(edge.events("orders")) == 1
    assert edge.dead() == []


async def test_an_older_instance_is_fenced_off(edge: Edge) -> None:
    await send(edge, 1, 0)
    fenced = await send(edge, 0, 0)
    assert (fenced.status, fenced.code) == (403, "producer_fenced")
    assert (await send(edge, 2, 0)).status == 200
    assert len(edge.events("orders")) == 2


async def test_a_request_whose_events_were_all_rejected_uses_up_its_number(edge: Edge) -> None:
    bad = await send(edge, 0, 0, b"[5, 6]")
    again = await send(edge, 0, 0, b"[5, 6]")
    assert (bad.status, again.status) == (422, 204)
    assert (await send(edge, 0, 1)).status == 200
    assert [letter["raw"] for letter in edge.dead()] == [b"5", b"6"]
    assert edge.collect.counts.of("orders")["dead"] == 2


async def test_an_unreadable_body_does_not_use_up_the_number(edge: Edge) -> None:
    assert (await send(edge, 0, 0, b"nope")).status == 400
    assert (await send(edge, 0, 0)).status == 200


async def test_streams_count_for_themselves_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path
    async with running(shop(), path) as edge:
        assert (await send(edge, 0, 0)).status == 200
        assert (await send(edge, 0, 0, stream="kept")).status == 200
    async with running(shop(), path) as edge:
        again = await send(edge, 0, 0)
        assert (again.status, again.headers["Producer-Expected-Seq"]) == (204, "1")
        assert (await send(edge, 0, 1, stream="kept")).status == 200


async def test_events_and_letters_of_a_number_stand_or_fall_together(edge: Edge, monkeypatch: Any) -> None:
    body = b'[{"order_id": 1}, 5]'

    def full(*_: Any) -> Any:
        raise DiskFullError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(edge.log, "_write", full)
        assert (await send(edge, 0, 0, body)).status == 507
    assert (edge.dead(), edge.events("orders")) == ([], [])
    assert [(await send(edge, 0, 0, body)).status for _ in range(3)] == [200, 204, 204]
    assert [letter["raw"] for letter in edge.dead()] == [b"5"]
    assert len(edge.events("orders")) == 1
    assert edge.collect.counts.of("orders") == {"duplicates": 4, "dead": 1, "shed": 0}


async def test_a_refused_number_leaves_no_letters(edge: Edge) -> None:
    assert (await send(edge, 0, 5, b'[{"order_id": 1}, 5]')).status == 409
    assert edge.dead() == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Producer-Id": "a"},
        {"Producer-Epoch": "0", "Producer-Seq": "0"},
        {"Producer-Id": "a", "Producer-Epoch": "x", "Producer-Seq": "0"},
        {"Producer-Id": "a", "Producer-Epoch": "0", "Producer-Seq": "-1"},
        {"Producer-Id": "a", "Producer-Epoch": "0", "Producer-Seq": "99999999999999999999"},
        {"Producer-Id": "a" * 201, "Producer-Epoch": "0", "Producer-Seq": "0"},
        {"Producer-Id": "", "Producer-Epoch": "0", "Producer-Seq": "0"},
    ],
)
async def test_headers_that_are_not_whole_are_refused(edge: Edge, headers: dict[str, str]) -> None:
    reply = await edge.post("orders", b'{"order_id": 1}', headers=headers)
    assert (reply.status, reply.code) == (400, "bad_request")
    assert edge.events("orders") == []


async def test_a_producer_cannot_go_unanswered(edge: Edge) -> None:
    headers = {"Producer-Id": "a", "Producer-Epoch": "0", "Producer-Seq": "0"}
    assert (await edge.post("orders", b"{}", headers=headers, query="?ack=none")).status == 400
