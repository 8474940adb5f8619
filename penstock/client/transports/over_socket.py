"""Follows over a WebSocket, one subscription on each, so that a slow reader of one holds up no other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress

import aiohttp
import msgspec
from aiohttp import WSMsgType

from penstock.client.asking import Asking
from penstock.client.http_calls import HttpCalls
from penstock.client.refusing import Passing, closed, told
from penstock.errors import UnreachableError
from penstock.protocol import Message, encode

_decode = msgspec.json.Decoder(dict).decode


class OverSocket:
    """The transport `websocket`."""

    def __init__(self, calls: HttpCalls, idle_s: float, compress: bool) -> None:
        self._calls, self._idle_s, self._compress = calls, idle_s, compress

    async def messages(self, asking: Asking, since: str | None) -> AsyncGenerator[Message, None]:
        async with self._calls.socket(f"{asking.path}/socket", self._compress) as socket:
            await socket.send_str(encode(asking.message(since)).decode())
            while True:
                frame = await self._frame(socket)
                if frame.type is WSMsgType.TEXT:
                    yield _message(frame.data)
                elif frame.type is WSMsgType.PING:
                    await socket.pong(frame.data)
                elif frame.type is WSMsgType.CLOSE:
                    raise closed(frame.data, str(frame.extra or ""))
                elif frame.type in (WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                    raise closed(socket.close_code or 1006, str(socket.exception() or ""))

    async def _frame(self, socket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage:
        """The next frame. Silence is broken by a ping; whoever does not answer that is gone."""
        with suppress(TimeoutError):
            return await socket.receive(self._idle_s / 2)
        await socket.ping()
        try:
            return await socket.receive(self._idle_s / 2)
        except TimeoutError:
            raise Passing(UnreachableError(f"the server said nothing for {self._idle_s:g} s")) from None


def _message(text: str) -> Message:
    try:
        message: Message = _decode(text)
    except msgspec.MsgspecError:
        raise Passing(UnreachableError("the server sent something that is no message")) from None
    if message.get("type") == "error":
        raise told(message.get("error") or {})
    return message
