"""Closes connections that cost and bring nothing: heads that trickle in, idle ones, and more than a peer may have.

aiohttp closes a connection that waits for a request too long (`keepalive_timeout`), but it cannot tell one that waits
from one whose head never ends, and takes any number of them. So its handler of a connection is extended by what a look
at each arriving packet can tell, and a task looks once a second at the heads that are under way: an idle connection
costs nothing.

The same look tells which requests can go the short way (`short_way.py`). One goes it only where nothing else is under
way on its connection and aiohttp's parser is known to stand between two messages; meanwhile the connection is, for
aiohttp, one that answers: for its timeouts, for its shutdown, and for what the sender sends behind it.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections import Counter
from contextlib import suppress
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_runner import BaseSite

from penstock.clock import Clock
from penstock.collect.ways.expecting import asking, expecting
from penstock.collect.ways.plain_head import END, MOST_BYTES, plain_head
from penstock.collect.ways.replies import error_reply
from penstock.collect.ways.short_way import ShortWay
from penstock.config import Limits
from penstock.errors import BadRequestError
from penstock.observe.signals import ConnectionClosed, Signals
from penstock.rights.redaction import redacted

LOOK_S = 1.0
LINGER_S = 2.0
"""How long the rest of a refused body is read, so that its sender gets to see the reply."""
BEHIND_BYTES = 64 * 1024
"""What a sender may send behind a request before its reply; then reading pauses."""
FILES_KEPT = 200
"""Files that the process needs for other things: the log, checkpoints, sources."""
DETAIL_CHARACTERS = 200
"""Of what the parser says, which quotes the sender."""
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 5\r\n"
    b"Connection: close\r\n\r\n%s"
)
_TOO_MANY = (
    b'{"error":{"code":"overloaded","message":"the server has as many connections as it may","detail":null,'
    b'"hint":"keep connections open and use them again"}}'
)


class Connections:
    """Every connection of the edge's server; lives on its loop."""

    def __init__(self, limits: Limits, clock: Clock, signals: Signals) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = min(limits.connections, max(100, files - FILES_KEPT)) if files > 0 else limits.connections
        self.most_each = min(limits.connections_per_address, self.most)
        self._limits, self._clock, self._signals = limits, clock, signals
        self._by_address: Counter[str] = Counter()
        self._heads: dict[WatchedHandler, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.open = 0
        self.short: ShortWay | None = None
        """The way past aiohttp for what is plain; None: there is none."""

    def runner(self, app: web.Application, **options: Any) -> web.AppRunner:
        """A runner whose connections are watched."""
        return _Runner(self, app, keepalive_timeout=self._limits.idle_s, lingering_time=LINGER_S, **options)

    async def listen(
        self, runner: web.AppRunner, host: str, port: int, backlog: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Raises `OSError`. A handshake of TLS may take as long as a head: before it ends nobody watches."""
        site = _Site(runner, host, port, backlog=backlog, ssl_context=tls)
        site.handshake_s = self._limits.head_s
        await site.start()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_looking(), name="connections")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # What a connection tells

    def opened(self, address: str) -> bool:
        """Whether there may be one more."""
        if self.open >= self.most or self._by_address[address] >= self.most_each:
            self._signals(ConnectionClosed("too_many", address))
            return False
        self.open += 1
        self._by_address[address] += 1
        return True

    def closed(self, handler: WatchedHandler, address: str) -> None:
        self._heads.pop(handler, None)
        self.open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def head_begun(self, handler: WatchedHandler) -> None:
        self._heads.setdefault(handler, self._clock.monotonic())

    def head_ended(self, handler: WatchedHandler) -> None:
        self._heads.pop(handler, None)

    # Looking

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Close those whose head takes too long."""
        latest_s = self._clock.monotonic() - self._limits.head_s
        for handler, since_s in list(self._heads.items()):
            if handler.busy:
                self._heads.pop(handler, None)
            elif since_s <= latest_s:
                self._signals(ConnectionClosed("slow_head", handler.address))
                self._heads.pop(handler, None)
                handler.force_close()


class WatchedHandler(RequestHandler):
    """One connection, as aiohttp serves it."""

    __slots__ = ("_behind", "_connections", "_owed", "_refused", "_short", "_undrained", "address")

    def __init__(self, connections: Connections, manager: Any, **options: Any) -> None:
        super().__init__(manager, **options)
        self._connections = connections
        self._refused = False
        self.address = ""
        self._owed: int | None = 0
        """Bytes that the message which aiohttp reads still has to come; 0: it stands between two; None: who knows."""
        self._short = False
        """A request is on the short way."""
        self._undrained = False
        """It is answered, and the sender does not read the reply."""
        self._behind = b""
        """What was sent behind it, or before aiohttp is ready for the next request."""

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._request_in_progress or bool(self._messages) or self._payload_parser is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self._connections.opened(self.address):
            super().connection_made(transport)
        else:
            self._refused = True
            cast(asyncio.Transport, transport).write(_REFUSAL % (len(_TOO_MANY), _TOO_MANY))
            transport.close()

    async def start(self) -> None:
        if self._manager is not None:  # else the connection was lost before this began
            await super().start()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._refused:
            return
        self._connections.closed(self, self.address)
        task = self._task_handler
        if self._waiter is not None and task is not None:
            task.cancel()  # a request that it was woken for and has not begun: aiohttp would fail over what is gone
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is answered in the shape of every other error."""
        reply = super().handle_error(request, status, exc, message)
        if status != 400:
            return reply
        error = BadRequestError(
            "what came is not a request of HTTP/1.1",
            detail=redacted(" ".join((message or "").split()))[:DETAIL_CHARACTERS] or None,
            hint="send it with an HTTP library, to http:// or https:// as the server was started",
        )
        told = error_reply(error)
        told.force_close()
        return told

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if data and (self._short or self._behind):
            self._keep(data)
        elif self._owed == 0 and data and self._connections.short is not None and not self.busy:
            if self._waits:
                self._begin(self._connections.short, data)
            else:  # aiohttp is about to, if it does not close: what it does next stands before this in the loop
                self._behind = data
                self._loop.call_soon(self._catch_up)
        else:
            self._hand_over(data)

    def _begin(self, short: ShortWay, data: bytes) -> None:
        """The short way, if it takes this."""
        self._short = self._request_in_progress = True
        taken = short.take(self, data)
        if not taken:
            self._short = self._request_in_progress = False
            self._hand_over(data)
        elif taken < len(data):
            self._keep(data[taken:])

    def _hand_over(self, data: bytes) -> None:
        """The long way."""
        if data and self._owed is not None:
            size = self._owed or _message_bytes(data)
            self._owed = size - len(data) if len(data) <= size else None
        super().data_received(data)
        if self.busy:
            self._connections.head_ended(self)
        elif data:
            self._connections.head_begun(self)

    # The short way

    @property
    def _waits(self) -> bool:
        """Whether aiohttp has answered everything and waits for the next request, or has not begun at all."""
        if self._waiter is None:
            return not self._request_count and not self._close and not self._force_close
        return not self._waiter.done() and not self._messages and not self._upgraded

    def _keep(self, data: bytes) -> None:
        self._behind += data
        if len(self._behind) > BEHIND_BYTES and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def answered(self, reply: bytes) -> None:
        """Never raises: others are answered behind it."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(reply)
        self._undrained = self._paused and transport is not None
        if not self._undrained:
            self._go_on()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._undrained:
            self._undrained = False
            self._go_on()

    def _go_on(self) -> None:
        """The reply is written: as aiohttp goes on behind one."""
        self._short = self._request_in_progress = False
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)
        if self.transport is None:
            return
        if self._close or self._force_close:
            self.transport.close()
            return
        self._next_keepalive_close_time = close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)
        if self._behind:
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        data, self._behind = self._behind, b""
        if self._buffer_paused:
            self._resume_reading_for_buffer()
        if self.transport is None:
            return
        if self._waits and self._connections.short is not None:
            self._begin(self._connections.short, data)
        else:
            self._hand_over(data)

    def _process_keepalive(self) -> None:
        if self._short:
            self._keepalive_handle = None
        else:
            super()._process_keepalive()


def _message_bytes(data: bytes) -> int:
    """Of the message that begins here; 0 where that is not certain."""
    end = data.find(END, 0, MOST_BYTES)
    head = plain_head(data[: end + len(END)]) if end >= 0 else None
    return 0 if head is None else head.bytes + head.length


class _Server(web.Server):
    """aiohttp's server, which makes these handlers."""

    def __init__(self, watched: Connections, like: web.Server) -> None:
        handler, make = expecting(like.request_handler), asking(like.request_factory)
        super().__init__(handler, request_factory=make, loop=like._loop, **like._kwargs)
        self._watched = watched

    def __call__(self) -> RequestHandler:
        return WatchedHandler(self._watched, self, loop=self._loop, **self._kwargs)


class _Site(web.TCPSite):
    """aiohttp's, which knows no other patience with a handshake than the minute of the loop."""

    __slots__ = ("handshake_s",)
    handshake_s: float

    async def start(self) -> None:
        await BaseSite.start(self)
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server,
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=None if self._ssl_context is None else self.handshake_s,
        )


class _Runner(web.AppRunner):
    def __init__(self, connections: Connections, app: web.Application, **options: Any) -> None:
        super().__init__(app, **options)
        self._connections = connections

    async def _make_server(self) -> web.Server:
        return _Server(self._connections, await super()._make_server())
