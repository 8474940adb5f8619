"""Which web pages may ask from a browser: their own server's, and those on the allow-list of `--cors`.

1. Nothing is allowed by default. An allowed origin gets its name back, may send every header, and sees the headers of
   the contract; a browser keeps the answer from the pages of all others.
2. Where no credential is needed, a page's origin is all that tells a visitor's browser from its owner: then a write or
   a WebSocket from a foreign page is refused, and so is a `Host` that is not this machine's (DNS rebinding).
3. A WebSocket from a foreign page is refused with a credential too: browsers do not ask before they open one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.errors import BadRequestError, OriginError

if TYPE_CHECKING:  # commands that ask nobody start without it
    from aiohttp import web

ANY = "*"
_EXPOSED = "Penstock-Ack, ETag, Producer-Expected-Seq, Retry-After"
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_KEEP_S = "600"
_HEADER_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+(?: *, *[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class WebOrigins:
    """The allow-list, and what a browser is told of it."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """Raises `BadRequestError` for what is no origin."""
        self._allowed = frozenset(_origin(text) for text in allowed)

    def allows(self, origin: str) -> bool:
        return ANY in self._allowed or origin.lower() in self._allowed

    @property
    def varies(self) -> bool:
        """Whether replies depend on who asks, and must say so."""
        return bool(self._allowed)

    @staticmethod
    def is_here(host: str) -> bool:
        """Whether a `Host` header names this machine: where no key is needed, any other is refused."""
        return _is_here(host)

    def preflight(self, request: web.BaseRequest) -> web.Response | None:
        """The answer to a browser that asks whether it may ask; None when this is no such question."""
        origin = request.headers.get("Origin")
        if request.method != "OPTIONS" or origin is None or "Access-Control-Request-Method" not in request.headers:
            return None
        if not self.allows(origin):
            raise _foreign(origin)
        from aiohttp import web

        wanted = request.headers.get("Access-Control-Request-Headers", "").strip()
        headers = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": _KEEP_S}
        if _HEADER_NAMES.fullmatch(wanted):
            headers["Access-Control-Allow-Headers"] = wanted
        return web.Response(status=204, headers=headers)

    def mark(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Tell the browser whether its page may see this reply."""
        if not self.varies:
            return
        varies = response.headers.get("Vary")
        response.headers["Vary"] = f"{varies}, Origin" if varies else "Origin"
        origin = request.headers.get("Origin")
        if origin is not None and self.allows(origin):
            response.headers["Access-Control-Allow-Origin"] = ANY if ANY in self._allowed else origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED

    def check(self, request: web.BaseRequest, *, anonymous: bool, writes: bool = False) -> None:
        """Raises `OriginError` for a request that a foreign page must not make. `writes`: whatever its method."""
        headers = request.headers
        if anonymous and not self.is_here(headers.get("Host", "")):
            raise OriginError(
                f"this server has no key and is not called '{_printable(headers.get('Host', ''))}'",
                hint="use 127.0.0.1 or localhost, or create a key: penstock keys create APP --scope read:*",
            )
        writes = writes or request.method not in _SAFE
        origin = headers.get("Origin")
        if origin is None and writes:
            origin = _referring(headers)  # a browser sends no Origin for an image
        if origin is None or _same(origin, headers.get("Host", "")) or self.allows(origin):
            return
        if headers.get("Upgrade", "").lower() == "websocket" or (anonymous and writes):
            raise _foreign(origin)


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if text == ANY or (parts.scheme and parts.netloc and text == f"{parts.scheme}://{parts.netloc}"):
        return text.lower()
    raise BadRequestError(f"'{text}' is not an origin", hint="write --cors https://shop.example, without a path")


def _foreign(origin: str) -> OriginError:
    return OriginError(
        f"pages of '{_printable(origin)}' are not allowed to do this",
        hint="start the server with --cors and this origin, if its pages are yours",
    )


def _printable(text: str) -> str:
    """A header may hold any bytes; a reply may not."""
    return text[:80].encode("ascii", "replace").decode()


def _referring(headers: Mapping[str, str]) -> str | None:
    """The origin of the page that a browser says it comes from; `null` when the page lets it say nothing; None when no
    page of another origin is behind the request, as far as its headers tell."""
    scheme, _, rest = headers.get("Referer", "").partition("://")
    if rest:
        return f"{scheme}://{rest.partition('/')[0]}"
    return "null" if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") else None


def _same(origin: str, host: str) -> bool:
    """Whether a page comes from this very server, as the browser itself names it."""
    return origin.lower().partition("://")[2] == host.lower() != ""


@lru_cache(256)
def _is_here(host: str) -> bool:
    """Whether a `Host` header, which may have a port, names this machine; none at all is HTTP/1.0."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return not host or is_loopback_name(name)


def is_loopback_name(name: str) -> bool:
    """Whether a name can only mean this machine, without asking anybody.

    >>> is_loopback_name("127.0.0.1"), is_loopback_name("localhost"), is_loopback_name("0.0.0.0")
    (True, True, False)
    """
    if name.lower().rstrip(".") == "localhost" or name.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.split("%")[0]).is_loopback
    except ValueError:
        return False
