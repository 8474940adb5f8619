"""What can happen to a webhook has a name here. None of them holds an address: it may be a secret of its owner's."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from penstock.observe.signals import Counts, Observes, Signal


@dataclass(frozen=True, slots=True)
class WebhookDelivered(Signal):
    """An endpoint took a delivery; `kind` is that of its source, `seconds` how long it took to answer."""

    moves = (
        Counts("penstock_serve_webhook_deliveries_total", "Deliveries that were taken.", ("kind", "shape")),
        Observes("penstock_serve_webhook_seconds", "From sending to the answer.", "seconds", ("shape",)),
    )
    webhook: str
    kind: str
    shape: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WebhookFailed(Signal):
    """An attempt was not taken; it is tried again, and nothing goes past it."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_webhook_failures_total", "Attempts that were not taken.", ("reason",)),)
    webhook: str
    reason: str
    attempts: int
    detail: str


@dataclass(frozen=True, slots=True)
class WebhookRetried(Signal):
    """A delivery that was not taken is tried again: the breaker is half-open."""

    moves = (Counts("penstock_serve_webhook_retries_total", "Attempts after a failure."),)
    webhook: str
    attempts: int


@dataclass(frozen=True, slots=True)
class WebhookReset(Signal):
    """A webhook could not be brought up to date by changes; its endpoint is told the position to begin anew from."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_webhook_resets_total", "Webhooks that fell behind what is kept."),)
    webhook: str
    reason: str


@dataclass(frozen=True, slots=True)
class WebhookDisabled(Signal):
    """Nothing more is delivered until its owner enables it; the position is kept."""

    level = logging.WARNING
    moves = (Counts("penstock_serve_webhooks_disabled_total", "Webhooks that were disabled.", ("reason",)),)
    webhook: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class WebhookBlocked(Signal):
    """What a webhook reads cannot be read now (a view that is gone or too large, a `where` that no longer fits)."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_webhook_blocks_total", "Failed readings for webhooks."),)
    webhook: str
    error: str


@dataclass(frozen=True, slots=True)
class WebhookProgressUnwritten(Signal):
    """The log did not take the progress of webhooks; it is tried again, and a crash now would repeat deliveries."""

    level = logging.ERROR
    moves = (Counts("penstock_serve_webhook_unwritten_total", "Failed writings of progress."),)
    error: str


SIGNALS = (
    WebhookDelivered,
    WebhookFailed,
    WebhookRetried,
    WebhookReset,
    WebhookDisabled,
    WebhookBlocked,
    WebhookProgressUnwritten,
)
