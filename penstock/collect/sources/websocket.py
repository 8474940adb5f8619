"""Reads events from a WebSocket: one event per text or binary message, resumed by query parameters of the address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, ClientTimeout, ClientWebSocketResponse, ClientWSTimeout, WSMsgType
from yarl import URL

CONNECT_S = 10.0
HEARTBEAT_S = 20.0
"""A ping this often; a peer that does not answer within half of it is gone. Without it a cut cable is never noticed."""
CLOSE_S = 2.0


class WebSocketSource:
    """aiohttp stops reading the socket while about 64 kB wait unread, so the sender feels a slow log."""

    def __init__(self, url: str, most_bytes: int) -> None:
        """A larger message than `most_bytes` ends the connection, so it is far above what an event may have."""
        self._url = URL(url)
        self._most_bytes = most_bytes

    @asynccontextmanager
    async def open(self, ask: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        timeout = ClientTimeout(total=None, sock_connect=CONNECT_S)
        async with (
            ClientSession(timeout=timeout) as session,
            session.ws_connect(
                self._url.update_query(ask),
                heartbeat=HEARTBEAT_S,
                timeout=ClientWSTimeout(ws_close=CLOSE_S),
                max_msg_size=self._most_bytes,
                decode_text=False,
            ) as socket,
        ):
            yield _events(socket)


async def _events(socket: ClientWebSocketResponse[Any]) -> AsyncIterator[bytes]:
    async for part in socket:
        # An empty message keeps the connection alive and says nothing.
        if part.type in (WSMsgType.TEXT, WSMsgType.BINARY) and part.data.strip():
            yield part.data
    error = socket.exception()
    if error is not None:
        raise error
