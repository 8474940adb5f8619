"""A feed that a pull can read: numbered events over a WebSocket, cut off at moments that a seed chooses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

from aiohttp import web


class Feed:
    """Sends `events` from where it is asked (`?since=`: an mtime, replayed with what has the same one) to the end."""

    def __init__(self, events: Sequence[bytes], mtimes: Sequence[int], random: Random | None = None) -> None:
        self.events, self.mtimes = events, mtimes
        self.random = random
        self.asked: list[str | None] = []
        self.sent = 0
        self.refuse = False
        self.url = ""
        self.before: Callable[[], None] = lambda: None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self.refuse:
            return web.Response(status=503)
        since = request.query.get("since")
        self.asked.append(since)
        start = (
            0 if since is None else next((n for n, at in enumerate(self.mtimes) if at >= int(since)), len(self.mtimes))
        )
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):
            await self._send(request, socket, start)
        return socket

    async def _send(self, request: web.Request, socket: web.WebSocketResponse, start: int) -> None:
        cut = None if self.random is None else self.random.randrange(1, 120)
        for sent, event in enumerate(self.events[start:]):
            self.before()
            if sent == cut:
                self._cut(request)
                return
            await socket.send_bytes(event) if sent % 2 else await socket.send_str(event.decode("utf-8", "replace"))
            self.sent += 1
        await socket.receive()

    def _cut(self, request: web.Request) -> None:
        """Half of the cuts are a close, half a broken connection."""
        if self.random is not None and self.random.random() < 0.5 and request.transport is not None:
            request.transport.abort()


@contextlib.asynccontextmanager
async def serving(feed: Feed) -> AsyncIterator[Feed]:
    site = web.Application()
    site.router.add_get("/feed", feed.serve)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    feed.url = f"ws://127.0.0.1:{runner.addresses[0][1]}/feed"
    try:
        yield feed
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, not for a time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
