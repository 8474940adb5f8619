"""A server that says again what it hears, over the sockets of the edge: what Autobahn's fuzzing client talks to.

    python2 -m pip install --target SUITE autobahntestsuite
    python tests/unit/sockets/echo.py 9001 &
    PYTHONPATH=SUITE python2 -c "from autobahntestsuite.wstest import run; run()" -m fuzzingclient \\
        -s tests/unit/sockets/autobahn.json

The suite is written in Python 2, so that it is run by hand; `docs/explanation/measured.md` has what it said.
"""

from __future__ import annotations

import sys

import uvloop
from aiohttp import web

from penstock.sockets.frames import BINARY, TEXT, Frame, deflate, deflated_frame, text_frame
from penstock.sockets.handshake import agree
from penstock.sockets.pipe import Pipe
from penstock.sockets.wire import Wire, upgrade

MOST_BYTES = 16 * 1024**2


async def echo(request: web.Request) -> web.StreamResponse:
    """Until the client leaves."""
    agreed = agree(request, "penstock")
    response = await upgrade(request, agreed)
    pipe = Pipe(request, MOST_BYTES, lambda waiting, policy: b"")

    def again(frame: Frame) -> None:
        if frame.opcode == TEXT:
            made = deflated_frame(b"", deflate(frame.data)) if agreed.deflate else text_frame(frame.data)
        else:
            made = text_frame(frame.data)
            made = bytes([made[0] - TEXT + BINARY]) + made[1:]
        pipe.put(made)

    wire = Wire(
        request,
        pipe,
        again,
        most_bytes=MOST_BYTES,
        deflate=agreed.deflate,
        on_closed=lambda code: None,
        on_failed=lambda failure: print(failure, file=sys.stderr),
    )
    wire.start()
    try:
        await wire.ended()
    finally:
        wire.close()
    return response


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/", echo)
    uvloop.install()
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
