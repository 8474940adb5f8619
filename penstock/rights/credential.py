"""Who asks, as everything behind the guard sees it: a frozen name with rights, left on the request by the guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    ForbiddenError,
    ReadOnlyStreamError,
    UnknownChannelError,
    UnknownStreamError,
    UnknownViewError,
)
from penstock.overload import Rate
from penstock.rights.scope import ADMIN, Scope, Verb

if TYPE_CHECKING:  # commands that ask nobody start without it
    from aiohttp import web

_NAMING = (UnknownViewError, UnknownStreamError, UnknownChannelError, ReadOnlyStreamError)
"""Errors whose hint lists what there is."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A key, a token, a signature, a ticket, or nobody in particular."""

    id: str
    """Stable and not secret: `key/<id>`, `jwt/<sub>`, `signed/<stream>`, `anonymous`."""
    name: str
    scopes: tuple[Scope, ...]
    claims: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    expires_us: int | None = None
    unfiltered: bool = False
    """A ticket of an administrator: it reads one thing, but all of its rows."""
    rate: Rate | None = None
    """How many requests it may make; None: as many as the server lets each."""
    connections: int | None = None
    """How many sockets, streams of events and waiting requests it may have open; None: as the server lets each."""

    def may(self, verb: Verb, name: str = "*") -> bool:
        """Whether it has this right, for some columns at least. `may("read", "*")` asks for all of them."""
        return any(scope.allows(verb, name) for scope in self.scopes)

    def may_some(self, verb: Verb) -> bool:
        """Whether there is anything for which it has this right."""
        return any(scope.verb in (verb, "admin") for scope in self.scopes)

    def require(self, verb: Verb, name: str = "*") -> None:
        """Raises `ForbiddenError` unless it has this right."""
        if not self.may(verb, name):
            raise forbidden(self, str(Scope(verb, name)))

    def columns(self, name: str) -> frozenset[str] | None:
        """The columns that it may read of what it may read; None: all of them."""
        lists = [scope.columns for scope in self.scopes if scope.allows("read", name)]
        if any(listed is None for listed in lists):
            return None
        return frozenset(column for listed in lists for column in listed or ())

    @property
    def sees_all(self) -> bool:
        """Whether no `visible_where` holds for it: an administrator's."""
        return self.unfiltered or self.may("admin")

    @property
    def is_anonymous(self) -> bool:
        return self.id == ANONYMOUS.id

    @property
    def only_writes(self) -> bool:
        return bool(self.scopes) and all(scope.verb == "write" for scope in self.scopes)


ANONYMOUS = Credential("anonymous", "anonymous", (ADMIN,))
"""Everybody, on a server that has no key and listens on loopback alone."""
NOBODY = Credential("nobody", "nobody", ())
"""Somebody without a credential, at what is open to all."""


@cache
def _place() -> web.RequestKey[Credential]:
    from aiohttp import web

    return web.RequestKey("credential", Credential)


def leave(request: web.BaseRequest, credential: Credential) -> None:
    """The guard says who asks, for everything behind it."""
    request[_place()] = credential


def credential_of(request: web.BaseRequest, default: Credential = ANONYMOUS) -> Credential:
    """Who asks; where no guard stands before the handler (in a test), everybody may do everything."""
    credential: Credential = request.get(_place(), default)
    return credential


def heard_by(credential: Credential, error: Any) -> Any:
    """An error as this credential may hear it: only who may read, or write, everything is told what else there is."""
    if not isinstance(error, _NAMING) or credential.may("read") or credential.may("write"):
        return error
    return type(error)(error.message, hint="GET /views, /streams and /channels list what this credential may read")


def forbidden(credential: Credential, scope: str) -> ForbiddenError:
    return ForbiddenError(
        f"'{credential.name}' does not have the right {scope}",
        detail=f"it has: {', '.join(map(str, credential.scopes)) or 'none'}",
        hint=f"use a key with it: penstock keys create APP --scope {scope}",
    )


class TokenFault(Exception):
    """Why a token is no credential. It never leaves the package and never holds the token."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason, self.text = reason, text


@dataclass(frozen=True)
class TokenOptions:
    """Where the keys are, and for whom and by whom tokens must be."""

    secret_file: Path | None = None
    public_key: Path | None = None
    jwks: Path | None = None
    audience: str | None = None
    issuer: str | None = None

    def __bool__(self) -> bool:
        return any((self.secret_file, self.public_key, self.jwks))
