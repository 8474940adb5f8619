"""How a stream's webhooks are signed, as an app file says it: the style and where the secret is, never the secret.

    from penstock import App, Event, signed
    app.stream("payments", Payment, signed=signed.stripe(secret_env="STRIPE_SECRET"))

The secret is read when the edge starts, from the environment or from a file beside the app file. Several, one a line,
are all accepted, so that a secret can be changed without losing a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from penstock.config import duration_us
from penstock.errors import DeclarationError

TOLERANCE = "5 minutes"
"""How old, or how far ahead, a signature's own time may be: what the senders themselves recommend."""


@dataclass(frozen=True)
class Signed:
    """A style of signature and the name of its secret."""

    style: Literal["standard", "github", "stripe"]
    secret_env: str | None = None
    secret_file: str | None = None
    tolerance_us: int = 0

    def __post_init__(self) -> None:
        if (self.secret_env is None) == (self.secret_file is None):
            raise DeclarationError(
                f"signed.{self.style}() needs the place of one secret", hint="pass secret_env=... or secret_file=..."
            )


def standard(
    *, secret_env: str | None = None, secret_file: str | None = None, tolerance: str | timedelta = TOLERANCE
) -> Signed:
    """Standard Webhooks: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`; the secret in base64.

    >>> standard(secret_env="HOOK").style
    'standard'
    """
    return Signed("standard", secret_env, secret_file, duration_us(tolerance))


def github(*, secret_env: str | None = None, secret_file: str | None = None) -> Signed:
    """GitHub: the header `X-Hub-Signature-256`. It has no time: give the stream an `id`, so that no call counts twice.

    >>> github(secret_env="HOOK").secret_env
    'HOOK'
    """
    return Signed("github", secret_env, secret_file)


def stripe(
    *, secret_env: str | None = None, secret_file: str | None = None, tolerance: str | timedelta = TOLERANCE
) -> Signed:
    """Stripe: the header `Stripe-Signature` with a time and one or more signatures.

    >>> stripe(secret_env="HOOK", tolerance="1 minute").tolerance_us
    60000000
    """
    return Signed("stripe", secret_env, secret_file, duration_us(tolerance))
