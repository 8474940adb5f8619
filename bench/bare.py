"""The least that an aiohttp server can do with the same POST: read it and answer, without a look at it and no disk."""

from __future__ import annotations

import asyncio

import uvloop
from aiohttp import web

_REPLY = b'{"accepted":1,"duplicates":0,"rejected":[],"ack":"lACocmVhZGluZ3OsYjQwMTIzNDU2Nzg5kc0D6A","level":"logged"}'


async def answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=_REPLY, content_type="application/json")


async def serve() -> None:
    """Listen on a free port, print it, and stay until killed."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/streams/{stream}", answer)
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve())
