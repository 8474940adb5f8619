"""Which failures pass if one tries again, and which must be told to whoever asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.client.backoff import asked_s
from penstock.errors import (
    BadRequestError,
    ForbiddenError,
    PenstockError,
    PositionGoneError,
    UnauthorizedError,
    UnknownPathError,
    UnreachableError,
    revived,
)

_PASSING = frozenset({408, 425, 429})
_BY_STATUS: Mapping[int, type[PenstockError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: UnknownPathError,
    410: PositionGoneError,
}
_FINAL_CLOSES: Mapping[int, type[PenstockError]] = {
    1002: BadRequestError,
    1003: BadRequestError,
    1007: BadRequestError,
    1008: ForbiddenError,
    1009: BadRequestError,
    4400: BadRequestError,
    4401: UnauthorizedError,
    4403: ForbiddenError,
    4404: UnknownPathError,
}


class Passing(Exception):
    """A failure after which the same is asked again; `why` is what is raised when patience ends."""

    def __init__(self, why: PenstockError) -> None:
        super().__init__(why.message)
        self.why = why


def told(body: Mapping[str, Any]) -> Exception:
    """What the body of an error means: as it is, or as something that passes. A server's own trouble passes too."""
    error = revived(body)
    return Passing(error) if error.retry or body.get("code") == PenstockError.code else error


def refused(status: int, headers: Mapping[str, str], body: bytes, where: str) -> Exception:
    """What a reply other than 200 means: as its body says, else as its status does."""
    failure = _said(body) or _unexplained(status, where)
    wait_s = asked_s(headers, 0.0)
    if isinstance(failure, Passing) and wait_s is not None:
        failure.why.after(wait_s)
    return failure


def _unexplained(status: int, where: str) -> Exception:
    if status >= 500 or status in _PASSING:
        return Passing(UnreachableError(f"{where} answered {status}", hint="it is tried again"))
    return _BY_STATUS.get(status, UnreachableError)(
        f"{where} answered {status}", hint="see that the address is right and that nothing stands between"
    )


def closed(code: int | None, reason: str) -> Exception:
    """What the end of a socket means."""
    kind = _FINAL_CLOSES.get(code or 0)
    if kind is not None:
        return kind(f"the server closed the connection: {reason or code}")
    return Passing(UnreachableError(f"the connection ended ({code}{': ' + reason if reason else ''})"))


def _said(body: bytes) -> Exception | None:
    try:
        found: Any = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return None
    error = found.get("error") if isinstance(found, dict) else None
    return told(error) if isinstance(error, dict) and "code" in error else None
