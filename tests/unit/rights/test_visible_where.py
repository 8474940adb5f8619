"""Readers see their own rows and columns, and are told nothing of the others; an administrator sees all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from market import BOBS, OWN, world
from secure_edge import SecureEdge

from penstock.rights.credential import ANONYMOUS


@pytest_asyncio.fixture
async def edge(tmp_path: Path) -> AsyncIterator[SecureEdge]:
    async with world(tmp_path) as made:
        yield made


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["order_id"] for row in rows]


async def test_each_sees_its_own_rows_and_an_administrator_all(edge):
    bob = await edge.key("read:orders", sub="bob")
    assert ids((await edge.get("/views/orders", edge.ann)).body["rows"]) == [3, 2, 1]
    assert ids((await edge.get("/views/orders", bob)).body["rows"]) == [9001, 9002]
    assert ids((await edge.get("/views/orders", edge.admin)).body["rows"]) == [9001, 3, 2, 1, 9002]
    assert ids((await edge.get("/views/orders?key=9001", bob)).body["rows"]) == [9001]
    assert (await edge.get("/views/orders?key=9001", edge.ann)).body["rows"] == []
    assert ids((await edge.get("/views/orders?limit=1", edge.ann)).body["rows"]) == [3]


async def test_a_stream_shows_each_its_own_events_from_any_position(edge):
    events = (await edge.get("/streams/sales", edge.ann)).body
    assert ids(events["events"]) == [1, 2, 3]
    everything = (await edge.get("/streams/sales", edge.admin)).body["events"]
    assert ids(everything) == ids([*OWN, *BOBS])
    for event in everything:
        rest = (await edge.get(f"/streams/sales?after={event['_position']}", edge.ann)).body["events"]
        assert {e["user_id"] for e in rest} <= {"ann"}


async def test_ledgers_quote_nothing_of_such_a_stream_to_who_is_no_administrator(edge):
    assert len((await edge.get("/streams/dead", edge.admin)).body["events"]) == 6
    reader = await edge.key("read:dead", "read:late", "write:sales", name="auditor")
    for key in (edge.ann, reader):
        assert (await edge.get("/streams/dead", key)).body["events"] == []
        assert (await edge.get("/streams/dead?where=stream='sales' OR true", key)).body["events"] == []
    await edge.post("returns", edge.admin, b'{"order_id": "x"}')
    assert [e["stream"] for e in (await edge.get("/streams/dead", reader)).body["events"]] == ["returns"]


async def test_what_became_of_a_request_is_told_to_who_may_write_there(edge):
    ack = (await edge.post("sales", edge.admin, b'{"order_id": 8, "user_id": "bob"}')).body["ack"]
    assert (await edge.get(f"/acks/{ack}", edge.ann)).code == "forbidden"
    assert (await edge.get(f"/acks/{ack}", await edge.key("write:sales"))).status == 200
    assert (await edge.get(f"/acks/{ack}", edge.admin)).status == 200


async def test_counts_of_what_is_hidden_are_not_told(edge):
    def find(bodies: list[Any], field: str, name: str) -> Any:
        return next(body for body in bodies if body[field] == name)

    async def counted() -> list[Any]:
        streams: list[Any] = (await edge.get("/streams", edge.admin)).body["streams"]
        return streams if find(streams, "stream", "dead")["totals"]["accepted"] else []

    async with asyncio.timeout(60):
        while not (streams := await counted()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert find(streams, "stream", "sales")["totals"]["accepted"] == 6
    for path in ("/status", "/streams"):
        mine = (await edge.get(path, edge.ann)).body["streams"]
        for name in ("sales", "dead", "late"):
            assert set(find(mine, "stream", name)["totals"].values()) == {None}
            assert find(mine, "stream", name)["rates"] == {"accepted": None}
        assert find(mine, "stream", "returns")["totals"]["accepted"] == 0
    for path in ("/status", "/views"):
        assert find((await edge.get(path, edge.ann)).body["views"], "view", "orders")["rows"] is None
        assert find((await edge.get(path, edge.admin)).body["views"], "view", "orders")["rows"] == 5
    flow = find((await edge.get("/status", edge.ann)).body["flows"], "flow", "orders")
    assert (flow["rate"], flow["lag_events"], flow["batch_ms"]) == (None, None, None)
    assert (await edge.get("/readyz", edge.ann)).body["views"]["orders"]["rows"] is None
    assert (await edge.get("/readyz", edge.admin)).body["views"]["orders"]["rows"] == 5


async def test_the_words_of_a_flows_error_may_quote_a_row_so_they_are_not_told(edge):
    edge.flows.state("orders", "stopped", {"code": "poison", "message": "'hunter2' cannot be cast", "hint": "hunter2"})
    async with asyncio.timeout(60):
        while (await edge.get("/views", edge.admin)).body["views"][0]["flow"]["state"] != "stopped":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for path in ("/views", "/status"):
        assert b"hunter2" in (await edge.get(path, edge.admin)).raw
        assert b"hunter2" not in (await edge.get(path, edge.ann)).raw


# Columns


@pytest.mark.parametrize("path", ["/views/orders", "/streams/sales"])
async def test_a_list_of_columns_is_all_that_is_read_over_every_transport(edge, path):
    name = path.rpartition("/")[2]
    key = await edge.key(f"read:{name}(order_id,amount)", sub="ann")
    body = (await edge.get(path, key)).body
    found = body.get("rows") or body["events"]
    assert {frozenset(row) - {"_position"} for row in found} == {frozenset({"order_id", "amount"})}
    shown = {"Authorization": f"Bearer {key}"}
    async with edge.http.get(f"{edge.url}{path}/events", headers=shown) as reply:
        while not (line := await reply.content.readline()).startswith(b"data: "):
            pass
        assert b"tea" not in line
        assert b"user_id" not in line
    async with edge.http.ws_connect(f"{edge.url}{path}/socket", headers=shown) as socket:
        await socket.send_json({"type": "subscribe"})
        message = await socket.receive(timeout=60)
        assert "tea" not in message.data
        assert "user_id" not in message.data
        await socket.send_json({"type": "subscribe", "id": "x", "where": "note = 'tea'"})
        assert (await socket.receive_json(timeout=60))["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    "query",
    [
        "where=note='tea'",
        "where=NOTE IS NULL",
        "where=order_id=1 OR length(note)>0",
        "select=note",
        "select=order_id,Note",
        "order_by=note",
        "order_by=-NOTE",
        "where='tea'=ANY(tags)",
        "where=`note`='tea'",
        "where=tags[0]='ann'",
    ],
)
async def test_a_hidden_column_may_not_be_named(edge, query):
    key = await edge.key("read:orders(order_id,amount)", sub="ann")
    answer = await edge.get(f"/views/orders?{query}", key)
    assert (answer.status, answer.code) == (403, "forbidden"), answer.raw
    name = query.partition("=")[0]
    unknown = await edge.get(f"/views/orders?{name}=nothing{'=1' if name == 'where' else ''}", key)
    assert unknown.status == 400
    assert "note" not in json.dumps(unknown.body)


async def test_rows_are_not_ordered_by_a_column_that_is_hidden(edge):
    key = await edge.key("read:orders(order_id,note)", sub="ann")
    assert ids((await edge.get("/views/orders", key)).body["rows"]) == [1, 2, 3], "by the key, not by -amount"
    assert ids((await edge.get("/views/orders?limit=1", key)).body["rows"]) == [1]


async def test_a_change_of_a_hidden_column_is_no_change(edge):
    key = await edge.key("read:orders(order_id,note)", sub="ann")
    since = (await edge.get("/views/orders", key)).body["position"]
    edge.flows.commit(edge.orders, [OWN[0] | {"amount": 6}])
    answer = await edge.get(f"/views/orders?since={since}&wait=0.5", key)
    assert answer.status == 204 or all(m["type"] == "position" for m in answer.body["messages"])


async def test_lists_name_only_columns_that_may_be_read(edge):
    key = await edge.key("read:orders(order_id,note)", "read:sales(order_id)", "read:large(order_id)", sub="ann")
    (view,) = (await edge.get("/views", key)).body["views"]
    assert [c["name"] for c in view["columns"]] == ["order_id", "note"]
    assert not view["order_by"]
    (channel,) = (await edge.get("/channels", key)).body["channels"]
    assert [c["name"] for c in channel["columns"]] == ["order_id"]
    assert (await edge.get("/streams/sales/schema", key)).code == "forbidden"
    assert (await edge.get("/streams/sales/schema", edge.ann)).status == 200


async def test_a_list_without_the_key_opens_nothing_and_says_why(edge):
    key = await edge.key("read:orders(note)", sub="ann")
    answer = await edge.get("/views/orders", key)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "'order_id'" in answer.body["error"]["message"]


async def test_two_lists_open_both_and_a_right_without_a_list_all(edge):
    both = await edge.key("read:orders(order_id)", "read:orders(order_id,note)", sub="ann")
    assert set((await edge.get("/views/orders", both)).body["rows"][0]) == {"order_id", "note"}
    every = await edge.key("read:orders(order_id)", "read:ord*", sub="ann")
    assert len((await edge.get("/views/orders", every)).body["rows"][0]) == 5


# Channels


async def test_a_channel_is_read_without_the_view_and_shows_no_more_than_it_says(edge):
    key = await edge.key("read:large", sub="ann")
    assert (await edge.get("/views/orders", key)).code == "forbidden"
    body = (await edge.get("/channels/large", key)).body
    assert body["view"] == "orders"
    assert body["rows"] == [
        {"order_id": 3, "user_id": "ann", "amount": 500},
        {"order_id": 2, "user_id": "ann", "amount": 50},
    ]
    assert ids((await edge.get("/channels/large?where=amount<100 OR amount<10", key)).body["rows"]) == [2]
    assert (await edge.get("/channels/large?select=note", key)).code == "forbidden"
    assert (await edge.get("/channels/large?where=note='cups'", key)).code == "forbidden"
    assert (await edge.get("/channels/large?select=amount", key)).body["rows"][0] == {"order_id": 3, "amount": 500}
    assert (await edge.get("/channels/large?key=1", key)).body["rows"] == [], "it is too small for the channel"
    admins = (await edge.get("/channels/large", edge.admin)).body["rows"]
    assert ids(admins) == [9001, 3, 2], "an administrator sees all rows of the channel, and no others"


async def test_a_position_of_the_view_is_one_of_the_channel(edge):
    since = (await edge.get("/views/orders", edge.ann)).body["position"]
    edge.flows.commit(edge.orders, [OWN[0] | {"amount": 11}, OWN[1] | {"amount": 10}])
    (message,) = (await edge.get(f"/channels/large?since={since}&wait=60", edge.ann)).body["messages"]
    assert (ids(message["upserts"]), message["deletes"]) == ([1], [{"order_id": 2}])


async def test_a_channel_of_a_stream(edge):
    key = await edge.key("read:sold", sub="ann")
    body = (await edge.get("/channels/sold", key)).body
    assert [{n: v for n, v in e.items() if n != "_position"} for e in body["events"]] == [
        {"order_id": 2, "user_id": "ann"},
        {"order_id": 3, "user_id": "ann"},
    ]
    assert (await edge.get("/channels/sold?where=amount>1", key)).code == "forbidden"
    shown = {"Authorization": f"Bearer {key}"}
    async with edge.http.ws_connect(f"{edge.url}/channels/sold/socket", headers=shown) as socket:
        await socket.send_json({"type": "subscribe"})
        message = await socket.receive_json(timeout=60)
        assert (message["id"], message["type"], ids(message["events"])) == ("sold", "events", [2, 3])
        await socket.send_json({"type": "subscribe", "stream": "sales"})
        assert (await socket.receive_json(timeout=60))["error"]["code"] == "forbidden"


async def test_channels_are_listed_and_drawn_for_those_who_may_read_them(edge):
    key = await edge.key("read:large", sub="ann")
    (one,) = (await edge.get("/channels", key)).body["channels"]
    assert (one["channel"], one["view"], one["policy"], one["where"]) == ("large", "orders", "conflate", "amount > 10")
    graph = (await edge.get("/graph", key)).body
    assert [(n["name"], n["kind"]) for n in graph["nodes"]] == [("large", "channel")]
    graph = (await edge.get("/graph", edge.admin)).body
    assert ("orders", "large") in {(edge["from"], edge["to"]) for edge in graph["edges"]}
    assert (await edge.get("/channels/nope", edge.admin)).code == "unknown_channel"
    assert edge.serving._catalogue.question({}, ANONYMOUS, "sold").policy == "every_change"


# Webhooks


async def test_a_webhook_delivers_what_its_owner_may_see(edge):
    taken: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        taken.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/{tail:.*}", take)
    async with TestServer(app) as receiver:
        narrow = await edge.key("read:orders(order_id,amount)", sub="ann")
        for key, what in (
            (edge.ann, {"view": "orders"}),
            (edge.ann, {"stream": "sales"}),
            (narrow, {"view": "orders"}),
        ):
            body = json.dumps({"url": str(receiver.make_url("/hook")), "shape": "batch"} | what).encode()
            made = await edge.ask("POST", "/webhooks", key, body, Content_Type="application/json")
            assert made.status == 201, made.raw
        edge.flows.commit(edge.orders, [BOBS[0] | {"amount": 9}, OWN[0] | {"amount": 7}], [BOBS[1]])
        for user in ("bob", "ann"):
            sale = {"order_id": 5, "user_id": user, "note": f"for {user}"}
            await edge.post("sales", edge.admin, json.dumps(sale).encode())
        async with asyncio.timeout(60):
            while len(taken) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    said = json.dumps(taken)
    assert "hunter2" not in said
    assert "bob" not in said
    assert sum(said.count(f'"amount": {n}') for n in (7,)) == 2
    assert "for ann" in said


@pytest.mark.parametrize("what", [{"view": "orders"}, {"stream": "sales"}, {"view": "orders", "where": "note = 'tea'"}])
async def test_who_may_not_see_it_makes_no_webhook(edge, what):
    body = json.dumps({"url": "http://127.0.0.1:9/"} | what).encode()
    key = await edge.key("read:orders(order_id)", "read:sales", **({"sub": "ann"} if "where" in what else {}))
    answer = await edge.ask("POST", "/webhooks", key, body, Content_Type="application/json")
    assert (answer.status, answer.code) == (403, "forbidden"), answer.raw
