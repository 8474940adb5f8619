"""The server named by `--url`, as the command line sees it: requests and long polls over HTTP.

Every failure is a `PenstockError`: what the server said, or that nobody answers and how to start one.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from penstock.errors import BadRequestError, CertificateError, PenstockError, UnreachableError, revived

DEFAULT_URL = "http://127.0.0.1:8080"
ANSWER_S = 30.0

Params = Mapping[str, str | int | float | None]


@dataclass(frozen=True)
class ServerReply:
    """What came back: also errors, for callers that know what to do with them."""

    status: int
    headers: Message
    body: dict[str, Any]

    def error(self) -> PenstockError:
        """The error that the body holds."""
        body = self.body.get("error")
        if isinstance(body, dict):
            return revived(body)
        return PenstockError(f"the server answered {self.status} without saying why")


class Remote:
    """One server. Not for several threads: it keeps one connection open."""

    def __init__(self, url: str, key: str | None = None, ca: Path | None = None) -> None:
        """`key` is shown with every request; `ca` is trusted instead of the system's authorities."""
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequestError(f"'{url}' is not an address", hint=f"write --url {DEFAULT_URL}")
        self._connection = (
            http.client.HTTPSConnection(parts.hostname, parts.port, timeout=ANSWER_S, context=_trusting(ca))
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, parts.port, timeout=ANSWER_S)
        )
        self._prefix = parts.path
        self._shown = {"Authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str, params: Params | None = None) -> dict[str, Any]:
        """The body of a 200; anything else is raised."""
        reply = self.request("GET", _target(path, params))
        if reply.status != 200:
            raise reply.error()
        return reply.body

    def request(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ServerReply:
        """One exchange. Raises `UnreachableError` alone; what it asked may or may not have happened then."""
        try:
            self._connection.request(method, self._prefix + target, body, {**self._shown, **(headers or {})})
            reply = self._connection.getresponse()
            return ServerReply(reply.status, reply.headers, _json(reply.read()))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._unreachable(error) from None

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _unreachable(self, error: Exception) -> PenstockError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return CertificateError(
                f"the server at {self.url} has a certificate that is not trusted",
                detail=error.verify_message,
                hint="for a self-made one pass --ca <data folder>/tls/cert.pem",
            )
        return UnreachableError(
            f"no server answers at {self.url}",
            detail=str(error) or type(error).__name__,
            hint="start one with `penstock run app.py`, or name another with --url",
        )


def _trusting(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(
            f"'{ca}' is not a certificate", detail=error.strerror, hint="pass a PEM file with --ca"
        ) from None


def path_of(*parts: str) -> str:
    """A path from names that may hold anything.

    >>> path_of("views", "a/b")
    '/views/a%2Fb'
    """
    return "".join("/" + quote(part, safe="") for part in parts)


def _target(path: str, params: Params | None) -> str:
    given = {key: value for key, value in (params or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
