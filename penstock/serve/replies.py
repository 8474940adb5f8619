"""Makes every reply look alike: JSON bodies, and `{"error": {code, message, detail, hint}}` for whatever goes wrong."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from penstock.errors import MethodError, NotAcceptableError, PenstockError, TooLargeError, UnknownPathError
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestFailed
from penstock.protocol import encode
from penstock.rights.credential import credential_of

JSON = "application/json"
RETRY_AFTER_S = 1
_CACHE = {"Cache-Control": "public, no-cache"}
"""Shared proxies may keep an answer, but must ask whether it is still the present one."""
_OWN_CACHE = {"Cache-Control": "private, no-cache", "Vary": "Authorization"}
"""The same where a credential was needed: only its owner's own browser may keep it."""
_NO = re.compile(r"q\s*=\s*0(\.0*)?")
_TAG = re.compile(r'(?:W/)?"([^"]*)"')

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A body that is encoded here, or bytes that already are JSON."""
    data = body if isinstance(body, bytes) else encode(body)
    return web.Response(body=data, status=status, content_type=JSON, charset="utf-8", headers=headers)


def tagged_reply(request: web.Request, body: Any) -> web.Response:
    """A body that changes seldom: who has it already is told so."""
    data = encode(body)
    headers = cache_of(request) | {"ETag": f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'}
    return (
        web.Response(status=304, headers=headers)
        if has_tag(request, headers["ETag"])
        else json_reply(data, 200, headers)
    )


def cache_of(request: web.Request) -> dict[str, str]:
    """The headers of an answer that may be kept by whoever asks each time whether it is still the present one."""
    return dict(_CACHE if credential_of(request).is_anonymous else _OWN_CACHE)


def has_tag(request: web.Request, tag: str) -> bool:
    """RFC 9110: a list of tags, compared without regard to weakness (proxies that compress weaken them), or `*`."""
    given = ",".join(request.headers.getall("If-None-Match", ()))
    return given.strip() == "*" or tag.strip('"') in _TAG.findall(given)


def check_accept(request: web.Request, kind: str) -> None:
    """Raises `NotAcceptableError` for one who says that it cannot read this kind, the only one that a path has."""
    given = ",".join(request.headers.getall("Accept", ()))
    if accepts(given, kind):
        return
    events = "" if request.path.endswith("/events") else "; events come from the same path with /events behind it"
    raise NotAcceptableError(
        f"{request.path} has {kind}, and the header Accept leaves it out", hint=f"send Accept: {kind}, or none{events}"
    )


def accepts(header: str, kind: str) -> bool:
    """RFC 9110: of the ranges that a kind is in, the closest one decides; `q=0` is a no. No header is a yes.

    >>> accepts("text/html, */*;q=0.8", "application/json"), accepts("text/event-stream", "application/json")
    (True, False)
    """
    closest, found = -1, not header.strip()
    whole = ("*/*", f"{kind.partition('/')[0]}/*", kind)
    for part in header.split(","):
        name, *options = [piece.strip().lower() for piece in part.split(";")]
        if name in whole and whole.index(name) >= closest:
            closest, found = whole.index(name), not any(_NO.fullmatch(option) for option in options)
    return found


def error_reply(error: PenstockError, headers: dict[str, str] | None = None) -> web.Response:
    wait_s = RETRY_AFTER_S if error.retry_after_s is None and error.status == 503 else error.retry_after_s
    retry = {} if wait_s is None else {"Retry-After": str(max(1, math.ceil(wait_s)))}
    return json_reply({"error": error.body()}, error.status, retry | (headers or {}))


def errors_as_json(observer: Observer) -> Any:
    """The middleware that the whole edge uses, so that collect's errors look like serve's."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except PenstockError as error:
            reply: web.Response = getattr(request.match_info.handler, "refused_with", error_reply)(error)
            return reply
        except web.HTTPException as error:
            return error if error.status < 400 else _http_error(request, error)
        except ConnectionError:
            raise
        except Exception as error:
            observer.emit(RequestFailed(request.path, f"{type(error).__name__}: {error}"))
            return error_reply(PenstockError("something went wrong in the server", hint="its log says what"))

    return middleware


def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        wrong = MethodError(f"{request.path} does not take {request.method}", hint=f"it takes {allowed}")
        return error_reply(wrong, {"Allow": allowed})
    if error.status == 404:
        return error_reply(
            UnknownPathError(f"nothing is served at '{request.path}'", hint="GET /openapi.json lists all paths")
        )
    if error.status == 413:
        return error_reply(TooLargeError("the body is too large", detail=error.text))
    body = {"code": "bad_request", "message": error.reason, "detail": error.text, "hint": None}
    return json_reply({"error": body}, error.status)


# The log


class NotTheServersFault(logging.Filter):
    """Keeps what clients do wrong out of the server's log: `refused` hears of every request that was not HTTP.

    aiohttp logs broken HTTP and lost connections as errors with a trace. Anybody who can connect could fill the log
    with them, and what is wrong with the server itself would be lost among them.
    """

    def __init__(self, refused: Callable[[], None]) -> None:
        super().__init__()
        self._refused = refused

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            self._refused()
            return False
        return not isinstance(error, ConnectionError)


def quieten(refused: Callable[[], None]) -> Callable[[], None]:
    """From now on, in this process; what it returns ends it."""
    logger, filtering = logging.getLogger("aiohttp.server"), NotTheServersFault(refused)
    logger.addFilter(filtering)
    return lambda: logger.removeFilter(filtering)
