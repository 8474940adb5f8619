"""One HTTP connection to the door, kept open between requests and opened anew when it breaks."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from contextlib import suppress
from socket import SHUT_RDWR
from urllib.parse import quote, urlsplit

from penstock.client.verdict import ACK, EXPECTED, Reply
from penstock.errors import BadRequestError, UnreachableError

_HEADERS = (ACK, EXPECTED, "Retry-After", "Date", "Location")
_LARGEST_REPLY = 16 * 1024**2


class Connection:
    """Used by the thread that sends; `abort` by any."""

    def __init__(self, url: str, stream: str, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequestError(f"'{url}' is not the address of a server", hint="write it like http://host:8080")
        self._path = f"{parts.path.rstrip('/')}/streams/{quote(stream, safe='')}"
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._path}"
        if parts.scheme == "https":
            context = tls or ssl.create_default_context()
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout_s, context=context
            )
        else:
            self._http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    @property
    def is_open(self) -> bool:
        return self._http.sock is not None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Raises `UnreachableError`; whether the request was taken is then not known."""
        try:
            self._http.request("POST", self._path, body, dict(headers))
            with self._http.getresponse() as response:
                content = response.read(_LARGEST_REPLY)
                found = {name: value for name in _HEADERS if (value := response.getheader(name)) is not None}
                reply = Reply(response.status, found, content)
                if not response.isclosed():
                    self._http.close()
                return reply
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise UnreachableError(
                f"{self.where} does not answer",
                detail=f"{type(error).__name__}: {error}",
                hint="it is tried again; see that the server runs and the address is right",
            ) from error

    def abort(self) -> None:
        """Break off whatever is under way."""
        sock = self._http.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(SHUT_RDWR)

    def close(self) -> None:
        self._http.close()
