"""Serves a subscription one reply at a time, for clients that can only ask: the socket's messages, unmerged."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from penstock.config import Limits
from penstock.errors import PenstockError
from penstock.position import Position
from penstock.protocol import encode
from penstock.serve.fanout.answers import written
from penstock.serve.fanout.hub import Hub
from penstock.serve.fanout.messages import Message
from penstock.serve.question import Question
from penstock.serve.replies import JSON
from penstock.views.store import View

_ENOUGH_BYTES = 1024**2
"""A reply does not wait to grow beyond this; the client asks again from the position it got."""
_REPLIES = 8
"""Bodies kept for those who asked the same at the same time: at most about 8 MiB."""
_NOT_KEPT = {"Cache-Control": "no-store"}
_KEPT = {"Cache-Control": "public, max-age=10"}
"""The changes behind a position never change: an old reply is a shorter one, and leads on to the next position. Ten
seconds let a proxy answer all who ask at the same time."""
_OWN = {"Cache-Control": "private, max-age=10", "Vary": "Authorization"}


class Gathering:
    """Collects messages until there is something that stands alone."""

    transport = "longpoll"
    deflates = False
    joins = False
    is_level = True
    unsent_bytes = 0

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.some = asyncio.Event()
        """A message is there that stands alone."""
        self.begun = asyncio.Event()
        """A message is there. One that does not stand alone is taken before the next is made: a snapshot is large, and
        those who wait for one may be many."""
        self.pace_s: float | None = None
        self.on_pace: Callable[[], None] = lambda: None
        self.turn = asyncio.Lock()
        self.policy = ""
        self._taken = asyncio.Event()
        self._bytes = 0

    def take(self) -> list[Message]:
        """What has come since this was last called."""
        messages, self.messages = self.messages, []
        self.begun.clear()
        self._taken.set()
        return messages

    def offer(self, message: Message) -> bool:
        """What comes when there is enough is left for the next reply; nobody is ever behind here."""
        if not self._is_enough:
            self.messages.append(message)
            self._bytes += len(message.payload)
            self.begun.set()
            if message.whole:
                self.some.set()
        return True

    async def send(self, message: Message) -> None:
        if self._is_enough:
            await asyncio.Event().wait()  # enough for one reply: this subscription is about to be cancelled
        self._taken.clear()
        self.offer(message)
        if not message.whole:
            await self._taken.wait()
        await asyncio.sleep(0)

    async def drained(self) -> None:
        """Nothing waits."""

    def stall(self, made: Callable[[], Message]) -> None:
        """Nobody is slow here: a client that reads late asks late."""

    def cut(self, policy: str, last: Message) -> None:
        """Nothing is cut, for the same reason."""

    @property
    def _is_enough(self) -> bool:
        return self._bytes > _ENOUGH_BYTES and self.some.is_set()


class Replies:
    """The bodies of the newest replies, by what is in them: equal long polls get one and the same."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Message, ...], tuple[bytes, str]] = OrderedDict()

    def body(self, messages: Sequence[Message]) -> tuple[bytes, str]:
        """The body and its entity tag. Messages are compared by identity: a group makes each once."""
        made = self._made.get(key := tuple(messages))
        if made is None:
            position = next(m.position for m in reversed(messages) if m.position is not None)
            payloads = b",".join(message.payload for message in messages)
            body = b'{"messages":[%b],"position":%b}' % (payloads, encode(position))
            made = body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            if len(body) <= 2 * _ENOUGH_BYTES:  # a snapshot is nobody else's, and may be large
                self._made[key] = made
            if len(self._made) > _REPLIES:
                self._made.popitem(last=False)
        return made


async def poll(
    request: web.Request,
    hub: Hub,
    view: View,
    question: Question,
    since: Position,
    wait_s: float,
    replies: Replies,
    *,
    shared: bool,
    still: Callable[[], None],
    ended: asyncio.Future[Any],
) -> web.StreamResponse:
    """The messages behind `since`, or 204 when none came in time. `shared`: a proxy may give it to others too; `still`
    raises when the right to read has ended meanwhile, and nobody waits on when `ended` is done: the guard tells why."""
    gathering = Gathering()
    subscription = asyncio.ensure_future(hub.subscribe(view, question, since, gathering))
    begun = asyncio.ensure_future(gathering.begun.wait())
    try:
        await asyncio.wait([subscription, begun, ended], timeout=wait_s, return_when="FIRST_COMPLETED")
        if ahead_s := hub.ahead_s(view, since):  # it is told so, however short its patience
            await asyncio.wait([subscription, begun, ended], timeout=ahead_s, return_when="FIRST_COMPLETED")
        if not gathering.messages:
            hub.announce(gathering)
        if subscription.done():
            subscription.result()
        if gathering.messages and not gathering.some.is_set():
            still()
            return await _streamed(request, subscription, gathering, hub.limits)
    finally:
        ended.cancel()
        begun.cancel()
        subscription.cancel()
        await asyncio.gather(subscription, return_exceptions=True)
    return _reply(gathering.messages, replies, shared=shared)


def _reply(messages: Sequence[Message], replies: Replies, *, shared: bool) -> web.Response:
    if not messages:
        return web.Response(status=204, headers=_NOT_KEPT)
    body, tag = replies.body(messages)
    lasting = all(message.kind == "changes" for message in messages)
    headers = {"ETag": tag} | ((_KEPT if shared else _OWN) if lasting else _NOT_KEPT)
    return web.Response(body=body, content_type=JSON, charset="utf-8", headers=headers)


async def _streamed(
    request: web.Request, subscription: asyncio.Future[None], gathering: Gathering, limits: Limits
) -> web.StreamResponse:
    """A reset and the snapshot behind it, part by part: the next is made when the client has read this one.

    What goes wrong meanwhile ends the reply in its midst, which a client can tell from its end.
    """
    response = web.StreamResponse(headers=_NOT_KEPT | {"Content-Type": f"{JSON}; charset=utf-8"})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    before, position = b'{"messages":[', None
    while position is None:
        for message in gathering.take():
            await written(response, before + message.payload, limits)
            before, position = b",", message.position
        if position is None:
            await _more(subscription, gathering)
    await response.write(b'],"position":%b}' % encode(position))
    await response.write_eof()
    return response


async def _more(subscription: asyncio.Future[None], gathering: Gathering) -> None:
    begun: asyncio.Future[Any] = asyncio.ensure_future(gathering.begun.wait())
    try:
        await asyncio.wait([subscription, begun], return_when="FIRST_COMPLETED")
        if subscription.done():
            subscription.result()
    except PenstockError as failure:
        raise ConnectionResetError(failure.message) from failure
    finally:
        begun.cancel()
