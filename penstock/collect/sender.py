"""Says who sends and by which way in, so that letters, limits and counts can name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from penstock.rights.credential import credential_of

Way = Literal["post", "pixel", "beacon", "publish", "udp", "pull", "replay", "table"]
"""The ways in, as metrics name them."""


@dataclass(frozen=True, slots=True)
class Sender:
    """One sender. `address` is where it sends from (of a pull: where the source is), never with a secret in it."""

    way: Way
    address: str | None = None
    credential: str | None = None
    """The id of its credential (`key/<id>`, `jwt/<sub>`, `signed/<stream>`); None: nobody asked who it is."""
    sent_us: int | None = None
    """When its clock says that it sent this request."""
    promise: int | Literal["end"] | None = None
    """What it says of events to come: none is older than this, or there are none."""

    def __str__(self) -> str:
        """As dead letters tell it."""
        return " from ".join(part for part in (self.credential, self.address) if part)

    @property
    def account(self) -> str:
        """Whose share of the limits it uses, and whose Idempotency-Keys it knows."""
        return f"key/{self.credential}" if self.credential is not None else f"address/{self.address or ''}"


def sender_of(
    request: web.Request, way: Way, sent_us: int | None = None, promise: int | Literal["end"] | None = None
) -> Sender:
    """Who sends a request that has passed the guard."""
    credential = credential_of(request)
    return Sender(way, request.remote, None if credential.is_anonymous else credential.id, sent_us, promise)
