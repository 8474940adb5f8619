"""Says who sends and by which way in, so that letters, limits and counts can name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["post", "pixel", "beacon", "publish", "udp", "pull", "replay"]
"""The ways in, as metrics name them."""


@dataclass(frozen=True, slots=True)
class Sender:
    """One sender. `address` is where it sends from (of a pull: where the source is), never with a secret in it."""

    way: Way
    address: str | None = None
    credential: str | None = None
    """Name of the key, subject of the token; None: nobody asked who it is."""
    sent_us: int | None = None
    """When its clock says that it sent this request."""

    def __str__(self) -> str:
        """As dead letters tell it."""
        return " from ".join(part for part in (self.credential, self.address) if part)

    @property
    def account(self) -> str:
        """Whose share of the limits it uses, and whose Idempotency-Keys it knows."""
        return f"key/{self.credential}" if self.credential is not None else f"address/{self.address or ''}"
