"""Who asks, as everything behind the guard sees it: a frozen name with rights, left on the request by the guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from penstock.errors import ForbiddenError
from penstock.rights.scope import ADMIN, Scope, Verb


@dataclass(frozen=True, slots=True)
class Credential:
    """A key, a token, a signature, or nobody in particular."""

    id: str
    """Stable and not secret: `key/<id>`, `jwt/<sub>`, `signed/<stream>`, `anonymous`."""
    name: str
    scopes: tuple[Scope, ...]
    claims: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    expires_us: int | None = None

    def may(self, verb: Verb, name: str = "*") -> bool:
        """Whether it has this right. `may("read", "*")` asks for all of them."""
        return any(scope.allows(verb, name) for scope in self.scopes)

    def may_some(self, verb: Verb) -> bool:
        """Whether there is anything for which it has this right."""
        return any(scope.verb in (verb, "admin") for scope in self.scopes)

    def require(self, verb: Verb, name: str = "*") -> None:
        """Raises `ForbiddenError` unless it has this right."""
        if not self.may(verb, name):
            raise forbidden(self, str(Scope(verb, name)))

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


CREDENTIAL = web.RequestKey("credential", Credential)
"""Where the guard leaves it on the request; `credential_of` reads it."""


def credential_of(request: web.BaseRequest) -> Credential:
    """Who asks; where no guard stands before the handler (in a test), everybody may do everything."""
    found: Credential = request.get(CREDENTIAL, ANONYMOUS)
    return found


def forbidden(credential: Credential, scope: str) -> ForbiddenError:
    return ForbiddenError(
        f"'{credential.name}' does not have the right {scope}",
        detail=f"it has: {', '.join(map(str, credential.scopes)) or 'none'}",
        hint=f"use a key with it: penstock keys create APP --scope {scope}",
    )
