"""Every scheme over real TLS: who vouches for the source is asked, always, and nothing goes on without."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from feed_server import until
from running_edge import Edge, running
from test_pull_http import Tick, app, numbers, soon, status, streamed

from penstock import App
from penstock.errors import DeclarationError
from penstock.position import Position
from tests.certificates import Authority

LINES = b'{"n": 1}\n{"n": 2}\n'
TOKEN = Position("stream", "ticks", "e", (2,)).token()


async def serve(request: web.Request) -> web.StreamResponse:
    """The same two events, as each scheme wants them."""
    if request.path == "/ws":
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for line in LINES.splitlines():
            await socket.send_bytes(line)
        await socket.receive()
        return socket
    if request.path == "/sse":
        return await streamed(request, "text/event-stream", b'data: {"n": 1}\n\ndata: {"n": 2}\n\n')
    if request.path == "/ndjson":
        return await streamed(request, "application/x-ndjson", LINES)
    if request.path == "/streams/ticks":
        if "after" in request.query:
            await asyncio.sleep(60)
        return web.json_response({"events": [{"n": 1}, {"n": 2}], "next": TOKEN})
    if request.path == "/views/ticks/events":
        rows = b'{"type": "snapshot", "view": "ticks", "position": "p", "rows": [{"n": 1}, {"n": 2}]}'
        return await streamed(request, "text/event-stream", b"event: snapshot\ndata: %b\n\n" % rows)
    return web.json_response([{"n": 1}, {"n": 2}])


async def lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(LINES)
    with suppress(OSError):
        await writer.drain()
        await reader.read()
    writer.close()


@asynccontextmanager
async def secure(tls: ssl.SSLContext | None) -> AsyncIterator[dict[str, str]]:
    """The addresses of one HTTP server and one that sends lines; without `tls` plain ones under the same schemes."""
    site = web.Application()
    site.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    raw = await asyncio.start_server(lines, "127.0.0.1", 0, ssl=tls)
    port = runner.addresses[0][1]
    try:
        yield {
            "wss": f"wss://127.0.0.1:{port}/ws",
            "sse+https": f"sse+https://127.0.0.1:{port}/sse",
            "ndjson+https": f"ndjson+https://127.0.0.1:{port}/ndjson",
            "poll+https": f"poll+https://127.0.0.1:{port}/poll",
            "https": f"https://127.0.0.1:{port}/poll",
            "penstock+https stream": f"penstock+https://127.0.0.1:{port}/streams/ticks",
            "penstock+https view": f"penstock+https://127.0.0.1:{port}/views/ticks",
            "tcps": f"tcps://127.0.0.1:{raw.sockets[0].getsockname()[1]}",
        }
    finally:
        raw.close()
        await runner.cleanup()


WAYS = [
    "wss",
    "sse+https",
    "ndjson+https",
    "poll+https",
    "https",
    "penstock+https stream",
    "penstock+https view",
    "tcps",
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_source_is_read_if_its_authority_is_named(tmp_path: Path, way: str) -> None:
    ours = Authority(tmp_path, "ours")
    async with secure(ours.server()) as urls:
        made = app(urls[way], ca=str(ours.ca))
        async with running(made, tmp_path, sleep=soon) as edge:
            await until(lambda: numbers(edge) == [1, 2])


@pytest.mark.parametrize("way", WAYS)
async def test_a_certificate_that_nobody_vouches_for_is_told_and_nothing_is_taken(tmp_path: Path, way: str) -> None:
    ours, foreign = Authority(tmp_path, "ours"), Authority(tmp_path, "foreign")
    for ca, hint in ((str(ours.ca), "does not vouch for it"), (None, "ca=")):
        async with secure(foreign.server()) as urls, refused(tmp_path, urls[way], ca) as (edge, tries):
            await until(lambda edge=edge, hint=hint: says(edge, "certificate", "not trusted", hint))
            await until(lambda tries=tries: len(tries) > 2)  # it is tried again
            assert numbers(edge) == []
            assert status(edge)["state"] == "disconnected"


@pytest.mark.parametrize("way", WAYS)
async def test_a_source_without_tls_is_not_read_under_a_scheme_with_it(tmp_path: Path, way: str) -> None:
    async with secure(None) as urls, refused(tmp_path, urls[way], None) as (edge, tries):
        await until(lambda: len(tries) > 2)
        assert numbers(edge) == []
        assert status(edge)["state"] == "disconnected"


def says(edge: Edge, *words: str) -> bool:
    return all(word in str(status(edge)["error"]) for word in words)


@asynccontextmanager
async def refused(path: Path, url: str, ca: str | None) -> AsyncIterator[tuple[Edge, list[float]]]:
    """A pull, and the pauses that it made between its tries."""
    tries: list[float] = []

    async def counted(seconds: float) -> None:
        tries.append(seconds)
        await asyncio.sleep(0.02)

    made = app(url, **({"ca": ca} if ca else {}))
    async with running(made, path / f"edge-{ca is None}.db", sleep=counted) as edge:
        yield edge, tries


async def test_a_certificate_of_another_host_is_not_enough(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    async with secure(ours.server()) as urls:
        url = urls["sse+https"].replace("127.0.0.1", "localhost")
        async with refused(tmp_path, url, str(ours.ca)) as (edge, _):
            await until(lambda: says(edge, "certificate", "localhost"))
            assert numbers(edge) == []


async def test_a_file_without_certificates_is_told_and_read_again(tmp_path: Path, monkeypatch: Any) -> None:
    ours = Authority(tmp_path, "ours")
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    monkeypatch.setenv("FEED_CA", str(file))
    async with secure(ours.server()) as urls:
        made = app(urls["wss"], ca="env:FEED_CA")
        async with running(made, tmp_path, sleep=soon) as edge:
            await until(lambda: says(edge, "does not hold certificates"))
            file.write_bytes(ours.ca.read_bytes())
            await until(lambda: numbers(edge) == [1, 2])


async def test_a_redirect_away_from_tls_is_not_followed(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    asked: list[str] = []

    async def plain(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response([{"n": 1}])

    async with listening(plain, None) as inside:

        async def away(request: web.Request) -> web.StreamResponse:
            return web.Response(status=302, headers={"Location": f"http://127.0.0.1:{inside}/"})

        async with listening(away, ours.server()) as port:
            made = app(f"poll+https://127.0.0.1:{port}/", ca=str(ours.ca))
            async with running(made, tmp_path, sleep=soon) as edge:
                await until(lambda: says(edge, "without TLS"))
                assert (asked, numbers(edge)) == ([], [])


@asynccontextmanager
async def listening(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    site = web.Application()
    site.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_kafka_names_the_certificate_that_it_does_not_trust(tmp_path: Path) -> None:
    """Without a broker: any server that speaks TLS shows its certificate first."""
    ours, foreign = Authority(tmp_path, "ours"), Authority(tmp_path, "foreign")
    raw = await asyncio.start_server(lines, "127.0.0.1", 0, ssl=foreign.server())
    url = f"kafkas://127.0.0.1:{raw.sockets[0].getsockname()[1]}/ticks"
    try:
        async with refused(tmp_path, url, str(ours.ca)) as (edge, _):
            await until(lambda: says(edge, "certificate verify failed"))
    finally:
        raw.close()


def test_an_authority_for_an_address_without_tls_is_refused() -> None:
    made = App("plain")
    with pytest.raises(DeclarationError, match="without TLS"):
        made.pull(made.stream("ticks", Tick), "ws://feed.example/", ca="ca.pem")
