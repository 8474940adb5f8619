"""Posts one delivery and says what came of it, whatever the other side does: bounded in time, size and reach.

1. Any status of 2xx is a success once it has come; what follows it is not waited for. Everything else is a failure,
   a redirect too: it could lead anywhere.
2. The address is judged by `AddressRules` as the socket is made, wherever it comes from.
3. What an endpoint answers is never shown to anybody: it might come from where only this server can look.
"""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientOSError,
    ClientResponse,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
    TraceConfig,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from penstock.clock import Clock
from penstock.errors import CertificateError
from penstock.protocol import retry_after_s
from penstock.serve.webhooks.address_rules import AddressRefused, AddressRules

TIMEOUT_S = 15.0
"""From looking up the name to the status of the reply; the time that Standard Webhooks recommends at least."""
BODY_S = 1.0
BODY_BYTES = 64 * 1024
"""What is read of a reply's body at most, so that its connection can be used again."""
PROVISIONAL = 20
"""Replies of 1xx before the one that counts; each is work for the loop, however small."""
KEEP_S = 15.0
PIECES_BYTES = 512 * 1024

Failure = Literal["address", "dns", "connection", "tls", "timeout", "redirect", "status", "crowded"]


@dataclass(frozen=True, slots=True)
class PostOutcome:
    """What came of one attempt."""

    ms: float
    status: int | None = None
    failure: Failure | None = None
    detail: str = ""
    retry_after_s: float | None = None

    @property
    def taken(self) -> bool:
        return self.failure is None

    @property
    def gone(self) -> bool:
        return self.status == 410

    def text(self) -> str:
        return self.detail or f"status {self.status}"

    def body(self) -> dict[str, Any]:
        """As the webhook's owner sees it."""
        error = None if self.taken else self.text()
        return {"status": self.status, "failure": self.failure, "error": error, "ms": self.ms}


class EndlessAnswerError(ClientError):
    """Nothing but replies of 1xx came."""


class _Answer(ClientResponse):
    """A reply that is given up when it keeps announcing itself: aiohttp would read 1xx for as long as they come."""

    async def start(self, connection: Any) -> ClientResponse:
        protocol, heads = connection.protocol, 0
        read = protocol.read

        async def counted() -> Any:
            nonlocal heads
            heads += 1
            if heads > PROVISIONAL + 1:
                raise EndlessAnswerError
            return await read()

        protocol.read = counted
        try:
            return await super().start(connection)
        finally:
            del protocol.read


THREADS = 16
PATIENCE_S = 1.0
"""How long a new answer is waited for where there is an old one."""
MOST_HOSTS = 10_000

_Host = tuple[str, int, int]
"""Its name, the port and the family of addresses."""
_Addresses = list[tuple[int, int, str]]


class HostNames(AbstractResolver):
    """Looks up the hosts of webhooks; a name server that hangs holds up only the hosts that it is asked for.

    The system's own lookup cannot be ended, so it runs in threads that nobody else needs, one for a host at a time.
    When all of them hang, a host that was found before is reached where it was found last. Addresses are judged when
    the socket is made, so an old one is no way around the rules. Of one edge; lives on its loop until `shut`.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="webhook-dns")
        self._lookups: dict[_Host, asyncio.Future[_Addresses]] = {}
        self._last: dict[_Host, _Addresses] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=proto, flags=socket.AI_NUMERICHOST)
            for kind, proto, address in await self._addresses((host, port, family))
        ]

    async def close(self) -> None:
        """For one of the sessions that share it; `shut` is for all."""

    def shut(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _addresses(self, host: _Host) -> _Addresses:
        answer = asyncio.shield(self._lookup(host))
        last = self._last.get(host)
        try:
            async with asyncio.timeout(None if last is None else PATIENCE_S):
                return await answer
        except TimeoutError:
            assert last is not None
            return last

    def _lookup(self, host: _Host) -> asyncio.Future[_Addresses]:
        """The one that is under way, or a new one."""
        if (lookup := self._lookups.get(host)) is None:
            lookup = asyncio.get_running_loop().run_in_executor(self._threads, _look_up, *host)
            self._lookups[host] = lookup
            lookup.add_done_callback(lambda done: self._note(host, done))
        return lookup

    def _note(self, host: _Host, done: asyncio.Future[_Addresses]) -> None:
        self._lookups.pop(host, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._last.pop(host, None)
        self._last[host] = done.result()
        if len(self._last) > MOST_HOSTS:
            self._last.pop(next(iter(self._last)))


def _look_up(host: str, port: int, family: int) -> _Addresses:
    answers = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [(kind, proto, str(address[0])) for kind, _, proto, _, address in answers]


class Poster:
    """The way out of one edge; lives on its loop between `start` and `close`."""

    def __init__(
        self, rules: AddressRules, clock: Clock, *, ca: Path | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`ca` is a file of authorities to trust besides the system's; raises `CertificateError` if it is none."""
        self._rules, self._clock, self._timeout_s = rules, clock, timeout_s
        self._tls = _trusting(ca)
        self._names = HostNames()
        self._judged: ClientSession
        self._trusted: ClientSession

    async def start(self) -> None:
        self._judged = self._session(judged=True)
        self._trusted = self._session(judged=False)

    async def close(self) -> None:
        await self._judged.close()
        await self._trusted.close()
        self._names.shut()

    def _session(self, *, judged: bool) -> ClientSession:
        tracing = TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        connector = TCPConnector(
            limit=0,  # the lanes bound it
            ssl=self._tls,
            resolver=self._names,
            use_dns_cache=False,
            keepalive_timeout=KEEP_S,
            socket_factory=self._rules.connected if judged else None,
        )
        return ClientSession(
            connector=connector,
            response_class=_Answer,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            timeout=ClientTimeout(total=None),
            trace_configs=[tracing],
            headers={"User-Agent": f"penstock/{version('penstock')}", "Content-Type": "application/json"},
        )

    async def post(self, url: str, headers: dict[str, str], payload: bytes) -> PostOutcome:
        began = time.perf_counter()
        outcome = await self._outcome(url, headers, payload)
        ms = round((time.perf_counter() - began) * 1e3, 1)
        return replace(outcome, ms=ms)

    async def _outcome(self, url: str, headers: dict[str, str], payload: bytes) -> PostOutcome:
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._answer(url, headers, payload)
        except TimeoutError:
            return PostOutcome(0, failure="timeout", detail=f"no answer within {self._timeout_s:g} s")
        except (ClientError, OSError, ValueError) as error:
            return _failed(error)
        await _skim(reply)
        return _judged(reply.status, retry_after_s(reply.headers.get("Retry-After"), self._clock.now_us() / 1e6))

    async def _answer(self, url: str, headers: dict[str, str], payload: bytes) -> ClientResponse:
        """One request; another at once if its connection was an old one that the other side had just closed."""
        used = SimpleNamespace(again=False)
        try:
            return await self._ask(url, headers, payload, used)
        except (ServerDisconnectedError, ClientOSError):
            if not used.again:
                raise
            return await self._ask(url, headers, payload, SimpleNamespace(again=False))

    async def _ask(self, url: str, headers: dict[str, str], payload: bytes, used: SimpleNamespace) -> ClientResponse:
        address = URL(url)
        session = self._trusted if self._rules.trusts(address.host or "") else self._judged
        return await session.post(
            address, data=_body(payload), headers=headers, allow_redirects=False, trace_request_ctx=used
        )


def _trusting(ca: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(
            f"'{ca}' does not hold certificates to trust", detail=str(error), hint="name a PEM file with --webhook-ca"
        ) from None
    return context


def _body(payload: bytes) -> bytes | io.BytesIO:
    """A large one is written piece by piece, so that the loop goes on."""
    return payload if len(payload) <= PIECES_BYTES else io.BytesIO(payload)


async def _note_reuse(session: ClientSession, context: SimpleNamespace, params: Any) -> None:
    context.trace_request_ctx.again = True


async def _skim(reply: ClientResponse) -> None:
    """Read the rest if it is short; else the connection is closed, whatever is still on its way in either direction."""
    size = 0
    try:
        with suppress(TimeoutError, ClientError, OSError, ValueError):
            async with asyncio.timeout(BODY_S):
                async for chunk in reply.content.iter_any():
                    size += len(chunk)
                    if size > BODY_BYTES:
                        break
    finally:
        reply.close()  # behind the end of the body there is no connection left to close: it was given back


def _judged(status: int, retry_after: float | None) -> PostOutcome:
    if 200 <= status < 300:
        return PostOutcome(0, status)
    if 300 <= status < 400:
        return PostOutcome(0, status, "redirect", f"status {status}, and redirects are not followed", retry_after)
    return PostOutcome(0, status, "status", f"status {status}", retry_after)


def _failed(error: Exception) -> PostOutcome:
    if isinstance(_cause(error), AddressRefused):
        return PostOutcome(0, failure="address", detail=str(_cause(error)))
    if isinstance(error, ClientConnectorDNSError):
        return PostOutcome(0, failure="dns", detail="the name of the host cannot be looked up")
    if isinstance(error, ClientSSLError | ssl.SSLError):
        return PostOutcome(0, failure="tls", detail=f"TLS: {_cause(error)}"[:200])
    return PostOutcome(0, failure="connection", detail=f"the connection failed ({type(error).__name__})")


def _cause(error: Exception) -> Exception:
    cause: Any = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
    return cause or error
