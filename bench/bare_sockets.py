"""The least that a fan-out can cost: one prebuilt frame, `transport.write` of it to every socket, and nothing else.

    python -m bench.bare_sockets FRAME_BYTES

It prints its port, takes whoever comes for a subscriber, and writes a frame to all for each line on stdin. What the
edge does beyond this is our own work; the rest is the event loop's and the kernel's.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import cast

import uvloop

from penstock.sockets.frames import text_frame
from penstock.sockets.pipe import keep_buffers_small

_HELLO = b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + text_frame(b'{"type":"snapshot"}')


class Subscriber(asyncio.Protocol):
    """One connection."""

    def __init__(self, all: list[asyncio.Transport]) -> None:
        self._all = all
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_buffers_small(self._transport)

    def data_received(self, data: bytes) -> None:
        """What it asks does not matter; that it asked does."""
        if self._transport not in self._all:
            self._transport.write(_HELLO)
            self._all.append(self._transport)


async def serve(frame_bytes: int) -> None:
    loop, all = asyncio.get_running_loop(), list[asyncio.Transport]()
    server = await loop.create_server(lambda: Subscriber(all), "127.0.0.1", 0, backlog=1_024)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        made = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = b'{"accepted":"%b","rows":"' % made.encode()
        frame = text_frame(text + b"x" * (frame_bytes - len(text) - 2) + b'"}')
        for transport in all:
            transport.write(frame)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
