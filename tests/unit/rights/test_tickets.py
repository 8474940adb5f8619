"""A ticket opens one thing for a minute to whom it was given, and what it opened ends with the right behind it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import pytest_asyncio
from aiohttp import WSMsgType, WSServerHandshakeError
from market import BOBS, SECRET, filled, market, world
from playing import PlayedClock
from secure_edge import Answer, SecureEdge, secure_edge

from penstock.log.control import ControlMap
from penstock.rights.credential import Credential
from penstock.rights.redaction import redacted
from penstock.rights.scope import Scope
from penstock.rights.tickets import LIFE_S, ROTATE_S, SECRETS, TicketFault, Tickets


@pytest_asyncio.fixture
async def edge(tmp_path: Path) -> AsyncIterator[SecureEdge]:
    async with world(tmp_path) as made:
        yield made


async def ask(edge: SecureEdge, key: str | None, **what: Any) -> Answer:
    return await edge.ask("POST", "/tickets", key, json.dumps(what).encode(), Content_Type="application/json")


async def ticket(edge: SecureEdge, key: str, **what: Any) -> str:
    answer = await ask(edge, key, **what)
    assert answer.status == 201, answer.raw
    return str(answer.body["ticket"])


async def opened(edge: SecureEdge, path: str) -> tuple[int, Any]:
    """What an EventSource gets first."""
    async with edge.http.get(edge.url + path) as reply:
        if reply.status != 200:
            return reply.status, json.loads(await reply.read())
        async for line in reply.content:
            if line.startswith(b"data: "):
                return 200, json.loads(line[6:])
    return 0, None


async def test_a_browser_follows_its_own_rows_with_a_ticket_and_no_header(edge):
    shown = await ticket(edge, edge.ann, view="orders")
    status, message = await opened(edge, f"/views/orders/events?ticket={shown}")
    assert (status, [row["order_id"] for row in message["rows"]]) == (200, [3, 2, 1])
    async with edge.http.ws_connect(f"{edge.url}/views/orders/socket?ticket={shown}") as socket:
        await socket.send_json({"type": "subscribe"})
        assert len((await socket.receive_json(timeout=60))["rows"]) == 3
        for other in ({"view": "teams"}, {"stream": "sales"}, {"channel": "large"}):
            await socket.send_json({"type": "subscribe", "id": "x"} | other)
            refused = await socket.receive_json(timeout=60)
            assert refused["error"]["code"] == "forbidden", "a ticket opens one thing"


async def test_streams_and_channels_have_tickets_too(edge):
    shown = await ticket(edge, edge.ann, channel="large")
    status, message = await opened(edge, f"/channels/large/events?ticket={shown}")
    assert (status, message["rows"]) == (
        200,
        [{"order_id": 3, "user_id": "ann", "amount": 500}, {"order_id": 2, "user_id": "ann", "amount": 50}],
    )
    shown = await ticket(edge, edge.ann, stream="sales")
    status, message = await opened(edge, f"/streams/sales/events?ticket={shown}")
    assert {event["user_id"] for event in message["events"]} == {"ann"}


async def test_a_ticket_is_no_wider_than_who_asked_for_it(edge):
    narrow = await edge.key("read:orders(order_id,amount)", sub="ann")
    status, message = await opened(edge, f"/views/orders/events?ticket={await ticket(edge, narrow, view='orders')}")
    assert (status, set(message["rows"][0])) == (200, {"order_id", "amount"})
    admins = await ticket(edge, edge.admin, view="orders")
    _, message = await opened(edge, f"/views/orders/events?ticket={admins}")
    assert len(message["rows"]) > 3, "an administrator's ticket shows all rows of its view"
    assert (await opened(edge, f"/views/teams/events?ticket={admins}"))[0] == 403
    for path in ("/views/orders", "/status", "/metrics", "/streams", "/socket"):
        assert (await edge.get(f"{path}?ticket={admins}")).status == 401, path
    assert (await edge.ask("POST", f"/views/orders/rebuild?ticket={admins}")).status == 401


async def test_who_may_not_read_it_gets_none(edge):
    other = await edge.key("read:teams", teams=["a"])
    assert (await ask(edge, other, view="orders")).code == "forbidden"
    assert (await ask(edge, await edge.key("read:orders"), view="orders")).code == "forbidden"
    assert (await ask(edge, None, view="orders")).code == "unauthorized"
    assert (await ask(edge, edge.ann, view="nope")).code == "unknown_view"
    assert (await ask(edge, edge.ann, stream="nope")).code == "unknown_stream"
    assert (await ask(edge, edge.ann, channel="nope")).code == "unknown_channel"
    for body in (
        b"",
        b"[]",
        b"{",
        b'{"view": 1}',
        b'{"view": "orders", "stream": "sales"}',
        b'{"views": "orders"}',
        b"\xff",
    ):
        answer = await edge.ask("POST", "/tickets", edge.ann, body)
        assert (answer.status, answer.code) == (400, "bad_request"), body


async def test_a_ticket_that_was_changed_opens_nothing(edge):
    shown = await ticket(edge, edge.ann, view="orders")
    start, payload, mac = shown.split(".")
    paper = json.loads(base64.urlsafe_b64decode(payload + "==="))
    assert "ann" in json.dumps(paper)
    changed = [
        json.dumps(paper).replace("ann", "bob"),
        json.dumps([*paper[:7], True, *paper[8:]]),
        json.dumps([*paper[:8], paper[8] + 10**12, *paper[9:]]),
        "[]",
        "{}",
    ]
    forged = [f"{start}.{base64.urlsafe_b64encode(text.encode()).decode().rstrip('=')}.{mac}" for text in changed]
    forged += [
        f"{start}.{payload}.",
        f"{start}.{payload}",
        f"{start}..{mac}",
        f"{start}.{payload}.{mac}A",
        f"{start}.{payload}.{mac}=",
        f"{start}.{payload}.{mac[:-1]}",
        f"pst_00000000.{payload}.{mac}",
        f"{start}.{payload}\n.{mac}",
        "pst_",
        "x" * 9_000,
        "é",
        edge.ann,
        edge.admin,
    ]
    for text in forged:
        async with edge.http.get(f"{edge.url}/views/orders/events", params={"ticket": text}) as reply:
            assert reply.status in (400, 401), text
            assert b"hunter2" not in await reply.read()
    assert edge.refused("ticket") >= 10


async def test_a_minute_later_it_opens_nothing_but_what_it_opened_goes_on(edge):
    shown = await ticket(edge, edge.ann, view="orders")
    async with edge.http.get(f"{edge.url}/views/orders/events?ticket={shown}") as reply:
        while not (await reply.content.readline()).startswith(b"data: "):
            pass
        edge.clock.pass_s(LIFE_S + 1)
        status, body = await opened(edge, f"/views/orders/events?ticket={shown}")
        assert (status, body["error"]["code"]) == (401, "unauthorized")
        assert "POST /tickets" in body["error"]["detail"]
        edge.flows.commit(edge.orders, [{**BOBS[0], "order_id": 4, "user_id": "ann", "note": "later"}])
        lines = [await asyncio.wait_for(reply.content.readline(), 60) for _ in range(4)]
        assert any(b"later" in line for line in lines)


async def test_what_a_ticket_opened_ends_with_the_key_or_the_token_behind_it(edge):
    token = jwt.encode({"sub": "ann", "scope": "read:orders", "exp": edge.clock.now_s + 30}, SECRET, algorithm="HS256")
    for credential, end in ((edge.ann, edge.revoke), (token, None)):
        shown = await ticket(edge, credential, view="orders")
        async with (
            edge.http.ws_connect(f"{edge.url}/views/orders/socket?ticket={shown}") as socket,
            edge.http.get(f"{edge.url}/views/orders/events?ticket={shown}") as events,
        ):
            await socket.send_json({"type": "subscribe"})
            await socket.receive_json(timeout=60)
            if end is not None:
                await end(credential)
            else:
                edge.clock.pass_s(31)
                await edge.rights.tick()
            assert (await socket.receive_json(timeout=60))["error"]["code"] == "unauthorized"
            assert (await socket.receive(timeout=60)).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
            assert socket.close_code == 4401
            assert b"unauthorized" in await asyncio.wait_for(events.content.read(), 60)
        with pytest.raises(WSServerHandshakeError) as refused:
            await edge.http.ws_connect(f"{edge.url}/views/orders/socket?ticket={shown}")
        assert refused.value.status == 401


async def test_a_server_without_keys_gives_tickets_that_end_with_its_first_key(tmp_path):
    async with secure_edge(tmp_path, app=market, site=filled(BOBS)) as edge:
        shown = await ticket(edge, "", view="orders")
        assert (await opened(edge, f"/views/orders/events?ticket={shown}"))[0] == 200
        await edge.key("read:*", sub="ann")
        assert (await opened(edge, f"/views/orders/events?ticket={shown}"))[0] == 401


async def test_another_edge_with_the_same_log_takes_it_and_the_secret_is_made_once(tmp_path):
    async with world(tmp_path) as edge:
        first = await ticket(edge, edge.ann, view="orders")
        await ticket(edge, edge.ann, view="orders")
        memory = edge.log.memory()
        assert len(memory[SECRETS]) == 1
    assert Tickets(memory, edge.clock).read(first).name == "orders"


async def test_the_secret_changes_once_a_day_and_tickets_that_are_out_stay_good():
    clock, kept = PlayedClock(), ControlMap()

    async def remember(values):
        kept.apply(values)

    tickets = Tickets(kept, clock, remember)
    ann = Credential("key/1", "ann", (Scope("read", "orders"),))
    clock.pass_s(5)
    first, _ = await tickets.issue(ann, "view", "orders", {})
    clock.pass_s(ROTATE_S - 30)
    old, _ = await tickets.issue(ann, "view", "orders", {})
    assert old.split(".")[0] == first.split(".")[0]
    clock.pass_s(31)
    new, _ = await tickets.issue(ann, "view", "orders", {})
    assert new.split(".")[0] != old.split(".")[0]
    for each in (old, new):
        assert Tickets(kept, clock).read(each).owner == "key/1"
    clock.pass_s(ROTATE_S)
    await tickets.issue(ann, "view", "orders", {})
    clock.pass_s(ROTATE_S)
    await tickets.issue(ann, "view", "orders", {})
    assert len(kept[SECRETS]) == 2
    with pytest.raises(TicketFault, match="not one of this server"):
        tickets.read(old)


async def test_claims_that_no_address_holds_are_told(edge):
    many = [f"team-number-{number}" for number in range(220)]
    token = jwt.encode({"scope": "read:teams", "teams": many}, SECRET, algorithm="HS256")
    answer = await ask(edge, token, view="teams")
    assert (answer.status, answer.code) == (400, "bad_request")


async def test_no_log_line_holds_a_ticket(edge, caplog):
    shown = await ticket(edge, edge.ann, view="orders")
    for line in (f"GET /views/orders/events?ticket={shown} HTTP/1.1", f"a ticket {shown} here"):
        assert shown[13:] not in redacted(line)
        assert "***" in redacted(line)
    caplog.set_level(logging.DEBUG)
    await opened(edge, f"/views/orders/events?ticket={shown}")
    await opened(edge, f"/views/teams/events?ticket={shown}")
    assert shown not in caplog.text
