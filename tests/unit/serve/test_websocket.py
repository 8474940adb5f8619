"""A socket answers what it cannot do with an error and stays open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from edge import DEADLINE_S, flows_and_edge
from fake_flows import topic

BAD: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "bad_request"),
    "no object": ("[1]", "bad_request"),
    "no type": ("{}", "bad_request"),
    "unknown type": ('{"type": "dance", "id": "s"}', "bad_request"),
    "unknown view": ('{"type": "subscribe", "id": "s", "view": "nope"}', "unknown_view"),
    "unknown stream": ('{"type": "subscribe", "id": "s", "stream": "nope"}', "unknown_stream"),
    "neither": ('{"type": "subscribe", "id": "s"}', "bad_request"),
    "bad where": ('{"type": "subscribe", "id": "s", "view": "topics", "where": "drop table"}', "bad_query"),
    "bad limit": ('{"type": "subscribe", "id": "s", "view": "topics", "limit": -1}', "bad_query"),
    "bad select": ('{"type": "subscribe", "id": "s", "view": "topics", "select": {"a": 1}}', "bad_query"),
    "unknown column": ('{"type": "subscribe", "id": "s", "view": "topics", "order_by": "nope"}', "bad_query"),
    "bad since": ('{"type": "subscribe", "id": "s", "view": "topics", "since": "zz"}', "bad_position"),
    "since of a stream": ('{"type": "subscribe", "id": "s", "view": "topics", "since": 5}', "bad_request"),
    "bad id": ('{"type": "subscribe", "id": 7, "view": "topics"}', "bad_request"),
    "not subscribed": ('{"type": "unsubscribe", "id": "s"}', "bad_request"),
}


@pytest.mark.parametrize("what", BAD)
async def test_bad_input_is_an_error_and_the_socket_stays_open(tmp_path: Path, what: str) -> None:
    text, code = BAD[what]
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        async with running.http.ws_connect("/socket") as ws:
            await ws.send_str(text)
            answer = await ws.receive_json(timeout=DEADLINE_S)
            assert answer["type"] == "error"
            assert answer["error"]["code"] == code
            assert set(answer["error"]) == {"code", "message", "detail", "hint"}
            await ws.send_json({"type": "subscribe", "id": "good", "view": "topics"})
            assert (await ws.receive_json(timeout=DEADLINE_S))["rows"] == [topic("a", 1)]


async def test_many_subscriptions_share_a_socket_and_end_alone(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 2)])
        async with running.http.ws_connect("/socket") as ws:
            for name in ("a", "b"):
                await ws.send_json(
                    {"type": "subscribe", "id": name, "view": "topics", "where": f"topic = '{name}'", "limit": None}
                )
            seen: dict[str, Any] = {}
            for _ in range(2):
                message = await ws.receive_json(timeout=DEADLINE_S)
                seen[message["id"]] = message["rows"]
            assert seen == {"a": [topic("a", 1)], "b": [topic("b", 2)]}
            await ws.send_json({"type": "unsubscribe", "id": "a"})
            await ws.send_json({"type": "ping", "id": "p"})
            assert await ws.receive_json(timeout=DEADLINE_S) == {"type": "pong", "id": "p"}
            flows.commit(stream, [topic("a", 5), topic("b", 6)])
            message = await ws.receive_json(timeout=DEADLINE_S)
            assert (message["id"], message["upserts"]) == ("b", [topic("b", 6)])
            await ws.send_json({"type": "subscribe", "id": "a", "view": "topics", "limit": 1})
            assert (await ws.receive_json(timeout=DEADLINE_S))["rows"] == [topic("b", 6)]


async def test_an_id_can_be_used_once_at_a_time(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.build()
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe"})
            assert (await ws.receive_json(timeout=DEADLINE_S))["id"] == "topics"
            await ws.send_json({"type": "subscribe"})
            answer = await ws.receive_json(timeout=DEADLINE_S)
            assert "in use" in answer["error"]["message"]


async def test_a_row_that_leaves_the_top_is_a_delete_with_its_key(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 2), topic("c", 3)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "limit": 2})
            assert [row["topic"] for row in (await ws.receive_json(timeout=DEADLINE_S))["rows"]] == ["c", "b"]
            flows.commit(stream, [topic("a", 9)])
            message = await ws.receive_json(timeout=DEADLINE_S)
            assert message["upserts"] == [topic("a", 9)]
            assert message["deletes"] == [{"topic": "b"}]


async def test_a_stopping_edge_says_goodbye(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.build()
        ws = await running.http.ws_connect("/views/topics/socket")
        await ws.send_json({"type": "subscribe"})
        await ws.receive_json(timeout=DEADLINE_S)
        last = asyncio.create_task(ws.receive(timeout=DEADLINE_S))
        await running.server.close()
        await last
        assert ws.close_code == 1001
