"""Reads what a request asks for in its query and headers: the level of the ack, how long to wait, and the producer."""

from __future__ import annotations

from typing import Literal, cast

from aiohttp import web

from penstock.errors import BadRequestError
from penstock.log.log import Producer

AckLevel = Literal["none", "logged", "applied"]
APPLIED_WAIT_S = 5.0
"""How long `ack=applied` waits unless the request says otherwise."""
_PRODUCER = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
_LONGEST_ID = 200
_LARGEST = 2**53


def ack_level(request: web.Request) -> AckLevel:
    """`?ack=`, `logged` unless given."""
    level = request.query.get("ack", "logged") if request.query_string else "logged"
    if level == "replicated":
        raise BadRequestError(
            "this log does not replicate", detail="ack=replicated", hint="use ack=logged, or run the app on Kafka"
        )
    if level not in ("none", "logged", "applied"):
        raise BadRequestError(f"ack='{level[:40]}' is not a level", hint="use none, logged or applied")
    return cast(AckLevel, level)


def wait_s(request: web.Request, default_s: float, most_s: float) -> float:
    """`?wait=` in seconds, within the server's own limit."""
    text = request.query.get("wait") if request.query_string else None
    if text is None:
        return default_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= most_s:
        raise BadRequestError(f"wait='{text[:40]}' is not a time to wait", hint=f"use seconds from 0 to {most_s:g}")
    return seconds


def producer_of(request: web.Request) -> Producer | None:
    """The producer's three headers; all of them or none."""
    headers = request.headers
    if "Producer-Id" not in headers and "Producer-Epoch" not in headers and "Producer-Seq" not in headers:
        return None
    missing = [name for name in _PRODUCER if name not in headers]
    if missing:
        raise BadRequestError(
            f"the header {' and '.join(missing)} is missing",
            hint=f"send {', '.join(_PRODUCER)} together, or none of them",
        )
    id = headers["Producer-Id"]
    if not id or len(id) > _LONGEST_ID or not id.isprintable():
        raise BadRequestError("Producer-Id is not a name", hint=f"use 1 to {_LONGEST_ID} printable characters")
    return Producer(id, _number(request, "Producer-Epoch"), _number(request, "Producer-Seq"))


def _number(request: web.Request, name: str) -> int:
    text = request.headers[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= _LARGEST):
        raise BadRequestError(f"{name} '{text[:40]}' is not a number", hint=f"use an integer from 0 to {_LARGEST}")
    return int(text)
