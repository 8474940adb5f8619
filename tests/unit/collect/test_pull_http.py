from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from feed_server import until
from running_edge import Edge, running

from penstock import App, Event
from penstock.collect.pulling import http_get
from penstock.config import Limits

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Tick(Event):
    n: int


def app(url: str, **options: Any) -> App:
    made = App("http")
    made.pull(made.stream("ticks", Tick, id="n"), url, **options)
    return made


async def soon(_: float) -> None:
    await asyncio.sleep(0.002)


def numbers(edge: Edge) -> list[int]:
    return [event["n"] for event in edge.events("ticks")]


def status(edge: Edge) -> dict[str, Any]:
    return edge.collect.pulls.status()[0]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    site = web.Application()
    site.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def streamed(request: web.Request, content: str, *parts: bytes, then: str = "stay") -> web.StreamResponse:
    reply = web.StreamResponse(headers={"Content-Type": content})
    await reply.prepare(request)
    for part in parts:
        await reply.write(part)
    if then == "stay":
        await asyncio.sleep(60)
    if then == "break":
        await asyncio.sleep(0.02)
        if request.transport is not None:
            request.transport.abort()
    return reply


# Server-Sent Events


async def test_the_last_event_id_is_kept_over_reconnects_and_restarts(tmp_path: Path) -> None:
    asked: list[int] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(int(request.headers.get("Last-Event-ID", "x0")[1:]))
        n = asked[-1] + 1
        event = b'id: x%d\ndata: {"n": %d}\n\nid: x99\ndata: {' % (n, n)
        return await streamed(request, "text/event-stream", event, then="break")

    async with serving(serve) as url:
        for _ in range(2):
            async with running(app(f"sse+{url}/"), tmp_path, sleep=soon) as edge:
                goal = len(asked) + 4
                await until(lambda goal=goal: len(asked) > goal)
                taken = numbers(edge)
    assert taken == list(range(1, len(taken) + 1))
    assert asked[0] == 0
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(asked))
    assert asked[-1] >= 6


async def test_204_ends_a_pull_for_good(tmp_path: Path) -> None:
    asked = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        return web.Response(status=204)

    async with serving(serve) as url, running(app(f"sse+{url}/"), tmp_path, sleep=soon) as edge:
        await until(lambda: status(edge)["state"] == "ended")
        await asyncio.sleep(0.05)
        assert len(asked) == 1


async def test_a_redirect_is_followed_and_no_stranger_gets_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEED_KEY", "very-secret")
    monkeypatch.setenv("FEED_TOKEN", "also-secret")
    got: list[tuple[str | None, str | None]] = []

    async def target(request: web.Request) -> web.StreamResponse:
        got.append((request.headers.get("Authorization"), request.headers.get("X-Token")))
        return await streamed(request, "text/event-stream", b'data: {"n": 1}\n\n')

    async with serving(target) as there:

        async def serve(request: web.Request) -> web.StreamResponse:
            got.append((request.headers.get("Authorization"), request.headers.get("X-Token")))
            if request.path == "/first":
                raise web.HTTPTemporaryRedirect("/second")
            raise web.HTTPMovedPermanently(there)

        async with serving(serve) as url:
            made = app(f"sse+{url}/first", key="FEED_KEY", headers={"X-Token": "env:FEED_TOKEN"})
            async with running(made, tmp_path, sleep=soon) as edge:
                await until(lambda: numbers(edge) == [1])
    ours = ("Bearer very-secret", "also-secret")
    assert got == [ours, ours, (None, None)]


async def test_no_credential_is_shown_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEED_KEY", "very-secret")

    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(status=403, reason=f"{request.headers['Authorization']} is wrong")

    caplog.set_level("DEBUG")
    async with serving(serve) as url:
        made = app(f"poll+{url}/?api_token=hidden&x=1", key="FEED_KEY")
        async with running(made, tmp_path, sleep=soon) as edge:
            await until(lambda: status(edge)["error"] is not None)
            shown = str(edge.collect.pulls.status()) + str(list(edge.log.memory().items())) + caplog.text
    assert "403" in shown
    assert "api_token=..." in shown
    assert "secret" not in shown
    assert "hidden" not in shown


async def test_a_key_that_is_not_set_is_told(tmp_path: Path) -> None:
    async with running(app("sse+http://127.0.0.1:1/", key="NO_SUCH_KEY"), tmp_path, sleep=soon) as edge:
        await until(lambda: "NO_SUCH_KEY" in str(status(edge)["error"]))


# JSON lines


async def test_a_line_that_a_broken_connection_cut_off_is_no_event(tmp_path: Path) -> None:
    asked: list[str | None] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(request.query.get("since"))
        then = "break" if len(asked) < 3 else "end"
        return await streamed(request, "application/x-ndjson", b'{"n": 1}\r\n\n{"n": 2}\n{"n"', b": 3}", then=then)

    async with serving(serve) as url:
        made = app(f"ndjson+{url}/", resume="since=n")
        async with running(made, tmp_path, sleep=soon) as edge:
            await until(lambda: 3 in numbers(edge))
            assert numbers(edge) == [1, 2, 3]
            assert edge.dead() == []
            assert asked[:3] == [None, "2", "2"]
            await until(lambda: "3" in asked)


async def test_a_reply_that_is_an_array_is_read_whole(tmp_path: Path) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await streamed(request, "application/json", b' [{"n": 1},', b'{"n": 2}, {"n": "x"}]', then="end")

    async with serving(serve) as url, running(app(f"ndjson+{url}/"), tmp_path, sleep=soon) as edge:
        await until(lambda: numbers(edge) == [1, 2] and len(edge.dead()) > 1)
        assert {letter["raw"] for letter in edge.dead()} == {b'{"n": "x"}'}


async def test_an_event_that_is_too_large_is_a_dead_letter_and_the_next_is_taken(tmp_path: Path) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        big = [b'{"n": 1, "x": "', *([b"x" * 10_000] * 50), b'"}\n']
        return await streamed(request, "application/x-ndjson", *big, b'{"n": 2}\n')

    limits = Limits(event_bytes=2000)
    async with serving(serve) as url:
        made = app(f"ndjson+{url}/", map=lambda sent: sent)
        async with running(made, tmp_path, sleep=soon, limits=limits) as edge:
            await until(lambda: numbers(edge) == [2])
            (letter,) = edge.dead()
            assert (letter["reason"], len(letter["raw"])) == ("too_large", 2001)


# Polling


async def test_what_has_not_changed_costs_nothing_also_after_a_restart(tmp_path: Path) -> None:
    asked: list[tuple[str | None, str | None]] = []
    version = [1]

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append((request.headers.get("If-None-Match"), request.headers.get("If-Modified-Since")))
        etag, modified = f'"v{version[0]}"', "Wed, 01 May 2024 10:00:00 GMT"
        if asked[-1][0] == etag:
            return web.Response(status=304)
        headers = {"ETag": etag, "Last-Modified": modified}
        return web.json_response([{"n": n} for n in range(version[0] * 2)], headers=headers)

    async with serving(serve) as url:
        async with running(app(f"poll+{url}/"), tmp_path, sleep=soon) as edge:
            await until(lambda: len(asked) > 5)
            assert asked[0] == (None, None)
            assert asked[3] == ('"v1"', "Wed, 01 May 2024 10:00:00 GMT")
            version[0] = 2
            await until(lambda: numbers(edge) == [0, 1, 2, 3])
        first = len(asked)
        async with running(app(f"poll+{url}/"), tmp_path, sleep=soon) as edge:
            commits = edge.log.bounds(edge.log.find("ticks")).next_commit  # type: ignore[arg-type]
            await until(lambda: len(asked) > first + 3)
            assert asked[first][0] == '"v2"'
            assert edge.log.bounds(edge.log.find("ticks")).next_commit == commits  # type: ignore[arg-type]
            assert edge.metric("received", "ticks") == 0


async def test_an_etag_is_not_sent_with_another_question(tmp_path: Path) -> None:
    asked: list[tuple[str | None, str | None]] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        since, etag = request.query.get("since"), request.headers.get("If-None-Match")
        asked.append((since, etag))
        if etag is not None:
            return web.Response(status=304)
        start = int(since or 0)
        return web.json_response([{"n": n} for n in range(start, min(start + 4, 9))], headers={"ETag": '"one"'})

    async with serving(serve) as url:
        made = app(f"poll+{url}/", resume="since=n")
        async with running(made, tmp_path, sleep=soon) as edge:
            await until(lambda: numbers(edge) == list(range(9)) and asked[-1] == ("8", '"one"'))


async def test_an_object_is_one_event_and_retry_after_is_honoured(tmp_path: Path) -> None:
    asked, waits = [], []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        if len(asked) == 1:
            return web.Response(status=429, headers={"Retry-After": "120"})
        return web.json_response({"n": len(asked)})

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await soon(seconds)

    async with serving(serve) as url:
        made = app(f"poll+{url}/", every="7 seconds")
        async with running(made, tmp_path, sleep=note) as edge:
            await until(lambda: len(numbers(edge)) > 2)
    assert 120 <= waits[0] <= 133
    assert waits[1:3] == [7.0, 7.0]


async def test_a_document_that_is_no_json_is_told_and_leaves_no_letters(tmp_path: Path) -> None:
    asked = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        return web.json_response(text="<html>" if len(asked) < 5 else '{"n": 1}')

    async with serving(serve) as url, running(app(f"poll+{url}/"), tmp_path, sleep=soon) as edge:
        await until(lambda: "not JSON" in str(status(edge)["error"]))
        await until(lambda: numbers(edge) == [1])
        assert edge.dead() == []


async def test_a_source_that_never_answers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_get, "REPLY_S", 0.05)

    async def serve(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async with serving(serve) as url, running(app(f"poll+{url}/"), tmp_path, sleep=soon) as edge:
        await until(lambda: "did not answer within" in str(status(edge)["error"]))


# Plain HTTP


@pytest.mark.parametrize(
    ("content", "body"),
    [
        ("text/event-stream", b'data: {"n": 1}\n\ndata: {"n": 2}\n\n'),
        ("application/x-ndjson", b'{"n": 1}\n{"n": 2}\n'),
        ("application/json", b'[{"n": 1}, {"n": 2}]'),
        ("application/hal+json; charset=utf-8", b'[{"n": 1}, {"n": 2}]'),
    ],
)
async def test_a_plain_address_is_read_by_what_it_answers(tmp_path: Path, content: str, body: bytes) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        assert "application/json" in request.headers["Accept"]
        headers = {"Content-Type": content, "Content-Encoding": "gzip"}
        return web.Response(body=gzip.compress(body), headers=headers)

    async with serving(serve) as url, running(app(f"{url}/"), tmp_path, sleep=soon) as edge:
        await until(lambda: numbers(edge) == [1, 2])


async def test_another_content_says_what_to_write(tmp_path: Path) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    async with serving(serve) as url, running(app(f"{url}/"), tmp_path, sleep=soon) as edge:
        await until(lambda: "text/plain" in str(status(edge)["error"]))
        assert "sse+http" in status(edge)["error"]


# TCP


async def test_tcp_lines_are_events_and_what_is_cut_off_is_seen(tmp_path: Path) -> None:
    async def talk(reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"n": 1}\n{"n": 2}\r\n{"n": 3')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with running(app(f"tcp://127.0.0.1:{port}"), tmp_path, sleep=soon) as edge:
            await until(lambda: numbers(edge) == [1, 2] and bool(edge.dead()))
            assert edge.dead()[0]["raw"] == b'{"n": 3'
            assert edge.dead()[0]["reason"] == "malformed"
    finally:
        server.close()
