"""Reads and writes the frames of RFC 6455 and RFC 7692 without any input or output, because a server must be strict.

aiohttp's reader takes frames without a mask, a reserved bit on control frames, close code 1006 and a new message inside
a fragmented one that began empty; and it writes to the connection past our queue. What is read here is judged whole:

1. Whatever the RFCs say a server must fail on is a `Fault` with the close code that they name.
2. A message is never larger than `most_bytes`, before and after inflating; not a byte more of it is kept or inflated.
3. Text is checked as UTF-8 as it comes, so that a bad one ends the connection before its last byte.
4. Both sides begin each message with an empty window (`no_context_takeover`): a compressed frame is made once for all
   subscribers, and an idle connection keeps no window.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FIN, _RSV1, _RSV2_3, _MASKED = 0x80, 0x40, 0x30, 0x80
_DATA, _CONTROL = frozenset({CONTINUATION, TEXT, BINARY}), frozenset({CLOSE, PING, PONG})
_CONTROL_BYTES = 125
_TAIL = b"\x00\x00\xff\xff"
"""What ends a flushed block of deflate; it is left out on the wire."""
_LEVEL = 1
"""Of zlib: JSON shrinks to a sixth at the fastest level, and to an eighth at five times the work."""
_LONG_BYTES = 1024
_MEMBERS = 16
"""Deflate streams in one message: more than one is odd, many are an attack."""

NORMAL, PROTOCOL_ERROR, BAD_DATA, TOO_BIG, INTERNAL, RESTARTING = 1000, 1002, 1007, 1009, 1011, 1012
GOING_AWAY, NOT_THIS = 1001, 1003
SILENT, TOO_SLOW, NOT_ANY_MORE = 4007, 4008, 4401


class Fault(Exception):
    """The client broke the protocol; `code` is what the connection is closed with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Frame(NamedTuple):
    """A control frame, or a whole message put together from its fragments."""

    opcode: int
    data: bytes


class FrameReader:
    """What a client sends, byte by byte or all at once."""

    def __init__(self, most_bytes: int, *, deflate: bool = False) -> None:
        self._most_bytes = most_bytes
        self._deflate = deflate
        self._buffer = bytearray()
        self._message: bytearray | None = None
        """Of the fragments so far; None between messages."""
        self._opcode = CONTINUATION
        self._compressed = False
        self._checked = 0
        """Of a frame that has begun: how much of its text is known to be good."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Whole messages and control frames, in order. Raises `Fault`, after which nothing more may be fed.

        A caller may stop in between: what it has not taken comes at the next call.
        """
        self._buffer += data
        return self._frames()

    def _frames(self) -> Iterator[Frame]:
        while (head := self._head()) is not None:
            first, start, length = head
            end = start + 4 + length
            if len(self._buffer) < end:
                self._check_begun(first, start)
                return
            payload = _unmasked(self._buffer[start + 4 : end], bytes(self._buffer[start : start + 4]))
            del self._buffer[:end]
            frame = self._taken(first, payload)
            if frame is not None:
                yield frame

    # A frame's head

    def _head(self) -> tuple[int, int, int] | None:
        """The first byte, where the mask begins, and the payload's length; None when more must come first."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, opcode = buffer[0], buffer[0] & 0x0F
        self._check(first, opcode)
        if not buffer[1] & _MASKED:
            raise Fault(PROTOCOL_ERROR, "a frame of a client must be masked")
        start, length = 2, buffer[1] & 0x7F
        if opcode in _CONTROL and length > _CONTROL_BYTES:
            raise Fault(PROTOCOL_ERROR, "a control frame has at most 125 bytes")
        if length >= 126:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                return None
            least = 126 if length == 126 else 65536
            length = int.from_bytes(buffer[2:start], "big")
            if not least <= length < 2**63:
                raise Fault(PROTOCOL_ERROR, "the length is not written in the shortest way")
        if opcode in _DATA and length + len(self._message or b"") > self._most_bytes:
            raise Fault(TOO_BIG, f"a message has at most {self._most_bytes} bytes")
        return (first, start, length) if len(buffer) >= start + 4 else None

    def _check(self, first: int, opcode: int) -> None:
        if first & _RSV2_3 or (first & _RSV1 and not (self._deflate and opcode in (TEXT, BINARY))):
            raise Fault(PROTOCOL_ERROR, "a reserved bit is set")
        if opcode in _CONTROL:
            if not first & _FIN:
                raise Fault(PROTOCOL_ERROR, "a control frame cannot be fragmented")
        elif opcode not in _DATA:
            raise Fault(PROTOCOL_ERROR, f"there is no opcode {opcode}")
        elif (opcode == CONTINUATION) != (self._message is not None):
            raise Fault(PROTOCOL_ERROR, "a message must be complete before the next begins")

    # A frame's payload

    def _taken(self, first: int, payload: bytes) -> Frame | None:
        opcode = first & 0x0F
        if opcode in _CONTROL:
            return Frame(opcode, payload)
        if self._message is None:
            if first & _FIN and not first & _RSV1 and not self._checked:
                return self._single(opcode, payload)
            self._message, self._opcode, self._compressed = bytearray(), opcode, bool(first & _RSV1)
        self._message += payload
        last, checked, self._checked = bool(first & _FIN), self._checked, 0
        if not self._compressed:
            self._check_text(payload[checked:] if checked else payload, last)
        return self._whole() if last else None

    def _single(self, opcode: int, payload: bytes) -> Frame:
        """A message in one frame that came at once, as nearly all do: nothing is put together or remembered."""
        if opcode == TEXT:
            try:
                payload.decode()
            except UnicodeDecodeError:
                raise _not_utf8() from None
        return Frame(opcode, payload)

    def _whole(self) -> Frame:
        data, opcode, compressed = bytes(self._message or b""), self._opcode, self._compressed
        self._message = None
        if compressed:
            data = inflated(data, self._most_bytes)
            self._check_text(data, last=True)
        return Frame(opcode, data)

    def _check_begun(self, first: int, start: int) -> None:
        """The text of a frame of which more is to come, as far as it is there."""
        opening = first & 0x0F == TEXT
        goes_on = first & 0x0F == CONTINUATION and self._opcode == TEXT and not self._compressed
        if first & _RSV1 or not (opening or goes_on):
            return
        self._opcode = TEXT
        at, turn = start + 4 + self._checked, self._checked % 4
        mask = bytes(self._buffer[start + turn : start + 4] + self._buffer[start : start + turn])
        part = self._buffer[at:]
        self._checked += len(part)
        self._check_text(_unmasked(part, mask), last=False)

    def _check_text(self, part: bytes, last: bool) -> None:
        if self._opcode == TEXT:
            try:
                self._utf8.decode(part, last)
            except UnicodeDecodeError:
                raise _not_utf8() from None


def _not_utf8() -> Fault:
    return Fault(BAD_DATA, "the text is not UTF-8")


def _unmasked(data: bytearray, mask: bytes) -> bytes:
    """As one large integer, which is fastest for a few bytes; in place where they are many (4 MB: 3 ms, not 20)."""
    size = len(data)
    if size < _LONG_BYTES:
        pattern = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return (int.from_bytes(data, "big") ^ pattern).to_bytes(size, "big")
    words = np.frombuffer(data, np.uint32, size // 4)
    words ^= np.frombuffer(mask, np.uint32)
    for i in range(size - size % 4, size):
        data[i] ^= mask[i % 4]
    return bytes(data)


def close_answer(payload: bytes) -> int:
    """The code to answer a client's close with: its own. Raises `Fault` for one that nobody may send."""
    if not payload:
        return NORMAL
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise Fault(PROTOCOL_ERROR, "this close code is not for sending")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise Fault(BAD_DATA, "the reason is not UTF-8") from None
    return code


# Writing


def text_frame(data: bytes, more: bytes = b"") -> bytes:
    """A text frame of a server: no mask, not compressed."""
    return _header(_FIN | TEXT, len(data) + len(more)) + data + more


def deflated_frame(prefix: bytes, deflated: bytes) -> bytes:
    """A compressed text frame of `prefix`, as it is, and what `deflate` made of the rest.

    The prefix becomes a stored block, so that frames which differ in it alone share the work of compressing.
    """
    size = len(prefix)
    stored = b"\x00%b%b%b" % (size.to_bytes(2, "little"), (size ^ 0xFFFF).to_bytes(2, "little"), prefix)
    return _header(_FIN | _RSV1 | TEXT, len(stored) + len(deflated)) + stored + deflated


def deflate(data: bytes) -> bytes:
    """Raw deflate, flushed to a whole byte, as a message ends with it."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)


def inflated(data: bytes, most_bytes: int) -> bytes:
    """The reverse of `deflate`, for whatever a client made. Raises `Fault`."""
    data += _TAIL
    message = b""
    try:
        for _ in range(_MEMBERS):
            unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
            message += unpacker.decompress(data, most_bytes + 1 - len(message))
            if len(message) > most_bytes:
                raise Fault(TOO_BIG, f"a message has at most {most_bytes} bytes")
            if not unpacker.eof or not unpacker.unused_data:
                return message
            data = unpacker.unused_data
    except zlib.error:
        pass
    raise Fault(BAD_DATA, "the message cannot be inflated")


def close_frame(code: int, reason: str) -> bytes:
    """A reason is cut to what a control frame holds."""
    body = code.to_bytes(2, "big") + reason.encode()[: _CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return _header(_FIN | CLOSE, len(body)) + body


def ping_frame(data: bytes = b"") -> bytes:
    return _header(_FIN | PING, len(data)) + data


def pong_frame(data: bytes) -> bytes:
    return _header(_FIN | PONG, len(data)) + data


def _header(first: int, length: int) -> bytes:
    if length < 126:
        return bytes((first, length))
    if length < 65536:
        return bytes((first, 126)) + length.to_bytes(2, "big")
    return bytes((first, 127)) + length.to_bytes(8, "big")
