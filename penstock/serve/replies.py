"""Makes every reply look alike: JSON bodies, and `{"error": {code, message, detail, hint}}` for whatever goes wrong."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from penstock.errors import MethodError, PenstockError, TooLargeError, UnknownPathError
from penstock.observe.metrics import Observer
from penstock.observe.signals import RequestFailed
from penstock.protocol import encode

JSON = "application/json"
RETRY_AFTER_S = 1

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A body that is encoded here, or bytes that already are JSON."""
    data = body if isinstance(body, bytes) else encode(body)
    return web.Response(body=data, status=status, content_type=JSON, charset="utf-8", headers=headers)


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
            return error_reply(error)
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
