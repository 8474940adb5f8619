"""An edge with tables for tests: everything but Spark, as a client sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout
from aiohttp.test_utils import TestServer

from penstock import App
from penstock.config import Folder, Limits
from penstock.run.edge import open_edge
from penstock.run.edge_log import Setting


class Edge:
    """One edge as a client sees it."""

    def __init__(self, http: ClientSession) -> None:
        self.http = http
        self.seen: set[tuple[str, str, int]] = set()
        """Methods, things and statuses."""

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, str | None]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(
            method, path, data=data, headers={"Content-Type": "application/json"} | named
        ) as r:
            text = await r.text()
            if path.startswith("/tables/"):
                self.seen.add((method, path.split("?")[0].split("/", 3)[2], r.status))
            return r.status, json.loads(text) if text else None, r.headers.get("ETag")

    async def put(self, path: str, row: Any, **headers: str) -> tuple[int, Any, str | None]:
        return await self.ask("PUT", path, row, **headers)

    async def rows(self, table: str = "users", query: str = "") -> list[Any]:
        status, body, _ = await self.ask("GET", f"/views/{table}{query}")
        assert status == 200, body
        return sorted(body["rows"], key=str)


@asynccontextmanager
async def edge(path: Path, app: App, *, opening: Any = open_edge, **limits: Any) -> AsyncIterator[Edge]:
    folder = Folder(path)
    for made in (folder.run, folder.inbox):
        made.mkdir(exist_ok=True)
    async with AsyncExitStack() as opened:
        setting = Setting(app.declared(), folder, limits=Limits(**limits))
        server = await opened.enter_async_context(TestServer(await opening(setting, opened)))
        timeout = ClientTimeout(total=60)
        http = await opened.enter_async_context(ClientSession(base_url=server.make_url("/"), timeout=timeout))
        made = Edge(http)
        yield made
        _, document, _ = await made.ask("GET", "/openapi.json")
        for method, table, status in made.seen if opening is open_edge else ():
            path = f"/tables/{table}" if method == "POST" else f"/tables/{table}/{{key}}"
            if table in ("users", "prices", "counts"):
                assert str(status) in document["paths"][path][method.lower()]["responses"], (method, path, status)
