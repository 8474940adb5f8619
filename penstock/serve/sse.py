"""Serves subscriptions as Server-Sent Events, which browsers reconnect and resume by themselves.

The id of an event is a position: it comes back in `Last-Event-ID`, or in `?last_event_id=` or `?lastEventId=` from
clients that cannot set headers. Heartbeats are comments, so that proxies and clients know the connection lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from penstock.config import Limits
from penstock.errors import BadRequestError, PenstockError
from penstock.observe.metrics import Observer
from penstock.observe.signals import SubscriberCut
from penstock.serve.fanout.messages import Message, chunk, error
from penstock.serve.fanout.receiver import PipeReceiver
from penstock.sockets.pipe import Pipe

HEARTBEAT_S = 15.0
RETRY_MS = 1000
"""When a browser tries again after a broken connection."""
EVENTS = "text/event-stream"
_HEADERS = {
    "Content-Type": f"{EVENTS}; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
_LAST_WORDS = chunk(b": too slow: resume from your last position\n\n")


class SseReceiver(PipeReceiver):
    """A subscriber behind an EventSource."""

    __slots__ = ()
    transport = "sse"

    def frame(self, message: Message) -> bytes:
        return message.sse()


def last_event_id(request: web.Request) -> str | None:
    """The position to resume from, in whichever place the client could put it."""
    query = request.query
    return request.headers.get("Last-Event-ID") or query.get("last_event_id") or query.get("lastEventId") or None


async def serve_events(
    request: web.Request,
    subscribe: Callable[[SseReceiver], Awaitable[None]],
    *,
    limits: Limits,
    observer: Observer,
    heartbeat_s: float = HEARTBEAT_S,
    opened: Callable[[Pipe], None] = lambda pipe: None,
) -> web.StreamResponse:
    """Answer with events for as long as `subscribe` runs and the client stays."""
    response = await _open(request)
    pipe = Pipe(
        request,
        limits.subscriber_bytes,
        lambda waiting, policy: _cut(observer, waiting, policy),
        stalled_s=limits.subscriber_cut_s,
    )
    opened(pipe)
    subscription = asyncio.ensure_future(subscribe(SseReceiver(pipe)))
    try:
        await _until_over(subscription, pipe, heartbeat_s)
    finally:
        pipe.close()
        subscription.cancel()
        await asyncio.gather(subscription, return_exceptions=True)
    with suppress(ConnectionError):
        await response.write_eof()
    return response


async def _open(request: web.Request) -> web.StreamResponse:
    if request.version < (1, 1):
        raise BadRequestError(
            "events need HTTP/1.1", hint="a proxy may speak 1.0 to servers: nginx wants proxy_http_version 1.1"
        )
    response = web.StreamResponse(headers=_HEADERS)
    response.enable_chunked_encoding()
    response.force_close()
    await response.prepare(request)
    await response.write(b"retry: %d\n\n" % RETRY_MS)  # aiohttp sends its headers with this; frames go around it
    return response


async def _until_over(subscription: asyncio.Future[Any], pipe: Pipe, heartbeat_s: float) -> None:
    closed: asyncio.Future[Any] = asyncio.ensure_future(pipe.closed.wait())
    try:
        while not closed.done():
            done, _ = await asyncio.wait([subscription, closed], timeout=heartbeat_s, return_when="FIRST_COMPLETED")
            if subscription in done:
                await _tell_why(subscription, pipe)
                return
            pipe.put(chunk(b":\n\n"))
    finally:
        closed.cancel()


async def _tell_why(subscription: asyncio.Future[Any], pipe: Pipe) -> None:
    """A subscription ends by itself only when it failed."""
    failure = subscription.exception()
    if isinstance(failure, PenstockError):
        with suppress(ConnectionError):
            await pipe.send(error(failure.body()).sse())
    elif failure is not None and not isinstance(failure, ConnectionError):
        raise failure


def cut_events(why: PenstockError) -> bytes:
    """The last event of a stream that may not go on."""
    return error(why.body()).sse()


def _cut(observer: Observer, waiting: int, policy: str) -> bytes:
    observer.emit(SubscriberCut("sse", waiting, policy))
    return _LAST_WORDS
