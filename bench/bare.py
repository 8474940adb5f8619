"""The least that a server can do with the same POST: read it and answer, without a look at it and no disk.

By aiohttp, or with `--protocol` by hardly anything: what then takes long is the machine and the client.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop
from aiohttp import web

_REPLY = b'{"accepted":1,"duplicates":0,"rejected":[],"ack":"lACocmVhZGluZ3OsYjQwMTIzNDU2Nzg5kc0D6A","level":"logged"}'


async def answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=_REPLY, content_type="application/json")


class Protocol(asyncio.Protocol):
    """Answers when it has seen the end of a head: small requests come in one piece."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_REPLY), _REPLY)

    def data_received(self, data: bytes) -> None:
        if b"\r\n\r\n" in data:
            self._transport.write(self._answer)


async def serve(protocol: bool) -> None:
    """Listen on a free port, print it, and stay until killed."""
    if protocol:
        bound = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0, backlog=512)
        print(bound.sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/streams/{stream}", answer)
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve("--protocol" in sys.argv))
