"""The ways on which messages come: the same messages with the same positions on each, so that one may resume another's.

Who reads calls `messages` once for each connection, takes what comes, and closes it. While it is not asked for the
next message, nothing is read from the network, so that a slow reader is seen as one by the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.client.asking import Asking
from penstock.errors import BadRequestError
from penstock.protocol import Message

if TYPE_CHECKING:
    from penstock.client.http_calls import HttpCalls

Way = Literal["websocket", "sse", "poll"]

IDLE_S = 40.0
"""Silence for so long is a dead connection: a server says something at least every 30 s."""


class Transport(Protocol):
    """One way to follow a view or a stream."""

    def messages(self, asking: Asking, since: str | None) -> AsyncGenerator[Message, None]:
        """The messages behind `since` until the connection ends.

        Raises `Passing` when the same may be asked again, else a `PenstockError` that must be told. A message of type
        `error` is raised, not given. A stream's `since` is never None.
        """


def transport(way: Way, calls: HttpCalls, idle_s: float, compress: bool) -> Transport:
    """The transport of this name."""
    if way == "websocket":
        from penstock.client.transports.over_socket import OverSocket

        return OverSocket(calls, idle_s, compress)
    if way == "sse":
        from penstock.client.transports.over_events import OverEvents

        return OverEvents(calls, idle_s)
    if way == "poll":
        from penstock.client.transports.over_polls import OverPolls

        return OverPolls(calls)
    raise BadRequestError(f"there is no transport '{way}'", hint="use websocket, sse or poll")


class FromEnd:
    """A transport that can begin at the end of a stream: which end that is, is known before anything else is read.

    Else a connection that broke before its first message would begin at a later end, and miss what came between.
    """

    def __init__(self, calls: HttpCalls, inner: Transport) -> None:
        self._calls, self._inner = calls, inner

    async def messages(self, asking: Asking, since: str | None) -> AsyncGenerator[Message, None]:
        if asking.kind == "stream" and since == "end":
            reply = await self._calls.get(asking.path, {"after": "end", "limit": "1"}) or {}
            since = reply["next"]
            yield {"type": "position", "position": since}
        async with aclosing(self._inner.messages(asking, since)) as messages:
            async for message in messages:
                yield message
