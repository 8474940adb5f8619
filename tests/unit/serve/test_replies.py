"""What clients do wrong is answered and counted, and does not fill the server's log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from penstock.errors import UnsupportedContentError
from penstock.observe.metrics import Observer
from penstock.serve.replies import errors_as_json, quieten


async def quoting(request: web.Request) -> web.Response:
    raise UnsupportedContentError(f"'{request.headers['X']}' is not known")


async def failing(request: web.Request) -> web.Response:
    raise ConnectionResetError("gone")


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application(middlewares=[errors_as_json(Observer())])
    app.router.add_get("/quoting", quoting)
    app.router.add_get("/failing", failing)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def send(port: int, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    reply = await reader.read()
    writer.close()
    await writer.wait_closed()
    return reply


async def test_broken_http_and_lost_connections_are_not_logged_but_counted(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[None] = []
    end = quieten(lambda: refused.append(None))
    assert b" 400 " in await send(port, b"GET nonsense\r\n\r\n")
    await send(port, b"GET /failing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    logging.getLogger("aiohttp.server").error("something of the server's own")
    assert [record.message for record in caplog.records] == ["something of the server's own"]
    assert len(refused) == 1
    end()
    await send(port, b"GET nonsense\r\n\r\n")
    assert len(caplog.records) == 2


async def test_an_error_may_quote_bytes_that_are_no_text(port: int) -> None:
    reply = await send(port, b"GET /quoting HTTP/1.1\r\nHost: x\r\nX: \x8dtf-16 \xc3\xa4\r\nConnection: close\r\n\r\n")
    assert b" 415 " in reply
    said = msgspec.json.decode(reply.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert said == "'\\udc8dtf-16 \u00e4' is not known"
