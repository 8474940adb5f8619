"""Reads the head of a request where nothing about it is in doubt, and says nothing about any other.

Two parsers that see one request in different ways are how requests are smuggled. So this one knows no leniency: a head
is plain when its lines are of one shape, no name stands there twice, and nothing in it says that the message could be
framed, answered or ended in another way than by its `Content-Length`. Every other head is read by aiohttp alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST_BYTES = 4096
"""Half of what aiohttp takes as one line: no limit of its own can be met by a plain head."""
END = b"\r\n\r\n"
_METHODS = rb"GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS"
_LINE = rb"[A-Za-z0-9-]+: ?[!-~](?:[ -~]*[!-~])?\r\n"
_HEAD = re.compile(rb"(%s) (/[!-~]*) HTTP/1\.1\r\n((?:%s)+)\r\n" % (_METHODS, _LINE))
_LENGTH = re.compile("0|[1-9][0-9]{0,8}")
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
_DOUBTFUL = frozenset({"transfer-encoding", "te", "trailer", "upgrade", "expect", "proxy-connection", "keep-alive"})


@dataclass(frozen=True, slots=True)
class PlainHead:
    """A request without its body; names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    bytes: int
    length: int
    """Of the body."""


def plain_head(raw: bytes) -> PlainHead | None:
    """The head that `raw` is, with the empty line at its end; None when aiohttp must look at it.

    >>> head = plain_head(b"POST /streams/a HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 2\\r\\n\\r\\n")
    >>> head.target, head.length
    ('/streams/a', 2)
    >>> plain_head(b"POST /streams/a HTTP/1.1\\r\\nHost: a\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n") is None
    True
    """
    match = _HEAD.fullmatch(raw) if len(raw) <= MOST_BYTES else None
    if match is None:
        return None
    lines = [line.partition(":") for line in match[3].decode("ascii").split("\r\n")[:-1]]
    headers = {name.lower(): value.removeprefix(" ") for name, _, value in lines}
    if len(headers) != len(lines) or not _is_settled(headers):
        return None
    length = int(headers.get("content-length", "0"))
    return PlainHead(match[1].decode("ascii"), match[2].decode("ascii"), headers, len(raw), length)


def _is_settled(headers: Mapping[str, str]) -> bool:
    """Whether the connection stays, and the message ends where its length says."""
    return (
        _HOST.fullmatch(headers.get("host", "")) is not None
        and _LENGTH.fullmatch(headers.get("content-length", "0")) is not None
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and _DOUBTFUL.isdisjoint(headers)
    )
