"""Keys and certificates of a reading client: what is refused is told, and a key that was replaced is used."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from secure_edge import HOOK_SECRET, secure_edge
from served import FAST, WAYS

from penstock.client import AsyncClient
from penstock.errors import CertificateError, ForbiddenError, UnauthorizedError
from penstock.rights.tls import self_made

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", HOOK_SECRET)


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_opens_what_it_may_and_its_end_is_told(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), secure_edge(tmp_path) as edge:
        key = await edge.key("read:topics")
        async with AsyncClient(edge.url, transport=way, **FAST) as nobody:
            for refused in (anext(nobody.watch("topics")), nobody.get("topics"), nobody.views()):
                with pytest.raises(UnauthorizedError):
                    await refused
        async with AsyncClient(edge.url, key=key, transport=way, **FAST) as client:
            for refused in (anext(client.watch("hidden")), client.get("hidden"), anext(client.stream("orders"))):
                with pytest.raises(ForbiddenError):
                    await refused
            assert [view.name for view in await client.views()] == ["topics"]
            async with client.live("topics") as topics:
                assert topics["jazz"]["rsvps"] == 3
                waiting = asyncio.ensure_future(topics.changed())
                await asyncio.sleep(0.05)
                await edge.revoke(key)
                if way == "poll":  # a request that waits is refused when there is something to answer
                    stream = edge.flows.log.find("topics")
                    assert stream is not None
                    edge.flows.commit(stream, [{"topic": "rock", "rsvps": 1, "group": "a"}])
                with pytest.raises(UnauthorizedError):
                    await waiting
                assert "jazz" in topics


@pytest.mark.parametrize("way", ["websocket", "sse"])
async def test_a_key_that_was_replaced_is_shown_instead(tmp_path: Path, way: Any) -> None:
    async with asyncio.timeout(DEADLINE_S), secure_edge(tmp_path) as edge:
        keys = [await edge.key("read:topics")]
        client = AsyncClient(edge.url, key=lambda: keys[-1], transport=way, **FAST)
        async with client, client.live("topics") as topics:
            keys.append(await edge.key("read:topics", name="next"))
            await edge.revoke(keys[0])
            stream = edge.flows.log.find("topics")
            assert stream is not None
            edge.flows.commit(stream, [{"topic": "rock", "rsvps": 1, "group": "a"}])
            await topics.changed()
            assert sorted(topics) == ["jazz", "rock"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_certificate_is_trusted_by_name_and_another_is_an_error(tmp_path: Path, way: Any) -> None:
    certificate = self_made(tmp_path, "127.0.0.1")

    async def views(request: web.Request) -> web.Response:
        return web.json_response({"views": []})

    app = web.Application()
    app.router.add_get("/views", views)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.context())
    await site.start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with asyncio.timeout(DEADLINE_S):
            async with AsyncClient(url, ca=certificate.cert, transport=way, **FAST) as client:
                assert await client.views() == []
            async with AsyncClient(url, transport=way, **FAST) as stranger:
                with pytest.raises(CertificateError, match="not trusted"):
                    await stranger.views()
                with pytest.raises(CertificateError, match="not trusted"):
                    await anext(stranger.watch("topics"))
    finally:
        await runner.cleanup()
    with pytest.raises(CertificateError, match="not a certificate"):
        AsyncClient(url, ca=tmp_path / "nothing.pem")
