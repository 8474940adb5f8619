"""A credential that asks too often or holds too much open is told when to come back; nobody else notices."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import WSServerHandshakeError
from market import world
from secure_edge import secure_edge

from penstock.overload import Rate


@pytest.fixture(autouse=True)
def hook_secret(monkeypatch):
    monkeypatch.setenv("HOOK_SECRET", "s")


def limited(edge, limit):
    return edge.observer.value("penstock_rights_limited_total", limit=limit)


async def test_a_key_above_its_rate_waits_and_another_does_not(tmp_path):
    async with secure_edge(tmp_path) as edge:
        slow, other = await edge.key("read:topics", rate="2/s"), await edge.key("read:topics")
        now_s = edge.clock.monotonic()
        edge.clock.monotonic = lambda: now_s
        assert [(await edge.get("/views/topics", slow)).status for _ in range(4)] == [200, 200, 429, 429]
        refused = await edge.get("/views/topics", slow)
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "too_many", "1")
        assert (await edge.get("/views/topics", other)).status == 200
        assert limited(edge, "rate") == 3
        now_s += 0.5
        assert (await edge.get("/views/topics", slow)).status == 200


async def test_the_servers_rate_is_for_keys_without_their_own_and_not_for_what_is_open_to_all(tmp_path):
    async with secure_edge(tmp_path, rate=Rate(0.01, 1), supervisor="its parent") as edge:
        assert [(await edge.get("/views/topics")).status for _ in range(5)] == [200] * 5, "no key, no limit"
        plain, fast = await edge.key("read:topics"), await edge.key("read:topics", rate="1000/s")
        assert [(await edge.get("/views/topics", plain)).status for _ in range(2)] == [200, 429]
        assert [(await edge.get("/views/topics", fast)).status for _ in range(5)] == [200] * 5
        assert [(await edge.get("/healthz")).status for _ in range(5)] == [200] * 5
        assert [(await edge.get("/status", "its parent")).status for _ in range(5)] == [200] * 5


async def test_a_write_above_the_rate_is_counted_as_refused(tmp_path):
    async with secure_edge(tmp_path) as edge:
        key = await edge.key("write:orders", rate="1/minute")
        assert [(await edge.post("orders", key)).status for _ in range(2)] == [200, 429]
        refused = edge.observer.value("penstock_collect_requests_refused_total", stream="orders", reason="too_many")
        assert refused == 1


async def test_connections_above_the_limit_are_refused_until_one_ends(tmp_path):
    async with world(tmp_path, connections=9) as edge:
        key = await edge.key("read:orders", connections=2, sub="ann")
        shown = {"Authorization": f"Bearer {key}"}
        async with (
            edge.http.ws_connect(f"{edge.url}/views/orders/socket", headers=shown) as first,
            edge.http.get(f"{edge.url}/views/orders/events", headers=shown) as events,
        ):
            assert events.status == 200
            with pytest.raises(WSServerHandshakeError) as refused:
                await edge.http.ws_connect(f"{edge.url}/socket", headers=shown)
            assert refused.value.status == 429
            again = await edge.get("/views/orders/events", key)
            assert (again.status, again.code, again.headers["Retry-After"]) == (429, "too_many", "5")
            assert (await edge.get("/views/orders", key)).status == 200, "reads are not connections that stay"
            assert limited(edge, "connections") == 2
            ticket = (await edge.ask("POST", "/tickets", key, b'{"view": "orders"}')).body["ticket"]
            assert (await edge.get(f"/views/orders/events?ticket={ticket}")).status == 429, "a ticket is its key's"
            async with edge.http.ws_connect(f"{edge.url}/socket", headers={"Authorization": f"Bearer {edge.ann}"}):
                assert edge.rights.allowances.open == 3
            await first.close()
            async with edge.http.ws_connect(f"{edge.url}/views/orders/socket", headers=shown):
                pass
        for _ in range(5):  # a client that left is not counted, also where the server has not noticed it yet
            async with edge.http.get(f"{edge.url}/views/orders/events", headers=shown) as events:
                assert events.status == 200


async def test_a_key_that_may_hold_none_holds_none(tmp_path):
    async with world(tmp_path) as edge:
        key = await edge.key("read:orders", connections=0, sub="ann")
        assert (await edge.get("/views/orders/events", key)).status == 429
        assert (await edge.get("/views/orders", key)).status == 200


async def test_requests_that_wait_are_connections_too(tmp_path):
    async with world(tmp_path) as edge:
        key = await edge.key("read:orders", connections=1, sub="ann")
        position = (await edge.get("/views/orders", key)).body["position"]
        polling = asyncio.create_task(edge.get(f"/views/orders?since={position}&wait=20", key))
        async with asyncio.timeout(60):
            while not edge.rights.allowances.open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for path in (
            f"/views/orders?since={position}&wait=1",
            f"/views/orders?at_least={position}",
            "/views/orders/events",
        ):
            again = await edge.get(path, key)
            assert (again.status, again.code) == (429, "too_many"), path
        assert (await edge.get("/views/orders", key)).status == 200, "one that does not wait is none"
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        assert (await edge.get(f"/views/orders?since={position}&wait=0.1", key)).status == 204


async def test_each_subscribe_on_a_socket_is_a_request(tmp_path):
    async with secure_edge(tmp_path, rate=Rate(0.001, 3)) as edge:
        key = await edge.key("read:topics")
        shown = {"Authorization": f"Bearer {key}"}
        async with edge.http.ws_connect(f"{edge.url}/views/topics/socket", headers=shown) as socket:
            for number in range(3):
                await socket.send_json({"type": "subscribe", "id": f"s{number}"})
            got = {}
            for _ in range(3):
                message = await socket.receive_json(timeout=60)
                got[message["id"]] = message
            assert (got["s0"]["type"], got["s1"]["type"]) == ("snapshot", "snapshot")
            assert (got["s2"]["type"], got["s2"]["error"]["code"]) == ("error", "too_many")
            await socket.send_json({"type": "ping"})
            assert (await socket.receive_json(timeout=60))["type"] == "pong", "it stays open"
