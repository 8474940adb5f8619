"""Answers the header `Expect`: a body that is held back is asked for when somebody reads it, and not if nobody does.

aiohttp answers it before any of our code runs: with 100 to what is refused by its head alone, so that a large body is
sent for nothing, and in a shape of its own, or not at all, to what it does not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage

from penstock.collect.ways.replies import error_reply
from penstock.errors import BadRequestError

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Maker = Callable[..., web.BaseRequest]
"""Makes a request of its message, its body, the protocol, the writer and the task, as aiohttp calls it."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def expecting(handler: Handler) -> Handler:
    """Refuses what is not known, and ends a connection on which a body that was not asked for may come or not."""

    def handle(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        if request.headers.get("Expect"):
            return _unexpected()
        body: object = request.content
        return _answered(handler, request, body) if isinstance(body, _HeldBack) else handler(request)

    return handle


async def _answered(handler: Handler, request: web.BaseRequest, body: _HeldBack) -> web.StreamResponse:
    reply = await handler(request)
    if not body.asked:
        reply.force_close()
    return reply


async def _unexpected() -> web.StreamResponse:
    reply = error_reply(
        BadRequestError(
            "the header Expect asks for what is not known", hint="leave it out, or send Expect: 100-continue"
        )
    )
    reply.set_status(417)
    return reply


def asking(make: Maker) -> Maker:
    """Requests whose bodies are asked for; they have the header no more."""

    def made(message: RawRequestMessage, body: StreamReader, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if message.headers.get("Expect", "").lower() == "100-continue":
            headers = message.headers.copy()
            headers.popall("Expect")
            message = message._replace(headers=type(message.headers)(headers))
            if message.version >= HttpVersion11 and not body.is_eof():
                body = cast(StreamReader, _HeldBack(body, writer))
        return make(message, body, protocol, writer, task)

    return made


class _HeldBack:
    """A body in every respect, but for what happens when it is waited for."""

    def __init__(self, body: StreamReader, writer: AbstractStreamWriter) -> None:
        self._body, self._writer = body, writer
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    async def read(self, most: int = -1) -> bytes:
        await self._ask()
        return await self._body.read(most)

    async def readany(self) -> bytes:
        await self._ask()
        return await self._body.readany()

    async def _ask(self) -> None:
        """Once, unless the sender did not wait."""
        waits, self.asked = not self.asked and not self._body.total_bytes, True
        if waits:
            await self._writer.write(_CONTINUE)
            self._writer.output_size = 0  # of the reply, nothing is written yet
