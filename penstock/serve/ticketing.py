"""Gives out tickets: `POST /tickets`, for what a browser opens without being able to set a header."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
from aiohttp import web

from penstock.clock import rfc3339
from penstock.errors import BadRequestError
from penstock.observe.metrics import Observer
from penstock.observe.signals import TicketIssued
from penstock.rights.credential import credential_of
from penstock.rights.rights import Rights
from penstock.rights.tickets import Kind
from penstock.serve.catalogue import Catalogue
from penstock.serve.replies import json_reply

_NO_STORE = {"Cache-Control": "no-store"}
_EXAMPLE = '{"view": "orders"}, or "stream" or "channel" with a name'


class TicketOffice:
    """The handler of `POST /tickets`; lives on the edge's loop."""

    def __init__(self, rights: Rights, catalogue: Catalogue, observer: Observer, known: Callable[[Kind, str], None]):
        """`known` raises what a client is told that names something which is not there."""
        self._rights, self._catalogue, self._observer, self._known = rights, catalogue, observer, known

    async def give(self, request: web.Request) -> web.Response:
        kind, name = _named(await request.read())
        credential = credential_of(request)
        credential.require("read", name)
        self._known(kind, name)
        self._catalogue.rule(credential, name)  # who may see nothing of it needs no ticket
        claims = self._catalogue.claims(credential, name)
        ticket, until_us = await self._rights.tickets.issue(credential, kind, name, claims)
        self._observer.emit(TicketIssued(kind))
        return json_reply({"ticket": ticket, kind: name, "open_until": rfc3339(until_us)}, 201, _NO_STORE)


def _named(body: bytes) -> tuple[Kind, str]:
    try:
        fields = msgspec.json.decode(body, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise BadRequestError("the body says not what the ticket is for", hint=f"send {_EXAMPLE}") from None
    kinds: tuple[Kind, ...] = get_args(Kind)
    named = [(kind, fields[kind]) for kind in kinds if kind in fields]
    if len(named) != 1 or len(fields) != 1:
        raise BadRequestError("a ticket is for one view, stream or channel", hint=f"send {_EXAMPLE}")
    return named[0]
