"""Reads events from a WebSocket: one event per text or binary message, resumed by query parameters of the address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientWebSocketResponse, ClientWSTimeout, WSMsgType
from yarl import URL

from penstock.collect.pulling.credentials import Credentials
from penstock.collect.pulling.http_get import session
from penstock.collect.pulling.pull_source import SourceEvents, SourceLag, SourceRequest
from penstock.pull_origin import Origin

HEARTBEAT_S = 20.0
"""A ping this often; a peer that does not answer within half of it is gone. Without it a cut cable is never noticed."""
CLOSE_S = 2.0


class WebSocketSource:
    """aiohttp stops reading the socket while about 64 kB wait unread, so the sender feels a slow log."""

    def __init__(self, origin: Origin, most_bytes: int) -> None:
        """A larger message than `most_bytes` ends the connection, so it is far above what an event may have."""
        self._url, self._origin = URL(origin.url), origin
        self._credentials = Credentials(origin)
        self._most_bytes = most_bytes

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        async with (
            session(self._origin) as opened,
            opened.ws_connect(
                self._url.update_query(request.parameters),
                headers=self._credentials.headers(),
                heartbeat=HEARTBEAT_S,
                timeout=ClientWSTimeout(ws_close=CLOSE_S),
                max_msg_size=self._most_bytes,
                decode_text=False,
            ) as socket,
        ):
            yield _events(socket)

    def lag(self) -> SourceLag:
        return {}


async def _events(socket: ClientWebSocketResponse[Any]) -> AsyncIterator[SourceEvents]:
    async for part in socket:
        # An empty message keeps the connection alive and says nothing.
        if part.type in (WSMsgType.TEXT, WSMsgType.BINARY) and part.data.strip():
            yield SourceEvents([part.data])
    error = socket.exception()
    if error is not None:
        raise error
