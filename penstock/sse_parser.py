"""Parses a stream of Server-Sent Events as the WHATWG standard says, piece by piece and within a bound.

A byte order mark at the beginning is dropped; a line ends with CR, LF or both; several `data` lines become one text
with line feeds between; an `id` with a NUL is ignored; an id stays until another comes, and counts also where no
event goes with it; an event that the end of the stream cuts off is none. One thing is left to the stream's judge:
text that is not UTF-8 is refused there, not mended here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event; `id` is the last one that was seen with it or before it."""

    data: bytes
    type: str
    id: str


class SseParser:
    """Of one connection, which begins with the last id of the one before."""

    def __init__(self, most_bytes: int, last_id: str = "") -> None:
        self._most = most_bytes
        self.last_id = last_id
        """What a reconnect sends as `Last-Event-ID`: changes when a blank line ends a block."""
        self.retry_ms: int | None = None
        self._id = last_id
        self._line = bytearray()
        self._data = bytearray()
        self._type = ""
        self._began = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that end in this piece."""
        if self._after_cr and chunk:
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._after_cr = False
        events: list[ServerSentEvent] = []
        at = 0
        for end in _END.finditer(chunk):
            self._keep(chunk[at : end.start()])
            at = end.end()
            if (event := self._line_ended()) is not None:
                events.append(event)
        self._keep(chunk[at:])
        self._after_cr = chunk[-1:] == b"\r"
        return events

    def _keep(self, part: bytes) -> None:
        """No more of a line than an event may have, and the name of its field."""
        self._line += part[: max(0, self._most + 16 - len(self._line))]

    def _line_ended(self) -> ServerSentEvent | None:
        line = bytes(self._line)
        self._line.clear()
        if not self._began:
            self._began, line = True, line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name:
            self._field(name, value.removeprefix(b" "))
        return None

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            room = max(0, self._most + 2 - len(self._data))
            self._data += (value + b"\n")[:room]
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value[:9])

    def _dispatch(self) -> ServerSentEvent | None:
        self.last_id = self._id
        data, type_ = bytes(self._data), self._type or "message"
        self._data.clear()
        self._type = ""
        return ServerSentEvent(data.removesuffix(b"\n"), type_, self.last_id) if data else None
