"""Signs deliveries as Standard Webhooks says, with every secret that is valid, so that one can be replaced in peace."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook as Signer

from penstock.serve.webhooks.webhook import Secret

_BYTES = 32
_START = "whsec_"
OVERLAP_S = 24 * 3600.0
"""How long a replaced secret signs along unless the owner says otherwise."""
MOST_SECRETS = 5
"""Secrets that sign at one time: receivers look at no endless header."""


def new_secret() -> Secret:
    return Secret(_START + base64.b64encode(secrets.token_bytes(_BYTES)).decode())


def rotated(now: Sequence[Secret], new: Secret, now_us: int, overlap_s: float) -> tuple[Secret, ...]:
    """The new one first; those before it for the overlap at most."""
    ends = now_us + round(overlap_s * 1e6)
    kept = [Secret(old.text, min(ends, old.until_us or ends)) for old in valid(now, now_us)] if overlap_s > 0 else []
    return (new, *kept[: MOST_SECRETS - 1])


def valid(held: Sequence[Secret], now_us: int) -> list[Secret]:
    return [secret for secret in held if secret.until_us is None or secret.until_us > now_us]


def signed_headers(id: str, payload: bytes, held: Sequence[Secret], now_us: int) -> dict[str, str]:
    """`webhook-id`, `webhook-timestamp` and `webhook-signature`, one signature for each valid secret."""
    now_s = now_us // 1_000_000
    moment, text = datetime.fromtimestamp(now_s, UTC), payload.decode()
    signatures = [Signer(secret.text).sign(id, moment, text) for secret in valid(held, now_us)]
    return {"webhook-id": id, "webhook-timestamp": str(now_s), "webhook-signature": " ".join(signatures)}
