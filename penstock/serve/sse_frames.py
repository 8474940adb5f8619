"""Writes Server-Sent Events as bytes of a chunked reply."""

from __future__ import annotations


def sse_frame(event: str | None, data: bytes, position: str | None) -> bytes:
    """A Server-Sent Event; without an event an `id:` block that only moves the position.

    An empty position is written too: the client then has none, and comes back without. None leaves it what it has.

    >>> sse_frame("reset", b"{}", "")
    b'1c\\r\\nid: \\nevent: reset\\ndata: {}\\n\\n\\r\\n'
    """
    lines = b"id: %b\n" % position.encode() if position is not None else b""
    if event is not None:
        lines += b"event: %b\ndata: %b\n" % (event.encode(), data)
    return chunk(lines + b"\n")


def chunk(data: bytes) -> bytes:
    """HTTP/1.1 chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)
