"""Sends one call and says which of three is true: it was answered, it certainly had no effect, or nobody knows."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from penstock.errors import BadRequestError, CallCutOffError, CallRefusedError, UnreachableError

NOT_APPLIED: Final = "not applied"
"""What `confirm` returns when the other side says that the call had no effect, and will have none."""
LARGEST_ANSWER = 16 * 1024**2
_CHUNK = 65536
_UNCERTAIN = (408, 409, 425)
"""Client errors after which a request may still have been acted on: 409 may be said of one that came before."""


@dataclass(frozen=True, slots=True)
class Call:
    """One outgoing call, as `confirm` and a callable target get to know it."""

    key: str
    """Its idempotency key: that of the task, and the number of the call."""
    number: int
    target: str
    method: str
    payload: Any
    term: int
    """Grows with each take-over; a receiver that keeps the highest can refuse an owner that was replaced."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an HTTP service has answered.

    >>> Answer(201, b'{"charge": "c1"}').json()["charge"]
    'c1'
    """

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def stored(self) -> dict[str, Any]:
        """As it is logged: readable where it is text."""
        try:
            return {"status": self.status, "text": self.body.decode()}
        except UnicodeDecodeError:
            return {"status": self.status, "base64": base64.b64encode(self.body).decode()}

    @staticmethod
    def revived(stored: Mapping[str, Any]) -> Answer:
        body = stored["text"].encode() if "text" in stored else base64.b64decode(stored["base64"])
        return Answer(stored["status"], body)


class HttpSender:
    """Each call has a connection of its own: one that went stale would leave calls whose fate nobody knows."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls

    def send(
        self, call: Call, body: bytes, headers: Mapping[str, str], timeout_s: float, ready: Callable[[], None]
    ) -> Answer:
        """Raises `UnreachableError` if nothing was sent, `CallCutOffError` if that is not known.

        `ready` is called when the connection stands, right before the first byte of the request leaves.
        """
        path, connection = self._connection(call.target, timeout_s)
        deadline = time.monotonic() + timeout_s
        try:
            try:
                connection.connect()
            except OSError as error:
                raise UnreachableError(
                    f"'{call.target}' does not answer",
                    detail=f"{type(error).__name__}: {error}",
                    hint="it is tried again",
                ) from None
            ready()
            try:
                connection.request(call.method, path, body, self._headers(call, headers))
                with connection.getresponse() as response:
                    return Answer(response.status, _content(call, response, deadline))
            except (OSError, http.client.HTTPException) as error:
                raise cut_off(call, f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()

    def _connection(self, url: str, timeout_s: float) -> tuple[str, http.client.HTTPConnection]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequestError(f"'{url}' is not an address that can be called", hint="write http:// or https://")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if parts.scheme == "http":
            return path, http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        context = self._tls or ssl.create_default_context()
        return path, http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)

    def _headers(self, call: Call, headers: Mapping[str, str]) -> dict[str, str]:
        ours = {"Content-Type": "application/json", "Idempotency-Key": call.key, "Penstock-Term": str(call.term)}
        return ours | dict(headers)


def _content(call: Call, response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The answer's body, within its time and size."""
    content = bytearray()
    while chunk := response.read1(_CHUNK):
        content += chunk
        if len(content) > LARGEST_ANSWER:
            raise cut_off(call, f"its answer is larger than {LARGEST_ANSWER} bytes")
        if time.monotonic() > deadline:
            raise cut_off(call, "its answer came too slowly")
    if response.length:  # the other side has promised more
        raise cut_off(call, f"{response.length} bytes of its answer are missing")
    return bytes(content)


def fate(status: int) -> Literal["unsent", "open"]:
    """What a status that was not asked for says of the call's effect: a refusal has none, a failure may have one.

    A redirect may have one too: many a service answers what it has done with 303.

    >>> fate(402), fate(303), fate(500)
    ('unsent', 'open', 'open')
    """
    return "unsent" if 400 <= status < 500 and status not in _UNCERTAIN else "open"


def refusal(call: Call, answer: Answer) -> CallRefusedError | CallCutOffError:
    """The error for a status that the handler did not ask for."""
    detail = f"{answer.status}: {answer.text[:500]}"
    if fate(answer.status) == "open":
        return cut_off(call, detail)
    return CallRefusedError(
        f"'{call.target}' refused call {call.number}",
        detail=detail,
        hint="a status that the handler can live with goes into accept=",
    )


def cut_off(call: Call, detail: str) -> CallCutOffError:
    return CallCutOffError(
        f"nobody knows whether call {call.number} to '{call.target}' took effect",
        detail=detail,
        hint="confirm= is asked before the next try; without it the call is sent again under the same key",
    )
