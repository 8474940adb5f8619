"""Writes to one subscriber's connection without making others wait for it, and cuts it when it is too slow.

1. `offer` returns at once: the frame is written, or waits in this connection's own queue, or the connection is cut.
2. Frames leave in the order in which they were offered or sent, whole.
3. At most `Limits.subscriber_bytes` wait here, and little waits in the transport and the kernel, so that what a slow
   reader gets is never minutes old. A cut subscriber resumes from its last position.
4. `send` is for what only this subscriber asked for (a snapshot, what it missed): it waits for room instead.
5. A connection that reads nothing for `STALLED_S` is cut too, and ending one takes at most `LAST_WORDS_S`: nobody can
   pin memory or hold up a shutdown by not reading.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

WRITE_HIGH_BYTES = 64 * 1024
"""Above this the transport is not given more: it is the unit in which a slow reader is noticed."""
KERNEL_BYTES = 256 * 1024
"""SO_SNDBUF: enough for 20 MB/s at 10 ms; the kernel's own choice would hide 4 MiB of stale updates."""
UNSENT_BYTES = 64 * 1024
"""TCP_NOTSENT_LOWAT: how much the kernel takes beyond what is on its way."""
LAST_WORDS_S = 2.0
"""How long a connection that is being ended may take to read why."""
STALLED_S = 60.0
"""How long a connection with something to read may read nothing: longer than any pause of a healthy network."""


class Pipe:
    """The way out to one connection."""

    def __init__(
        self,
        request: web.Request,
        bound_bytes: int,
        on_cut: Callable[[int], bytes],
        *,
        stalled_s: float = STALLED_S,
    ) -> None:
        """`on_cut` is called once with the bytes that waited, and returns the last frame."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the connection is closed")
        self.closed = asyncio.Event()
        self._room = asyncio.Event()
        self._transport = transport
        self._protocol = request.protocol
        self._bound_bytes = bound_bytes
        self._on_cut = on_cut
        self._stalled_s = stalled_s
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._flushing: asyncio.Task[None] | None = None
        _keep_buffers_small(transport)

    def offer(self, frame: bytes) -> None:
        """Write now if there is room, else queue; too much queued: cut."""
        if self.closed.is_set():
            return
        if self._transport.is_closing():
            self.close()
        elif not self._waiting and self._has_room():
            self._transport.write(frame)
        else:
            self._queue(frame)

    async def send(self, frame: bytes) -> None:
        """Write when everything before it is written. Raises `ConnectionResetError` when the connection is gone."""
        while not self.closed.is_set() and (self._waiting or not self._has_room()):
            self._start_flushing()
            await self._room.wait()
        if self.closed.is_set() or self._transport.is_closing():
            self.close()
            raise ConnectionResetError("the connection is closed")
        self._transport.write(frame)

    def close(self) -> None:
        """Forget what waits; the connection itself is its handler's to close."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self.closed.set()
        self._room.set()

    def end(self, last: bytes = b"") -> None:
        """Say this last frame and close; whoever does not read it in time is disconnected."""
        self.close()
        if last and not self._transport.is_closing():
            self._transport.write(last)
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._transport.abort)

    def _has_room(self) -> bool:
        return self._transport.get_write_buffer_size() <= WRITE_HIGH_BYTES

    def _queue(self, frame: bytes) -> None:
        """Bytes are counted before this frame, so that one large batch alone cuts nobody."""
        if self._waiting_bytes > self._bound_bytes:
            self._cut()
            return
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        self._start_flushing()

    def _start_flushing(self) -> None:
        if self._flushing is None:
            self._room.clear()
            self._flushing = asyncio.create_task(self._flush())

    def _cut(self) -> None:
        self.end(self._on_cut(self._waiting_bytes))

    async def _flush(self) -> None:
        """The only one that waits for the transport: aiohttp's waiter is shared, and cancelling one cancels all."""
        try:
            while self._waiting or not self._has_room():
                async with asyncio.timeout(self._stalled_s):
                    await self._drained()
                while self._waiting and self._has_room():
                    frame = self._waiting.popleft()
                    self._waiting_bytes -= len(frame)
                    self._transport.write(frame)
        except TimeoutError:
            self._cut()
        except ConnectionError:
            self.close()
        finally:
            self._flushing = None
            self._room.set()

    async def _drained(self) -> None:
        """Wait until the transport asks for more. aiohttp keeps this to itself, but only it sees `resume_writing`."""
        await self._protocol._drain_helper()
        if not self._has_room():
            await asyncio.sleep(0)


def _keep_buffers_small(transport: asyncio.Transport) -> None:
    transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_HIGH_BYTES // 4)
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


# Frames


def sse_frame(event: str | None, data: bytes, position: str | None) -> bytes:
    """A Server-Sent Event; without an event an `id:` block that only moves the position."""
    lines = b"id: %b\n" % position.encode() if position is not None else b""
    if event is not None:
        lines += b"event: %b\ndata: %b\n" % (event.encode(), data)
    return chunk(lines + b"\n")


def chunk(data: bytes) -> bytes:
    """HTTP/1.1 chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def socket_frame(data: bytes) -> bytes:
    """A WebSocket text frame of a server: no mask, no extension."""
    return _header(0x81, len(data)) + data


def close_frame(code: int, reason: str) -> bytes:
    body = code.to_bytes(2, "big") + reason.encode()
    return _header(0x88, len(body)) + body


def _header(first: int, length: int) -> bytes:
    if length < 126:
        return bytes((first, length))
    if length < 65536:
        return bytes((first, 126)) + length.to_bytes(2, "big")
    return bytes((first, 127)) + length.to_bytes(8, "big")
