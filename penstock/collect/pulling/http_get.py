"""Asks an HTTP source once: follows redirects, keeps credentials from strangers, tells when to come back."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from aiohttp import AddrInfoType, ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector
from yarl import URL

from penstock.collect.pulling.credentials import Credentials, trusted
from penstock.collect.pulling.pull_source import NotNow
from penstock.pull_origin import Origin

CONNECT_S = 10.0
REPLY_S = 60.0
"""From the request to the head of the reply; a long poll of ours asks for less."""
BODY_S = 300.0
"""A reply that is read whole."""
ERROR_BYTES = 64 * 1024
"""The body of a refusal, which says why."""
MOST_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""A cut cable is noticed within a minute, also where neither side has anything to say."""


def kept_alive(address: AddrInfoType) -> socket.socket:
    """A socket on which the kernel asks a silent peer whether it is still there."""
    peer = socket.socket(*address[:3])
    peer.setblocking(False)
    keep_alive(peer)
    return peer


def keep_alive(peer: Any) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@asynccontextmanager
async def session(origin: Origin) -> AsyncIterator[ClientSession]:
    """For one connection of a pull; no limit of time on a reply that never ends."""
    connector = TCPConnector(socket_factory=kept_alive, ssl=await trusted(origin))
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_S)
    async with ClientSession(timeout=timeout, connector=connector) as opened:
        yield opened


class _Error(msgspec.Struct):
    code: str


class _Refusal(msgspec.Struct):
    error: _Error


class HttpGet:
    """GET of one pull's address."""

    def __init__(self, origin: Origin, accept: str) -> None:
        self.url, self._origin = URL(origin.plain_url), origin
        self._credentials = Credentials(origin)
        self._accept = accept

    def session(self) -> AbstractAsyncContextManager[ClientSession]:
        return session(self._origin)

    @asynccontextmanager
    async def __call__(
        self,
        session: ClientSession,
        parameters: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        path: str | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """The reply, with a status of 200, 204 or 304; `NotNow` for any other."""
        url = (self.url if path is None else self.url.with_path(path)).update_query(parameters or {})
        common = {"Accept": self._accept, "Cache-Control": "no-cache", **(headers or {})}
        secret = self._credentials.headers()
        for _ in range(MOST_REDIRECTS + 1):
            own = url.origin() == self.url.origin()
            sent = {**common, **(secret if own else {})}
            async with await _head(session, url, sent) as reply:
                where = reply.headers.get("Location")
                if reply.status in _REDIRECTS and where:
                    url = _redirected(url, where)
                    continue
                if reply.status not in (200, 204, 304):
                    why = f"the source answered {reply.status} {reply.reason}"
                    raise NotNow(why, retry_after(reply), reply.status, await _error_code(reply))
                yield reply
                return
        raise NotNow(f"the source redirected more than {MOST_REDIRECTS} times")


def _redirected(url: URL, where: str) -> URL:
    to = url.join(URL(where))
    if url.scheme == "https" and to.scheme != "https":
        raise NotNow("the source redirects to an address without TLS, which is not followed", 60.0)
    return to


async def _head(session: ClientSession, url: URL, headers: Mapping[str, str]) -> ClientResponse:
    try:
        async with asyncio.timeout(REPLY_S):
            return await session.get(url, headers=headers, allow_redirects=False)
    except TimeoutError:
        raise NotNow(f"the source did not answer within {REPLY_S:g} s") from None


async def _error_code(reply: ClientResponse) -> str | None:
    """What the body of a refusal names as `error.code`, as our own do."""
    if reply.content_type != "application/json":
        return None
    try:
        return msgspec.json.decode(await bounded(reply, ERROR_BYTES), type=_Refusal).error.code
    except (NotNow, msgspec.MsgspecError, ClientError):
        return None


def retry_after(reply: ClientResponse) -> float | None:
    """What the reply's `Retry-After` says, in seconds."""
    text = reply.headers.get("Retry-After", "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - dt.datetime.now(dt.UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


async def bounded(reply: ClientResponse, most_bytes: int, first: bytes = b"") -> bytes:
    """The whole body, unpacked. A longer one is refused, not read."""
    body = bytearray(first)
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in reply.content.iter_any():
                body += chunk
                if len(body) > most_bytes:
                    raise NotNow(f"the source's reply has more than {most_bytes} bytes", 60.0)
    except TimeoutError:
        raise NotNow(f"the source's reply did not end within {BODY_S:g} s") from None
    return bytes(body)
