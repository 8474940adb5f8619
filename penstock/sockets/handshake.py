"""Turns a GET into a WebSocket: what RFC 6455 asks of the request, and how compression is agreed on (RFC 7692)."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web

from penstock.errors import BadRequestError, UpgradeError

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DEFLATE = "permessage-deflate"
_TAKEOVER = frozenset({"server_no_context_takeover", "client_no_context_takeover"})
VERSION = {"Sec-WebSocket-Version": "13", "Upgrade": "websocket", "Connection": "Upgrade"}
"""What a reply to somebody who does not speak it carries."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """What both sides have agreed on, and the headers that say so."""

    headers: Mapping[str, str]
    deflate: bool


def agree(request: web.BaseRequest, protocol: str) -> Handshake:
    """Raises `UpgradeError` for what is no handshake of version 13, `BadRequestError` for a broken one."""
    headers = request.headers
    upgrades = "upgrade" in _tokens(headers.getall("Connection", ())) and request.version >= (1, 1)
    if not upgrades or "websocket" not in _tokens(headers.getall("Upgrade", ())):
        raise UpgradeError("this is a WebSocket", hint="connect with a WebSocket client: ws://... or wss://...")
    if headers.get("Sec-WebSocket-Version") != "13":
        raise UpgradeError("only version 13 of the WebSocket protocol is spoken here", hint="use a newer client")
    answer = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": _accept(headers)}
    if protocol in _listed(headers.getall("Sec-WebSocket-Protocol", ())):
        answer["Sec-WebSocket-Protocol"] = protocol
    deflate = _deflate(headers.getall("Sec-WebSocket-Extensions", ()))
    if deflate is not None:
        answer["Sec-WebSocket-Extensions"] = deflate
    return Handshake(answer, deflate is not None)


def _accept(headers: Mapping[str, str]) -> str:
    key = headers.get("Sec-WebSocket-Key", "")
    try:
        whole = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        whole = False
    if not whole:
        raise BadRequestError("the header Sec-WebSocket-Key is not 16 bytes in base64", hint="use a WebSocket client")
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def _deflate(headers: Iterable[str]) -> str | None:
    """The answer to the first offer that can be taken; None when there is none.

    Neither side keeps a window between messages. An offer that wants a smaller window of us is declined: everybody gets
    the same frame.
    """
    for offer in _listed(headers):
        name, *parts = [part.strip() for part in offer.split(";")]
        options = [_option(part) for part in parts]
        names = [key for key, _ in options]
        if name != _DEFLATE or len(set(names)) < len(names) or not all(_is_option(*option) for option in options):
            continue
        window = "; server_max_window_bits=15" if "server_max_window_bits" in names else ""
        return f"{_DEFLATE}; server_no_context_takeover; client_no_context_takeover{window}"
    return None


def _option(text: str) -> tuple[str, str | None]:
    """Its name, and its value where there is one: an equals sign with nothing behind it is a value, and a bad one."""
    name, equals, value = (part.strip() for part in text.partition("="))
    quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return name, (value[1:-1] if quoted else value) if equals else None


def _is_option(name: str, value: str | None) -> bool:
    if name in _TAKEOVER:
        return value is None
    if name == "server_max_window_bits":
        return value == "15"
    return name == "client_max_window_bits" and value in (None, *map(str, range(8, 16)))


def _listed(headers: Iterable[str]) -> list[str]:
    return [item.strip() for header in headers for item in header.split(",")]


def _tokens(headers: Iterable[str]) -> list[str]:
    return [item.lower() for item in _listed(headers)]
