"""A real nginx in front of an edge: equal long polls cost one, nothing stale is given, and nothing is held up."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock.config import Folder, Limits
from tests.chaos.slow_readers import Feed, Play, Process, Scrape, _free_port, _limits, _ready

CONF = """
daemon off; master_process off; pid {path}/nginx.pid; error_log {path}/error.log;
events {{ worker_connections 500; }}
http {{
    access_log off;
    client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;
    uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
    proxy_cache_path {path}/cache keys_zone=views:1m;
    server {{
        listen 127.0.0.1:{port};
        proxy_http_version 1.1; proxy_set_header Host 127.0.0.1; proxy_set_header Connection "";
        location / {{
            proxy_pass http://127.0.0.1:{edge};
            proxy_cache views; proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s;
            add_header X-Cache $upstream_cache_status always;
        }}
        location /kept/ {{
            proxy_pass http://127.0.0.1:{edge}/; proxy_cache views; proxy_cache_revalidate on;
            proxy_ignore_headers Cache-Control; proxy_cache_valid 200 1s;
            add_header X-Cache $upstream_cache_status always;
        }}
        location ~ /socket$ {{
            proxy_pass http://127.0.0.1:{edge}; proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
        }}
    }}
}}
"""


@dataclass
class Proxied:
    """An edge, the feed of its view, and nginx before it."""

    feed: Feed
    scrape: Scrape
    http: aiohttp.ClientSession

    async def get(self, path: str, **params: Any) -> tuple[str, dict[str, Any]]:
        """What the cache says of it, and the body."""
        async with self.http.get(path, params=params) as reply:
            text = await reply.text()
            assert reply.status == 200, (reply.status, text)
            return reply.headers["X-Cache"], json.loads(text)


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[Proxied]:
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if nginx is None:
        pytest.skip("WHAT A PROXY MAY KEEP WAS NOT TESTED: there is no nginx; `sh tests/e2e/nginx.sh` installs it")
    async with AsyncExitStack() as stack:
        what = Play(limits=Limits(), message_bytes=400)
        feed = Feed(Folder(tmp_path / "data"), what)
        stack.callback(feed.log.close)
        feed.commit()
        edge_port, port = _free_port(), _free_port()
        edge = await Process.start(
            "tests.chaos.slow_readers", "--edge", str(edge_port), str(tmp_path / "data"), _limits(what.limits)
        )
        stack.push_async_callback(edge.stop)
        conf = tmp_path / "nginx.conf"
        conf.write_text(CONF.format(path=tmp_path, port=port, edge=edge_port))
        proxy = Process(await asyncio.create_subprocess_exec(nginx, "-c", str(conf), "-p", str(tmp_path)))
        stack.push_async_callback(proxy.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        await _ready(http, edge_port)
        await _ready(http, port)
        yield Proxied(feed, Scrape(edge_port, http), http)


async def test_equal_long_polls_through_a_proxy_cost_the_edge_one(proxied: Proxied) -> None:
    _, body = await proxied.get("/views/board")
    before = (await proxied.scrape()).get("penstock_serve_subscriptions_total", 0.0)
    polls = [asyncio.create_task(proxied.get("/views/board", since=body["position"], wait="20")) for _ in range(20)]
    assert await proxied.scrape.until("penstock_serve_subscriptions_total", before + 1, 60)
    proxied.feed.commit()
    answers = await asyncio.gather(*polls)
    assert (await proxied.scrape())["penstock_serve_subscriptions_total"] == before + 1
    assert sorted({cache for cache, _ in answers}) == ["HIT", "MISS"]
    assert all(answer == answers[0][1] for _, answer in answers)
    assert answers[0][1]["messages"][0]["upserts"][0]["n"] == proxied.feed.n
    late = await proxied.get("/views/board", since=body["position"], wait="20")
    assert late == ("HIT", answers[0][1]), "who comes later begins with the same"
    proxied.feed.commit()
    _, then = await proxied.get("/views/board", since=late[1]["position"], wait="20")
    assert then["messages"][-1]["upserts"][0]["n"] == proxied.feed.n, "and goes on with what is new"


async def test_a_proxy_gives_no_rows_that_are_stale(proxied: Proxied) -> None:
    for _ in range(5):
        proxied.feed.commit()
        async with asyncio.timeout(60):
            while (await proxied.get("/views/board"))[1]["rows"][0]["n"] < proxied.feed.n:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        cache, _ = await proxied.get("/views/board")
        assert cache == "MISS", "no-cache: nginx keeps nothing that it would have to ask about"


async def test_a_proxy_that_keeps_rows_anyway_asks_with_the_tag_and_is_told_whether_they_hold(proxied: Proxied) -> None:
    assert (await proxied.get("/kept/views/board"))[0] == "MISS"
    assert (await proxied.get("/kept/views/board"))[0] == "HIT"
    async with asyncio.timeout(60):  # past what the proxy was told to keep
        cache, held = await proxied.get("/kept/views/board")
        while cache == "HIT":
            await asyncio.sleep(0.5)
            cache, held = await proxied.get("/kept/views/board")
    assert cache == "REVALIDATED"
    proxied.feed.commit()
    async with asyncio.timeout(60):
        while (await proxied.get("/kept/views/board"))[1] == held:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_events_and_sockets_pass_a_proxy_at_once(proxied: Proxied) -> None:
    async with proxied.http.get("/views/board/events") as events, proxied.http.ws_connect("/views/board/socket") as ws:
        await ws.send_json({"type": "subscribe"})
        assert (await ws.receive_json(timeout=60))["type"] == "snapshot"
        async with asyncio.timeout(60):
            while not (await events.content.readline()).startswith(b"event: snapshot"):
                pass
            proxied.feed.commit()
            assert (await ws.receive_json())["type"] == "changes"
            while not (await events.content.readline()).startswith(b"event: changes"):
                pass
