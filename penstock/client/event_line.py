"""Turns what a program sends (a dict, an instance of an event class, JSON as bytes) into one line of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import BadRequestError, TooLargeError

Sendable = Mapping[str, Any] | msgspec.Struct | bytes
EVENT_BYTES = 1024**2
"""What a server takes as one event at most."""
_as_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def event_line(event: Sendable) -> bytes:
    """The event as JSON without a line break. Raises what is wrong with it, before anything is kept.

    >>> event_line({"order_id": 1})
    b'{"order_id":1}'
    """
    line = _checked(event) if isinstance(event, bytes) else _encoded(event)
    if len(line) > EVENT_BYTES:
        raise TooLargeError(f"an event of {len(line)} bytes", hint=f"an event has at most {EVENT_BYTES} bytes of JSON")
    return line


def _encoded(event: Mapping[str, Any] | msgspec.Struct) -> bytes:
    if not isinstance(event, Mapping | msgspec.Struct):
        raise _no_event(f"found {type(event).__name__}")
    try:
        return msgspec.json.encode(event if isinstance(event, msgspec.Struct) else dict(event))
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_event(str(error)) from None


def _checked(raw: bytes) -> bytes:
    try:
        _as_object.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_event(str(error)) from None
    return raw if b"\n" not in raw and b"\r" not in raw else msgspec.json.encode(msgspec.json.decode(raw))


def _no_event(detail: str) -> BadRequestError:
    return BadRequestError(
        "this cannot be sent as an event", detail=detail, hint="send a dict, an event class or a JSON object as bytes"
    )
