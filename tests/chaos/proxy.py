"""A TCP proxy on loopback that breaks as networks do: for any test that wants to see what survives it.

    async with Proxy(port_of_the_server) as proxy:
        proxy.begin("stall")      # what holds from now on
        proxy.end()               # and no longer

| fault | what happens while it holds |
|---|---|
| `drop` | every connection is closed, a new one as soon as it is made |
| `reset` | the same with RST, so that what was under way is thrown away |
| `stall` | nothing is passed on in either direction; it arrives later |
| `half_open` | requests arrive, replies do not, ever, and nobody is told: not even when the fault ends |
| `cut_request` | a connection is reset within a request |
| `cut_reply` | a connection is closed within a reply |
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Literal, get_args

Fault = Literal["drop", "reset", "stall", "half_open", "cut_request", "cut_reply"]
FAULTS: tuple[Fault, ...] = get_args(Fault)


class Proxy:
    """Listens on a port of its own and passes on to `target`, as long as nothing is wrong."""

    def __init__(self, target: int, random: Random | None = None) -> None:
        self.target, self.port = target, 0
        self.fault: Fault | None = None
        self._random = random or Random()
        self._links: set[_Link] = set()
        self.open: set[asyncio.BaseTransport] = set()
        """Every connection that was accepted, from the first moment on: before a task of ours runs for it."""
        self._accepting: set[asyncio.Task[Any]] = set()
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin(self, fault: Fault) -> None:
        self.fault = fault
        if fault == "stall":
            self._healthy.clear()
        for link in list(self._links):
            if fault in ("drop", "reset"):
                link.break_off(fault == "reset")
            if fault == "half_open":
                link.deaf = True

    def end(self) -> None:
        self.fault = None
        self._healthy.set()

    async def __aenter__(self) -> Proxy:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Accepted(self, self._accept), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: Any) -> None:
        assert self._server is not None
        self.end()
        await stop_accepting(self._server)
        self._server.close()
        for link in list(self._links):
            link.break_off(reset=False)
        if self._accepting:
            await asyncio.wait(self._accepting)  # links end by themselves
        while self.open:
            for transport in list(self.open):
                transport.abort()  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        try:
            await self._pass_on(reader, writer)
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._server.is_serving() or self.fault in ("drop", "reset"):
            _break(writer, self.fault == "reset")
            return
        try:
            inner = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            _break(writer, reset=True)
            return
        link = _Link(writer, inner[1], deaf=self.fault == "half_open")
        self._links.add(link)
        try:
            await asyncio.gather(
                self._pump(link, reader, inner[1], "cut_request"), self._pump(link, inner[0], writer, "cut_reply")
            )
        finally:
            link.break_off(reset=False)
            self._links.discard(link)

    async def _pump(
        self,
        link: _Link,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        cut: Literal["cut_request", "cut_reply"],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await self._healthy.wait()
                if self.fault == cut:
                    sink.write(data[: self._random.randrange(len(data))])
                    await sink.drain()
                    link.break_off(reset=cut == "cut_request")
                    return
                if link.deaf and cut == "cut_reply":
                    continue
                sink.write(data)
                await sink.drain()
        if link.deaf and cut == "cut_reply":
            await link.over.wait()  # the server has gone, and the client is not told
        link.break_off(reset=False)


async def stop_accepting(server: asyncio.AbstractServer) -> None:
    """Before `close`: Python 3.11 forgets, and never closes, what was accepted but is no connection yet by then."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:  # type: ignore[attr-defined]
        loop.remove_reader(listening.fileno())
    for _ in range(5):
        await asyncio.sleep(0)


class _Accepted(asyncio.StreamReaderProtocol):
    def __init__(self, proxy: Proxy, accept: Callable[..., Awaitable[None]]) -> None:
        super().__init__(asyncio.StreamReader(), accept)
        self._proxy = proxy
        self._made: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made = transport
        self._proxy.open.add(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._made is not None:
            self._proxy.open.discard(self._made)
        super().connection_lost(exc)


class _Link:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, outer: asyncio.StreamWriter, inner: asyncio.StreamWriter, deaf: bool) -> None:
        self._writers = (outer, inner)
        self.deaf = deaf
        self.over = asyncio.Event()

    def break_off(self, reset: bool) -> None:
        self.over.set()
        for writer in self._writers:
            _break(writer, reset)


def _break(writer: asyncio.StreamWriter, reset: bool) -> None:
    if reset and (sock := writer.get_extra_info("socket")) is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if reset:
        writer.transport.abort()
    else:
        writer.close()
