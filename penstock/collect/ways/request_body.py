"""Reads a request's body within its limits: what it says it is, how it is packed, and never more than is allowed.

A body counts against the room for unwritten data, unpacked, from its first byte until it is answered, so that senders
together cannot take the process's memory. Unpacking is done here, bounded: aiohttp's own lets unknown encodings
through, and so the server around must be told `auto_decompress=False`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from aiohttp import StreamReader, web

from penstock.clock import Clock
from penstock.collect.contents.cloudevents import enveloped, is_binary
from penstock.collect.judging.json_events import SLICE_BYTES, Form
from penstock.collect.limits.room import Room
from penstock.config import Limits
from penstock.errors import BadBodyError, BadRequestError, SlowBodyError, TooLargeError, UnsupportedContentError

_FORMS: dict[str, Form] = {
    "": "json",
    "application/json": "json",
    "application/x-www-form-urlencoded": "json",
    "application/x-ndjson": "lines",
    "application/ndjson": "lines",
    "application/jsonl": "lines",
    "text/plain": "text",
    "text/csv": "csv",
    "application/vnd.apache.arrow.stream": "arrow",
    "application/cloudevents+json": "cloudevent",
    "application/cloudevents-batch+json": "cloudevents",
}
AT_ONCE_BYTES = 64 * 1024
"""A larger body takes room as it comes: what is only announced would let slow senders keep all of it."""
_ENCODINGS = ("gzip", "zstd")


class RequestBody:
    """One request's body and its share of the room, which the caller gives back when the request is done with."""

    def __init__(
        self,
        request: web.Request,
        limits: Limits,
        room: Room,
        account: str,
        slow: SlowBodies | None = None,
        form: Form | None = None,
    ) -> None:
        """`form`: what it holds, where that is known already."""
        self.request, self._limits, self._slow = request, limits, slow
        self.share = room.share(account)
        self.packed = b""
        """As it was sent."""
        self._enveloped = form is None and is_binary(request.headers)
        held: Form = "cloudevent" if self._enveloped else form or form_of(request.headers.get("Content-Type", ""))
        self.form = held
        self._encoding = _encoding(request.headers.get("Content-Encoding", ""))

    async def read(self) -> bytes:
        """The unpacked bytes. Raises `TooLargeError`, `OverloadedError`, and `BadBodyError` where unpacking fails."""
        await self.receive()
        return await self.unpacked()

    async def receive(self) -> None:
        """Read it as it was sent. Raises `TooLargeError` and `OverloadedError`."""
        self.packed = await self._read_packed()

    async def unpacked(self) -> bytes:
        """What `receive` has read, unpacked. Raises what `read` raises."""
        content = await self._unpacked()
        if len(content) > len(self.packed):
            self.share.grow(len(content) - len(self.packed))
        return enveloped(self.request.headers, content) if self._enveloped else content

    async def _unpacked(self) -> bytes:
        packed = self.packed
        if self._encoding is None:
            return packed
        if len(packed) < SLICE_BYTES // 16:
            return self._unpack(packed)
        return await asyncio.to_thread(self._unpack, packed)

    def close(self) -> None:
        """Give the room back."""
        self.share.close()

    async def _read_packed(self) -> bytes:
        request = self.request
        if self._slow is None or request.content.is_eof():
            return await self._read_on()
        with self._slow.watching(request.content):
            return await self._read_on()

    async def _read_on(self) -> bytes:
        request = self.request
        length = request.content_length
        try:
            if length is not None and length > self._limits.body_bytes:
                raise self._too_large()
            if length is not None and length <= AT_ONCE_BYTES and self._encoding is None:
                self._grow(length)
                content = request.content
                if content.is_eof() and content.exception() is None:  # all of it came with the headers
                    return content.read_nowait()
                return await content.read()
            parts = []
            while part := await request.content.readany():
                self._grow(len(part))
                parts.append(part)
            return b"".join(parts)
        except web.RequestPayloadError as error:
            raise BadRequestError("the body broke off", detail=str(error), hint="send the request again") from None
        except RuntimeError:  # aiohttp's, when the connection was lost before the body was asked for
            if request.transport is None:
                raise ConnectionResetError("the sender has gone") from None
            raise

    def _grow(self, size: int) -> None:
        if self.share.bytes + size > self._limits.body_bytes:
            raise self._too_large()
        self.share.grow(size)

    def _unpack(self, packed: bytes) -> bytes:
        try:
            with pa.CompressedInputStream(pa.BufferReader(packed), self._encoding) as stream:
                # Not `read`, which never gives its 16 MiB back when what it reads turns out to be damaged.
                body: bytes = stream.read_buffer(self._limits.body_bytes + 1).to_pybytes()
        except (OSError, pa.ArrowException) as error:
            raise BadBodyError(
                f"the body is not {self._encoding}",
                detail=str(error),
                hint="leave out Content-Encoding, or send the packed data whole",
            ) from None
        if len(body) > self._limits.body_bytes:
            raise self._too_large()
        return body

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"the body is larger than {self._limits.body_bytes} bytes",
            hint="send fewer events in one request; the limit counts what is unpacked",
        )


@lru_cache(256)
def form_of(content_type: str) -> Form:
    """What a body of this content type holds. Raises `UnsupportedContentError`."""
    kind, _, parameters = content_type.partition(";")
    form = _FORMS.get(kind.strip().lower())
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    if form is None or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedContentError(
            f"'{content_type[:80]}' is not a content type that streams take",
            hint="send -H 'Content-Type: application/json' (an object or an array, UTF-8), application/x-ndjson, "
            "text/csv, application/vnd.apache.arrow.stream or application/cloudevents+json",
        )
    return form


def _encoding(text: str) -> str | None:
    if not text:
        return None
    encoding = text.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in _ENCODINGS:
        raise UnsupportedContentError(
            f"'{text[:80]}' is not a content encoding that streams take", hint="use one of gzip and zstd, or none"
        )
    return encoding


# Bodies that come too slowly

LOOK_S = 1.0
FIRST_S = 30.0
"""A slow start is no crime: the rate is asked for after this long."""


@dataclass(slots=True)
class _Growth:
    began_s: float
    bytes: int
    grew_s: float


class SlowBodies:
    """Gives up bodies that come too slowly, so that a thousand trickling senders hold neither memory nor connections.

    A body must grow within a time, and bring a number of bytes per second, reckoned over at least `FIRST_S`. One look a
    second is for all of them: a body that is there when its request begins, as nearly all are, is never looked at.
    Lives on the edge's loop.
    """

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._bodies: dict[StreamReader, _Growth] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._bodies)

    @contextmanager
    def watching(self, content: StreamReader) -> Iterator[None]:
        """While a body is read. Reading raises `SlowBodyError` when it is given up."""
        now_s = self._clock.monotonic()
        self._bodies[content] = _Growth(now_s, content.total_bytes, now_s)
        try:
            yield
        finally:
            self._bodies.pop(content, None)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_looking(), name="slow bodies")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Give up those that are too slow."""
        now_s = self._clock.monotonic()
        for content, growth in list(self._bodies.items()):
            if content.total_bytes > growth.bytes:
                growth.bytes, growth.grew_s = content.total_bytes, now_s
            why = self._too_slow(growth, now_s)
            if why is not None:
                self._bodies.pop(content, None)
                content.set_exception(
                    SlowBodyError("the body comes too slowly", detail=why, hint="send it again, or in smaller parts")
                )

    def _too_slow(self, growth: _Growth, now_s: float) -> str | None:
        if now_s - growth.grew_s > self._limits.body_pause_s:
            return f"nothing came for {self._limits.body_pause_s:g} s, after {growth.bytes} bytes"
        passed = now_s - growth.began_s
        if passed > FIRST_S and growth.bytes < passed * self._limits.body_bytes_s:
            return f"{growth.bytes} bytes in {passed:.0f} s; at least {self._limits.body_bytes_s} per second are needed"
        return None
