"""Closes connections that cost and bring nothing: heads that trickle in, idle ones, and more than a peer may have.

aiohttp closes a connection that waits for a request too long (`keepalive_timeout`), but it cannot tell one that waits
from one whose head never ends, and takes any number of them. So its handler of a connection is extended by what a look
at each arriving packet can tell, and a task looks once a second at the heads that are under way: an idle connection
costs nothing.

`short_way.py` extends the handler once more, where it is not switched off.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_runner import BaseSite

from penstock.clock import Clock
from penstock.collect.ways.door_replies import error_reply
from penstock.config import Limits
from penstock.errors import BadRequestError
from penstock.observe.signals import ConnectionClosed, Signals
from penstock.rights.redaction import redacted

LOOK_S = 1.0
LINGER_S = 2.0
"""How long the rest of a refused body is read, so that its sender gets to see the reply."""
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
        self.short: Handlers | None = None
        """Makes the handlers of connections that may go past aiohttp; None: aiohttp serves every request."""

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

    __slots__ = ("_connections", "_refused", "address")

    def __init__(self, connections: Connections, manager: Any, **options: Any) -> None:
        super().__init__(manager, **options)
        self._connections = connections
        self._refused = False
        self.address = ""

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
        reply = error_reply(error)
        reply.force_close()
        return reply

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self.hand_over(data)

    def hand_over(self, data: bytes) -> None:
        """Let aiohttp read this, and see whether a head is under way."""
        super().data_received(data)
        if self.busy:
            self._connections.head_ended(self)
        elif data:
            self._connections.head_begun(self)


Handlers = Callable[..., WatchedHandler]
"""Called with the connections, aiohttp's server and the options of a handler."""


class _Server(web.Server):
    """aiohttp's server, which makes these handlers."""

    def __init__(self, watched: Connections, like: web.Server) -> None:
        handler, make = _with_expect(like.request_handler), _with_held_bodies(like.request_factory)
        super().__init__(handler, request_factory=make, loop=like._loop, **like._kwargs)
        self._watched = watched

    def __call__(self) -> RequestHandler:
        make = self._watched.short or WatchedHandler
        return make(self._watched, self, loop=self._loop, **self._kwargs)


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


# The header Expect. aiohttp answers it before any of our code runs: with 100 to what is refused by its head alone, so
# that a large body is sent for nothing, and in a shape of its own, or not at all, to what it does not know. Here a body
# that is held back is asked for when somebody reads it, and not if nobody does.

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Maker = Callable[..., web.BaseRequest]
"""Makes a request of its message, its body, the protocol, the writer and the task, as aiohttp calls it."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def _with_expect(handler: Handler) -> Handler:
    """Refuses an `Expect` that is not known, and ends a connection on which a held back body may come or not."""

    def handle(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        if request.headers.get("Expect"):
            return _unexpected()
        body: object = request.content
        return _answered(handler, request, body) if isinstance(body, _HeldBody) else handler(request)

    return handle


async def _answered(handler: Handler, request: web.BaseRequest, body: _HeldBody) -> web.StreamResponse:
    reply = await handler(request)
    if not body.requested:
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


def _with_held_bodies(make: Maker) -> Maker:
    """Requests whose held back bodies are asked for; they no longer have the header."""

    def build(message: RawRequestMessage, body: StreamReader, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if message.headers.get("Expect", "").lower() == "100-continue":
            headers = message.headers.copy()
            headers.popall("Expect")
            message = message._replace(headers=type(message.headers)(headers))
            if message.version >= HttpVersion11 and not body.is_eof():
                body = cast(StreamReader, _HeldBody(body, writer))
        return make(message, body, protocol, writer, task)

    return build


class _HeldBody:
    """A body in every respect, but for what happens when it is waited for."""

    def __init__(self, body: StreamReader, writer: AbstractStreamWriter) -> None:
        self._body, self._writer = body, writer
        self.requested = False

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
        waits, self.requested = not self.requested and not self._body.total_bytes, True
        if waits:
            await self._writer.write(_CONTINUE)
            self._writer.output_size = 0  # of the reply, nothing is written yet
