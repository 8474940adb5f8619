"""A ticket is what a browser shows where it cannot set a header: signed, for one view, stream or channel, for a minute.

1. A ticket is stateless: it says whose it is and what it opens, under an HMAC whose secret is in the log, so that any
   edge can check it. It opens nothing that its owner may not read, and only the one thing that it names.
2. It may be shown for `LIFE_S`. What was opened with it goes on until the right behind it ends: it names its key, and
   carries the end of its token.
3. The secret is changed once a day when tickets are asked for; the one before it is good for tickets that are out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from penstock.clock import Clock
from penstock.errors import BadRequestError, PenstockError, ReadOnlyEdgeError
from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.rights.credential import Credential
from penstock.rights.scope import Scope

LIFE_S = 60.0
ROTATE_S = 86_400.0
START = "pst_"
"""Every ticket begins with it, so that logs can be searched for one."""
SECRETS = control_keys.ticket("secrets")
MOST_BYTES = 4_096
"""An address that is longer is cut by some proxies."""
_KEPT = 2
_VERSION = 1

Kind = Literal["view", "stream", "channel"]
Remember = Callable[[Mapping[str, Any]], Awaitable[Any]]


class TicketFault(Exception):
    """Why a ticket opens nothing. It never leaves the package and never holds the ticket."""


class Paper(msgspec.Struct, frozen=True, array_like=True):
    """What stands on a ticket."""

    version: int
    owner: str
    owner_name: str
    kind: Kind
    name: str
    columns: tuple[str, ...] | None
    claims: dict[str, Any]
    unfiltered: bool
    open_until_us: int
    expires_us: int | None

    def credential(self) -> Credential:
        """Its owner's, with the right to read this one thing."""
        scope = Scope("read", self.name, self.columns)
        return Credential(self.owner, self.owner_name, (scope,), self.claims, self.expires_us, self.unfiltered)


class _Secret(msgspec.Struct, frozen=True):
    id: str
    hex: str
    since_us: int

    def mac(self, paper: bytes) -> bytes:
        return hmac.digest(bytes.fromhex(self.hex), paper, hashlib.sha256)


class Tickets:
    """Makes and checks tickets; lives on the edge's loop."""

    def __init__(
        self,
        memory: ControlMap,
        clock: Clock,
        remember: Remember | None = None,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`memory` is the log's, `remember` writes to it; without it this process alone knows the secrets."""
        self._memory, self._clock, self._remember, self._random = memory, clock, remember, random
        self._changing = asyncio.Lock()

    @property
    def _secrets(self) -> list[_Secret]:
        return msgspec.convert(self._memory.get(SECRETS, []), list[_Secret])

    async def issue(self, owner: Credential, kind: Kind, name: str, claims: Mapping[str, Any]) -> tuple[str, int]:
        """A ticket, and until when it may be shown. `claims` are those that decide what is visible there."""
        now_us = self._clock.now_us()
        until_us = now_us + round(LIFE_S * 1e6)
        columns = owner.columns(name)
        listed = None if columns is None else tuple(sorted(columns))
        paper = Paper(
            _VERSION,
            owner.id,
            owner.name,
            kind,
            name,
            listed,
            dict(claims),
            owner.sees_all,
            until_us,
            owner.expires_us,
        )
        text = _signed(paper, await self._current(now_us))
        if len(text) > MOST_BYTES:
            raise BadRequestError(
                f"the claims that decide what of '{name}' is visible make a ticket of {len(text)} bytes",
                hint=f"an address holds {MOST_BYTES}; use a client that can set the header Authorization",
            )
        return text, until_us

    def read(self, ticket: str) -> Paper:
        """What stands on a ticket that is ours and may still be shown. Raises `TicketFault`."""
        id, _, rest = ticket.removeprefix(START).partition(".")
        payload, _, mac = rest.partition(".")
        secret = next((known for known in self._secrets if known.id == id), None)
        try:
            raw, given = _unpacked(payload), _unpacked(mac)
        except (ValueError, binascii.Error):
            raise TicketFault("it is not a ticket") from None
        if secret is None or not hmac.compare_digest(secret.mac(payload.encode()), given):
            raise TicketFault("the ticket is not one of this server")
        paper = msgspec.json.decode(raw, type=Paper)
        if self._clock.now_us() >= paper.open_until_us:
            raise TicketFault(f"the ticket was good for {LIFE_S:g} s; ask for another with POST /tickets")
        return paper

    async def prepare(self) -> None:
        """See that there is a secret in the log, so that edges which only read can give tickets out too. If that fails,
        the first who asks for a ticket is told why."""
        if SECRETS not in self._memory:
            with suppress(PenstockError):
                await self._current(self._clock.now_us())

    async def _current(self, now_us: int) -> _Secret:
        async with self._changing:
            known = self._secrets
            if known and now_us - known[0].since_us < ROTATE_S * 1e6:
                return known[0]
            fresh = _Secret(self._random(4).hex(), self._random(32).hex(), now_us)
            kept = {SECRETS: msgspec.to_builtins([fresh, *known][:_KEPT])}
            try:
                await self._remember(kept) if self._remember else self._memory.apply(kept)
            except ReadOnlyEdgeError:
                if not known:
                    raise
                return known[0]  # it is good, also for a while behind the next one
            return fresh


def _signed(paper: Paper, secret: _Secret) -> str:
    payload = _packed(msgspec.json.encode(paper))
    return f"{START}{secret.id}.{payload}.{_packed(secret.mac(payload.encode()))}"


def _packed(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unpacked(text: str) -> bytes:
    """Strictly: one text for each ticket, and none with characters that a decoder would leave out."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _packed(raw) != text:
        raise ValueError("not the only spelling")
    return raw
