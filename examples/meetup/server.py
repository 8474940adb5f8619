"""Serves the simulated Meetup feed where the real one was: `/2/rsvps`, as a WebSocket or a chunked stream.

    python examples/meetup/server.py --port 8190 --rate 50 --seed 7

There is one sequence of RSVPs, laid along the clock from `--start-ms` on, and a client is only a place in it:
all clients get the same RSVPs in the same order, and so does one that comes back after a restart of this
server (with the same seed, rate and start).

Resume: `?since_mtime=M` (milliseconds, the largest mtime that the client holds) first replays everything
*sent* at M - `MARGIN_MS` or later. mtimes are out of order, but never later than the moment of sending, so
this loses nothing; it does send some RSVPs again, which the stream's `id` drops. The replay reaches back
`HISTORY_MS` or `HISTORY_RSVPS`, whichever is further; a client that was away for longer gets what there is.
Without `since_mtime` a client gets only what is sent from now on.

A client that does not read waits in its own task and costs the others nothing; once it is `lag_s` further
behind than when it came, it is cut off, and may resume. Clients that keep up share the encoded blocks.
"""

import argparse
import asyncio
import contextlib
import signal
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache

from aiohttp import WSCloseCode, web
from feed import SECOND_MS, Feed

ORIGIN_MS = 1_704_067_200_000  # 2024-01-01: fixed, so that a restarted server goes on with the same sequence
HISTORY_MS = 10 * 60 * SECOND_MS
HISTORY_RSVPS = 200_000
MARGIN_MS = 5 * SECOND_MS  # for clients that keep whole seconds, or a clock that was set back
LAG_S = 10.0
BLOCKS_PER_SECOND = 50  # a block is all RSVPs of 20 ms, or one RSVP at lower rates
CACHED_BLOCKS = 32  # 0.6 s: what clients that keep up share; at 20,000 RSVPs/s about 15 MB per transport
POLL_S = 0.05  # the clock is looked at this often at least: it may jump
STOP_S = 2.0  # how long stopping waits for clients

Clock = Callable[[], int]  # milliseconds since 1970
Wrap = Callable[[bytes], bytes]  # from an RSVP's JSON to its bytes on the wire
Write = Callable[[bytes], Awaitable[None]]


def wall_clock() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000


def as_line(rsvp: bytes) -> bytes:
    """An RSVP as a line of the HTTP stream."""
    return rsvp + b"\n"


def as_frame(rsvp: bytes) -> bytes:
    """An RSVP as an unmasked WebSocket text frame; its length, always 126 to 65,535, takes two bytes."""
    return struct.pack(">BBH", 0x81, 126, len(rsvp)) + rsvp


class TooSlow(Exception):
    """The client fell too far behind."""


class FeedServer:
    """One feed for any number of clients, each with its own place in it."""

    def __init__(self, feed: Feed, clock: Clock, lag_s: float = LAG_S) -> None:
        self._feed = feed
        self._clock = clock
        self._lag_s = lag_s
        self._stopping = asyncio.Event()
        self._block_size = max(1, round(feed.rate / BLOCKS_PER_SECOND))
        self._block = lru_cache(maxsize=2 * CACHED_BLOCKS)(self._make_block)

    def application(self) -> web.Application:
        """The aiohttp application that serves the feed."""
        application = web.Application()
        application.router.add_get("/2/rsvps", self._rsvps)
        application.on_shutdown.append(self._stop)
        return application

    async def _stop(self, _: web.Application) -> None:
        self._stopping.set()

    async def _rsvps(self, request: web.Request) -> web.StreamResponse:
        try:
            since = request.query.get("since_mtime")
            first = self._live() if since is None else self._since(int(since))
        except ValueError:
            return web.json_response({"error": "since_mtime must be milliseconds since 1970"}, status=400)
        socket = web.WebSocketResponse(compress=False)
        if socket.can_prepare(request).ok:
            return await self._serve_socket(request, socket, first)
        return await self._serve_lines(request, first)

    def _live(self) -> int:
        """The first block that is not yet wholly sent."""
        return self._feed.first_at(self._clock() + 1) // self._block_size

    def _since(self, mtime: int) -> int:
        """The block with which a replay for a client that holds everything up to `mtime` begins."""
        live = self._live()
        oldest = min(self._feed.first_at(self._clock() - HISTORY_MS), live * self._block_size - HISTORY_RSVPS)
        wanted = self._feed.first_at(max(0, min(mtime, self._clock())) - MARGIN_MS)
        return min(live, max(wanted, oldest, 0) // self._block_size)

    async def _serve_socket(
        self, request: web.Request, socket: web.WebSocketResponse, first: int
    ) -> web.StreamResponse:
        await socket.prepare(request)

        async def write(frames: bytes) -> None:
            # All frames of a block in one write: one system call, where `send_str` makes one per RSVP.
            transport = request.transport
            if transport is None or socket.closed:
                raise ConnectionResetError
            transport.write(frames)
            await request.writer.drain()

        async def send() -> None:
            await self._follow(request, first, as_frame, write)
            await socket.close(code=WSCloseCode.GOING_AWAY)

        sending = asyncio.create_task(send())
        try:
            async for _ in socket:  # answers pings and notices that the client left; what it says does not matter
                pass
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        return socket

    async def _serve_lines(self, request: web.Request, first: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await self._follow(request, first, as_line, response.write)
        return response

    async def _follow(self, request: web.Request, block: int, wrap: Wrap, write: Write) -> None:
        """Send block after block, each when it is due, until the client leaves or the server stops."""
        allowed_ms = max(0, self._lag_ms(block)) + self._lag_s * SECOND_MS
        try:
            while await self._due(block):
                async with asyncio.timeout(self._lag_s):
                    await write(self._block(block, wrap))
                block += 1
                if self._lag_ms(block) > allowed_ms:
                    raise TooSlow
                await asyncio.sleep(0)  # a long replay lets the others go on
        except (TooSlow, TimeoutError):
            self._cut(request)
        except ConnectionError:
            pass  # the client left

    def _cut(self, request: web.Request) -> None:
        print(f"cut off {request.remote}: it does not keep up", file=sys.stderr, flush=True)
        if request.transport is not None:
            request.transport.abort()

    async def _due(self, block: int) -> bool:
        """Wait until the last RSVP of a block is to be sent; False when the server stops."""
        while (lag_ms := self._lag_ms(block)) < 0 and not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(-lag_ms / SECOND_MS, POLL_S)):
                    await self._stopping.wait()
        return not self._stopping.is_set()

    def _lag_ms(self, block: int) -> int:
        last = (block + 1) * self._block_size - 1
        return self._clock() - self._feed.sent_ms(last)

    def _make_block(self, block: int, wrap: Wrap) -> bytes:
        first = block * self._block_size
        return b"".join(wrap(self._feed.line(number)) for number in range(first, first + self._block_size))


async def start(server: FeedServer, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; returns what to `cleanup()` in the end, and the port (another than `port` if that is 0)."""
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=STOP_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, runner.addresses[0][1]


async def serve(options: argparse.Namespace) -> None:
    """Serve the feed until SIGTERM or SIGINT."""
    feed = Feed(options.seed, options.start_ms, options.rate)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner, port = await start(FeedServer(feed, wall_clock), options.host, options.port)
    print(f"feed ws://{options.host}:{port}/2/rsvps", flush=True)
    await stop.wait()
    await runner.cleanup()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Serve a simulated Meetup RSVP feed.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8190, help="0 picks a free one")
    parser.add_argument("--rate", type=float, default=50, help="RSVPs per second, up to about 20000")
    parser.add_argument("--seed", type=int, default=7, help="another seed is another feed")
    parser.add_argument("--start-ms", type=int, default=ORIGIN_MS, help="when RSVP 0 is sent, ms since 1970")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(serve(parse()))
