"""Stands between a connection's bytes and what is said on it: frames, pings, limits, and the close handshake.

1. What breaks RFC 6455 or RFC 7692 ends the connection with the code that they name. What comes behind it is thrown
   away, until the client has seen why: closing with bytes unread would reset the connection, and the reason with it.
2. Whoever talks may stop the reading: not a frame more is taken then, also of bytes that have come already, so that a
   client cannot have more work done than it may by sending it in one packet, or compressed.
3. A client that says nothing is asked whether it is there, and left when it does not answer.
4. Everything leaves through the `Pipe`, control frames too, and nothing after a close frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from aiohttp import web

from penstock.sockets import frames
from penstock.sockets.frames import Fault, Frame, FrameReader, close_frame, ping_frame, pong_frame
from penstock.sockets.handshake import Handshake
from penstock.sockets.pipe import LAST_WORDS_S, Pipe

PING_S = 30.0
"""A client that has said nothing for so long is asked whether it is there."""
PONG_S = 15.0
"""How long it may take to answer, if nothing waits for it to be read."""


async def upgrade(request: web.Request, handshake: Handshake) -> web.StreamResponse:
    """Answer the handshake: from here on the connection is a WebSocket."""
    response = web.StreamResponse(status=101, headers=handshake.headers)
    response.force_close()
    await response.prepare(request)
    return response


class Wire:
    """One socket. aiohttp calls `feed_data` and `feed_eof` (`RequestHandler.set_parser`) once it is upgraded."""

    def __init__(
        self,
        request: web.Request,
        pipe: Pipe,
        take: Callable[[Frame], None],
        *,
        most_bytes: int,
        deflate: bool,
        on_closed: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """`take` gets each message, from `start` on. `on_closed` hears with which code a client was sent away for a
        fault of its own, `on_failed` what `take` raised, which ends the connection."""
        self.gone = asyncio.Event()
        """The client has said its last word, or the connection is lost."""
        self._protocol, self._transport = request.protocol, request.transport
        self._pipe, self._message = pipe, take
        self._on_closed, self._on_failed = on_closed, on_failed
        self._reader = FrameReader(most_bytes, deflate=deflate)
        self._paused = self._over = False
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._pinged: float | None = None
        """When it was pinged, if that was at the last look."""
        self._pong: bytes | None = None
        self._timer = self._loop.call_later(PONG_S, self._look)

    def start(self) -> None:
        """Begin to read."""
        self._protocol.keep_alive(False)
        self._protocol.set_parser(cast(Any, self))  # all that it needs are feed_data and feed_eof

    async def ended(self) -> None:
        """Return when the conversation is over: the pipe is closed, and the client has had time to answer a close."""
        await self._pipe.closed.wait()
        self.resume()  # there may be a close among what was not read
        if self._over and not self.gone.is_set() and self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self.gone.wait()

    def close(self) -> None:
        self._timer.cancel()
        self._pipe.close()

    # Reading

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._heard = self._loop.time()
        self._read(bytes(data))
        return False, b""

    def feed_eof(self) -> None:
        self.gone.set()
        self._pipe.close()

    def pause(self) -> None:
        """Take nothing more until `resume`."""
        if not self._paused:
            self._paused = True
            self._protocol.pause_reading()

    def resume(self) -> None:
        """Go on with what has come already, then with the connection; `take` may have paused again by then."""
        if self._paused:
            self._paused = False
            self._heard = self._loop.time()
            self._read(b"")
            if not self._paused:
                self._protocol.resume_reading()

    def _read(self, data: bytes) -> None:
        try:
            coming = self._reader.feed(data) if not self._over else iter(())
            while not self._paused and not self._over and (frame := next(coming, None)) is not None:
                self._take(frame)
        except Fault as fault:
            self.finish(fault.code, fault.reason)
        except Exception as failure:
            self._on_failed(failure)
            self.finish(frames.INTERNAL, "something went wrong in the server")

    def _take(self, frame: Frame) -> None:
        if frame.opcode == frames.CLOSE:
            code = frames.close_answer(frame.data)
            self._over = True
            self.gone.set()
            self._pipe.end(close_frame(code, ""))
        elif self._pipe.closed.is_set():
            pass  # a close was sent: what comes before its answer does not matter
        elif frame.opcode == frames.PING:
            self._answer(frame.data)
        elif frame.opcode != frames.PONG:
            self._message(frame)

    def _answer(self, data: bytes) -> None:
        """Pong; of pings that came while there was no room the newest is answered, as the RFC allows."""
        waits, self._pong = self._pong is not None, data
        if not waits:
            self._pipe.first(self._newest_pong)

    def _newest_pong(self) -> bytes:
        data, self._pong = self._pong or b"", None
        return pong_frame(data)

    # Ending

    def finish(self, code: int, reason: str) -> None:
        """The client broke the rules: it hears which, and nothing that it says later counts."""
        self._over = True
        if not self._pipe.closed.is_set():
            self._on_closed(code)
        self._pipe.end(close_frame(code, reason))

    def _look(self) -> None:
        """Ask a client that says nothing whether it is there; while something waits to be read the pipe judges it.

        One that has just read again after a long pause is asked before it is given up.
        """
        now = self._loop.time()
        self._timer = self._loop.call_later(PONG_S, self._look)
        pinged, self._pinged = self._pinged, None
        if self._paused or self._pipe.closed.is_set() or not self._pipe.is_idle:
            self._pipe.watch()
        elif pinged is not None and self._heard < pinged:
            self._on_closed(frames.SILENT)
            self._pipe.end(close_frame(frames.SILENT, "no answer to a ping: resume from your last position"))
        elif now - self._heard >= PING_S:
            self._pinged = now
            self._pipe.first(ping_frame())
