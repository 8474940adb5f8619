"""Writes to one subscriber's connection without making others wait for it, and ends it when it is too slow.

1. `offer` and `put` return at once: the frame is written, or waits in this connection's own queue. What waits is
   written in one go when there is room: a call into the kernel costs five times what is done around it here.
2. Frames leave in the order in which they were queued or sent, whole; control frames of a socket go first.
3. Little waits in the transport and the kernel, so that what a slow reader gets is never minutes old.
4. `send` is for what only this subscriber asked for (a snapshot, what it missed): it waits for room instead.
5. When more than `Limits.subscriber_bytes` wait for the connection, `offer` takes nothing more, whichever of its
   subscriptions it is for: whoever has more holds it back until `drained`.
6. A connection that reads nothing for `Limits.subscriber_cut_s` is cut, and ending one takes at most `LAST_WORDS_S`:
   nobody can pin memory or hold up a shutdown by not reading.

So a client that does not read costs at most `subscriber_bytes` and a frame here, however many subscriptions it has,
`WRITE_HIGH_BYTES` and a frame in the transport, and `KERNEL_BYTES` in the kernel, for `subscriber_cut_s`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator
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

Frame = bytes | Callable[[], bytes]
"""What is to be written; a function is asked when its turn has come."""


class Pipe:
    """The way out to one connection."""

    __slots__ = (
        "_bound_bytes",
        "_flushing",
        "_level",
        "_on_cut",
        "_protocol",
        "_room",
        "_stalled_s",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "closed",
        "policy",
        "turn",
    )

    def __init__(
        self,
        request: web.BaseRequest,
        bound_bytes: int,
        on_cut: Callable[[int, str], bytes],
        *,
        stalled_s: float = STALLED_S,
    ) -> None:
        """`on_cut` is called once, with the bytes that waited and the policy in force; it returns the last frame."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the connection is closed")
        self.closed = asyncio.Event()
        self.turn = asyncio.Lock()
        """Held by a subscription that catches up, so that those on one connection do so one after the other."""
        self.policy = "conflate"
        """Of the newest subscription on it: what a cut for reading nothing at all is counted under."""
        self._room = asyncio.Event()
        self._transport = transport
        self._protocol = request.protocol
        self._bound_bytes = bound_bytes
        self._on_cut = on_cut
        self._stalled_s = stalled_s
        self._waiting: deque[Frame] = deque()
        self._waiting_bytes = 0
        self._flushing: asyncio.Task[None] | None = None
        self._level = True
        """Nothing waits here, and it is not closed; asked for every frame."""
        keep_buffers_small(transport)

    # Writing

    def offer(self, frame: bytes) -> bool | None:
        """Take it if the connection may have more waiting. False: it was taken, but enough waits now. None: it was not
        taken, because enough waited before. In both cases: hold back what comes next until `drained`."""
        transport = self._transport
        if self._level and not transport.is_closing() and transport.get_write_buffer_size() <= WRITE_HIGH_BYTES:
            transport.write(frame)  # what most frames come to, without another call
            return True
        return None if self._waiting and self._waiting_bytes > self._bound_bytes else self.put(frame)

    def put(self, frame: Frame) -> bool:
        """Take it in any case: for what is small, and must be said. False when enough waits."""
        if self.closed.is_set():
            return True
        transport = self._transport
        if transport.is_closing():
            self.close()
            return True
        if self.is_idle:
            transport.write(_bytes_of(frame))
            return True
        self._waiting.append(frame)
        self._level = False
        self._waiting_bytes += _size(frame)
        self._start_flushing()
        return self._waiting_bytes <= self._bound_bytes

    def first(self, frame: Frame) -> None:
        """Write before everything that waits: for the control frames of a socket, which are small."""
        if self.closed.is_set() or self._transport.is_closing():
            return
        if self._has_room():
            self._transport.write(_bytes_of(frame))
        else:
            self._waiting.appendleft(frame)
            self._level = False
            self._waiting_bytes += _size(frame)
            self._start_flushing()

    async def drained(self) -> None:
        """Return when everything is written. Raises `ConnectionResetError` when the connection is gone."""
        while not self.closed.is_set() and not self.is_idle:
            self._start_flushing()
            await self._room.wait()
        if self.closed.is_set() or self._transport.is_closing():
            self.close()
            raise ConnectionResetError("the connection is closed")

    async def send(self, frame: bytes) -> None:
        """Write when everything before it is written. Raises `ConnectionResetError` when the connection is gone."""
        await self.drained()
        self._transport.write(frame)

    def watch(self) -> None:
        """Make sure that somebody counts how long it reads nothing, also when nothing more is offered."""
        if not self.closed.is_set() and not self.is_idle:
            self._start_flushing()

    @property
    def is_idle(self) -> bool:
        """Nothing waits here, and the transport takes more."""
        return not self._waiting and self._has_room()

    @property
    def unsent_bytes(self) -> int:
        """What waits here and in the transport."""
        return self._waiting_bytes + int(self._transport.get_write_buffer_size())

    # Ending

    def close(self) -> None:
        """Forget what waits; the connection itself is its handler's to close."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._level = False
        self.closed.set()
        self._room.set()

    def end(self, last: bytes = b"") -> None:
        """Say this last frame and close; whoever does not read it in time is disconnected."""
        if self.closed.is_set():
            return
        self.close()
        if last and not self._transport.is_closing():
            self._transport.write(last)
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._transport.abort)

    def cut(self, policy: str, last: bytes = b"") -> None:
        """End it because it is too slow."""
        if not self.closed.is_set():
            self.end(last + self._on_cut(self.unsent_bytes, policy))

    # Flushing

    def _has_room(self) -> bool:
        return self._transport.get_write_buffer_size() <= WRITE_HIGH_BYTES

    def _write_what_fits(self) -> None:
        waiting, transport = self._waiting, self._transport
        while waiting and transport.get_write_buffer_size() <= WRITE_HIGH_BYTES:
            transport.write(self._next() if len(waiting) == 1 else b"".join(self._next_few()))
        self._level = not waiting and not self.closed.is_set()

    def _next(self) -> bytes:
        frame = self._waiting.popleft()
        self._waiting_bytes -= _size(frame)
        return _bytes_of(frame)

    def _next_few(self) -> Iterator[bytes]:
        size = 0
        while self._waiting and size <= WRITE_HIGH_BYTES:
            frame = self._next()
            size += len(frame)
            yield frame

    def _start_flushing(self) -> None:
        if self._flushing is None:
            self._room.clear()
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        """The only one that waits for the transport: aiohttp's waiter is shared, and cancelling one cancels all."""
        try:
            while not self.is_idle:
                async with asyncio.timeout(self._stalled_s):
                    await self._drained()
                self._write_what_fits()
        except TimeoutError:
            self.cut(self.policy)
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


def _bytes_of(frame: Frame) -> bytes:
    return frame if isinstance(frame, bytes) else frame()


def _size(frame: Frame) -> int:
    return len(frame) if isinstance(frame, bytes) else 0


def keep_buffers_small(transport: asyncio.Transport) -> None:
    transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_HIGH_BYTES // 4)
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
