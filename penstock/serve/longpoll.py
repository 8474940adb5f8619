"""Serves a subscription one reply at a time, for clients that can only ask: the socket's messages, unmerged."""

from __future__ import annotations

import asyncio

from aiohttp import web

from penstock.position import Position
from penstock.protocol import encode
from penstock.serve.asked import Asked
from penstock.serve.messages import Message
from penstock.serve.replies import JSON
from penstock.serve.subscription import Hub
from penstock.views.store import View

_ENOUGH_BYTES = 1024**2
"""A reply does not wait to grow beyond this; the client asks again from the position it got."""


class Gathering:
    """Collects messages until there is something that stands alone."""

    transport = "longpoll"

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.some = asyncio.Event()
        self._bytes = 0

    def offer(self, message: Message) -> None:
        if self._bytes > _ENOUGH_BYTES and self.some.is_set():
            return
        self.messages.append(message)
        self._bytes += len(message.payload)
        if message.whole:
            self.some.set()

    async def send(self, message: Message) -> None:
        if self._bytes > _ENOUGH_BYTES and self.some.is_set():
            await asyncio.Event().wait()  # enough for one reply: this subscription is about to be cancelled
        self.offer(message)
        await asyncio.sleep(0)


async def poll(hub: Hub, view: View, asked: Asked, since: Position, wait_s: float) -> web.Response:
    """The messages behind `since`, or 204 when none came in time."""
    messages = await gathered(hub, view, asked, since, wait_s)
    if not messages:
        return web.Response(status=204)
    payloads = [message.payload for message in messages]
    position = next(m.position for m in reversed(messages) if m.position is not None)
    body = b'{"messages":[%b],"position":%b}' % (b",".join(payloads), encode(position))
    return web.Response(body=body, content_type=JSON, charset="utf-8", headers={"Cache-Control": "no-store"})


async def gathered(hub: Hub, view: View, asked: Asked, since: Position | None, wait_s: float) -> list[Message]:
    """The messages behind `since` (None: a snapshot first), up to `_ENOUGH_BYTES`; none when none came in time."""
    gathering = Gathering()
    subscription = asyncio.ensure_future(hub.subscribe(view, asked, since, gathering))
    some = asyncio.ensure_future(gathering.some.wait())
    try:
        await asyncio.wait([subscription, some], timeout=wait_s, return_when="FIRST_COMPLETED")
        if not gathering.messages:
            hub.announce(gathering)
        elif not gathering.some.is_set():  # a reset or a snapshot has begun: half of it is worth nothing
            await asyncio.wait([subscription, some], return_when="FIRST_COMPLETED")
        if subscription.done():
            subscription.result()
    finally:
        some.cancel()
        subscription.cancel()
        await asyncio.gather(subscription, return_exceptions=True)
    return gathering.messages if gathering.some.is_set() else []
