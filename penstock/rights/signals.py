"""What can happen at the guard has a name here: who was turned away and why, and which keys came and went."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.observe.signals import Counts, Signal

Signals = Callable[[Signal], None]


@dataclass(frozen=True, slots=True)
class AccessRefused(Signal):
    """A request was turned away before anything was done for it; `reason` is one of a closed set."""

    moves = (Counts("penstock_rights_refused_total", "Requests turned away by the guard.", ("reason",)),)
    reason: str


@dataclass(frozen=True, slots=True)
class LimitReached(Signal):
    """A credential asked more often, or for more, than it may; `limit` is `rate`, `connections` or `webhooks`."""

    moves = (Counts("penstock_rights_limited_total", "Requests above a credential's limits.", ("limit",)),)
    limit: str


@dataclass(frozen=True, slots=True)
class TicketIssued(Signal):
    """A ticket was given out; `kind` is what it opens."""

    moves = (Counts("penstock_rights_tickets_issued_total", "Tickets given out.", ("kind",)),)
    kind: str


@dataclass(frozen=True, slots=True)
class SignatureRefused(Signal):
    """A webhook's signature was missing, wrong or too old."""

    level = logging.WARNING
    moves = (Counts("penstock_rights_signatures_refused_total", "Webhooks with no good signature.", ("stream",)),)
    stream: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeyCreated(Signal):
    """A key was taken over from `penstock keys create`."""

    level = logging.INFO
    moves = (Counts("penstock_rights_keys_created_total", "Keys created while this process ran."),)
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class KeyRevoked(Signal):
    """A key was revoked; subscriptions under it are ended."""

    level = logging.INFO
    moves = (Counts("penstock_rights_keys_revoked_total", "Keys revoked while this process ran."),)
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class InstructionRefused(Signal):
    """A file in the inbox cannot be read as an instruction; it is set aside."""

    level = logging.WARNING
    moves = (Counts("penstock_rights_instructions_refused_total", "Files of the inbox that were set aside."),)
    file: str
    error: str


@dataclass(frozen=True, slots=True)
class JwksUnreadable(Signal):
    """The JWKS file changed into something that cannot be read; the keys from before stay in use."""

    level = logging.ERROR
    moves = (Counts("penstock_rights_jwks_failures_total", "Failed readings of the JWKS file."),)
    error: str


SIGNALS = (
    AccessRefused,
    LimitReached,
    TicketIssued,
    SignatureRefused,
    KeyCreated,
    KeyRevoked,
    InstructionRefused,
    JwksUnreadable,
)
