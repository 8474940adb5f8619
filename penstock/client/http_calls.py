"""The server as a reader sees it: requests with its key, over connections that are kept, and failures told apart.

This is the one part of the client, with the transports beside it, that needs aiohttp; it is imported when a reader
connects, so that a program that only sends never pays for it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from penstock.client.verdict import TransientFailure, reply_failure
from penstock.errors import BadRequestError, CertificateError, UnreachableError

Key = str | Callable[[], str] | None

_CLOSE_S = 1.0
"""How long a socket that is being closed may take to say goodbye."""


class HttpCalls:
    """One server. Belongs to one loop."""

    def __init__(self, url: str, key: Key, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequestError(f"'{url}' is not the address of a server", hint="write it like http://host:8080")
        self.url = url.rstrip("/")
        self.shown: str | None = None
        """The key that was last used."""
        self._key, self._tls, self._timeout_s = key, tls, timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(
        self, path: str, parameters: Mapping[str, str] | None = None, wait_s: float = 0.0
    ) -> Mapping[str, Any] | None:
        """The body of a 200, or None for a 204; `wait_s` is how long the server may take before its first word.

        Raises `TransientFailure`, or what the server says.
        """
        limit = aiohttp.ClientTimeout(sock_connect=self._timeout_s, sock_read=self._timeout_s + wait_s)
        async with (
            self._troubles(path),
            self._open().get(self.url + path, params=parameters or {}, headers=self._headers(), timeout=limit) as reply,
        ):
            body = await reply.read()
            if reply.status == 204:
                return None
            if reply.status != 200:
                raise reply_failure(reply.status, reply.headers, body, f"{self.url}{path}")
            return _decoded(body, f"{self.url}{path}")

    async def send(self, method: str, path: str, body: bytes | None, once: str) -> Mapping[str, Any]:
        """The body of a 200 to a request that changes something; `once` is its Idempotency-Key. Raises as `get`."""
        limit = aiohttp.ClientTimeout(sock_connect=self._timeout_s, sock_read=self._timeout_s)
        headers = self._headers() | {"Content-Type": "application/json", "Idempotency-Key": once}
        url = URL(self.url + path, encoded=True)
        async with (
            self._troubles(path),
            self._open().request(method, url, data=body, headers=headers, timeout=limit) as reply,
        ):
            content = await reply.read()
            if reply.status != 200:
                raise reply_failure(reply.status, reply.headers, content, f"{self.url}{path}")
            return _decoded(content, f"{self.url}{path}")

    @asynccontextmanager
    async def events(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """The bytes of an event stream; silence for so long is a broken connection."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=silence_s)
        headers = self._headers() | {"Accept": "text/event-stream"}
        async with (
            self._troubles(path),
            self._open().get(self.url + path, params=parameters, headers=headers, timeout=limit) as reply,
        ):
            if reply.status != 200:
                raise reply_failure(reply.status, reply.headers, await reply.read(), f"{self.url}{path}")
            yield reply.content

    @asynccontextmanager
    async def socket(self, path: str, compress: bool) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket whose pings and closes are the caller's to answer."""
        async with self._troubles(path):
            try:
                async with asyncio.timeout(self._timeout_s):
                    socket = await self._open().ws_connect(
                        self.url + path,
                        headers=self._headers(),
                        max_msg_size=0,
                        autoping=False,
                        compress=15 if compress else 0,
                        timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                    )
            except aiohttp.WSServerHandshakeError as error:
                raise await self._why(path, error) from None
            try:
                yield socket
            finally:
                await socket.close()

    async def _why(self, path: str, error: aiohttp.WSServerHandshakeError) -> Exception:
        """A refused handshake comes without its body; a plain request to the same path is refused with it."""
        refusal = reply_failure(error.status, dict(error.headers or {}), b"", f"{self.url}{path}")
        if isinstance(refusal, TransientFailure):
            return refusal
        async with self._open().get(self.url + path, headers=self._headers()) as reply:
            if reply.status == error.status:
                return reply_failure(reply.status, reply.headers, await reply.read(), f"{self.url}{path}")
        return refusal

    def is_new_key(self) -> bool:
        """Whether there is another key by now than the one that was shown."""
        return callable(self._key) and self._key() != self.shown

    def _headers(self) -> dict[str, str]:
        self.shown = self._key() if callable(self._key) else self._key
        return {} if self.shown is None else {"Authorization": f"Bearer {self.shown}"}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True, limit=0)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    @asynccontextmanager
    async def _troubles(self, path: str) -> AsyncIterator[None]:
        """Whatever breaks on the way is something that passes, but for a certificate that is not trusted."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise CertificateError(
                f"the server at {self.url} has a certificate that is not trusted",
                detail=str(error.certificate_error),
                hint="for a self-made one pass ca=<data folder>/tls/cert.pem",
            ) from None
        except aiohttp.InvalidURL:
            raise BadRequestError(f"'{self.url}' is not the address of a server") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = UnreachableError(
                f"no server answers at {self.url}",
                detail=f"{type(error).__name__}: {error}".removesuffix(": "),
                hint="start one with `penstock run app.py`, or see that the address is right",
            )
            raise TransientFailure(why) from error


def _decoded(body: bytes, where: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise UnreachableError(
            f"the answer of {where} does not come from a Penstock server",
            hint="see that the address is right and that nothing stands between",
        ) from None
