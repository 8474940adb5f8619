"""What is known of one webhook: what its owner asked for, how far it has come, what stands in its way, how it signs.

All of it lives in the log's control stream (`webhook/<id>`, `webhook/<id>/progress`), so that it survives the process.
Definitions change seldom and are durable before anybody is told; progress is written behind what was delivered, so
that after a crash a delivery may be repeated and none is skipped. What an owner cannot mean is refused with how to
write it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from standardwebhooks.webhooks import Webhook as Signer

from penstock.clock import rfc3339
from penstock.errors import BadRequestError
from penstock.log import control_keys
from penstock.rights.credential import Credential
from penstock.rights.scope import known_scopes

_PROGRESS = "progress"

Shape = Literal["change", "batch", "digest"]
Kind = Literal["view", "stream"]
Reason = Literal["owner", "gone", "failing", "rights"]
"""Why one is disabled: its owner said so, the endpoint answered 410, it failed for days, the owner's right ended."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The credential that made a webhook, with which it reads."""

    id: str
    name: str
    scopes: tuple[str, ...]
    claims: dict[str, Any] = {}
    expires_us: int | None = None

    @staticmethod
    def of(credential: Credential) -> Owner:
        return Owner(
            id=credential.id,
            name=credential.name,
            scopes=tuple(map(str, credential.scopes)),
            claims=dict(credential.claims),
            expires_us=credential.expires_us,
        )

    def credential(self) -> Credential:
        return Credential(self.id, self.name, tuple(known_scopes(self.scopes)), self.claims, self.expires_us)


class Secret(msgspec.Struct, frozen=True):
    """A `whsec_` secret; one that was replaced signs along until its time is up."""

    text: str
    until_us: int | None = None

    def __repr__(self) -> str:
        return "Secret(***)"


class Disabled(msgspec.Struct, frozen=True):
    """Why nothing is delivered, and since when; the position is kept."""

    reason: Reason
    detail: str
    at_us: int


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """What its owner asked for."""

    id: str
    url: str
    kind: Kind
    name: str
    """Of the view or stream."""
    channel: str | None = None
    """The channel through which it reads, with the channel's filter and rights."""
    where: str | None = None
    params: Any = None
    select: Any = None
    shape: Shape = "change"
    digest_s: float | None = None
    owner: Owner
    secrets: tuple[Secret, ...]
    created_us: int
    disabled: Disabled | None = None

    def query(self) -> dict[str, Any]:
        """As a subscription would say it: all rows that pass, whatever limit the view's readers have by default."""
        fields = {"where": self.where, "params": self.params, "select": self.select}
        return {name: value for name, value in fields.items() if value is not None} | {"limit": None}

    @property
    def reads(self) -> str:
        """What its owner needs the right to read."""
        return self.channel or self.name

    def target(self) -> dict[str, str]:
        return {self.kind: self.name} if self.channel is None else {"channel": self.channel}

    def body(self) -> dict[str, Any]:
        """As its owner sees it: without secrets."""
        off = self.disabled
        return {
            "id": self.id,
            "url": self.url,
            **self.target(),
            "where": self.where,
            "params": self.params,
            "select": self.select,
            "shape": self.shape,
            "digest_s": self.digest_s,
            "owner": self.owner.name,
            "created": rfc3339(self.created_us),
            "enabled": off is None,
            "disabled": off and {"reason": off.reason, "detail": off.detail, "at": rfc3339(off.at_us)},
        }


class WebhookPlace(msgspec.Struct, frozen=True):
    """How far a webhook has come."""

    position: str | None = None
    """Everything before it was delivered; None: nothing yet, and what is there comes first."""
    done: int = 0
    """Of the batch behind `position`, how many changes were delivered (shape `change`)."""
    end: str | None = None
    """Where the delivery under way ends. It is written down before it is sent where only the moment of reading
    decides it (a digest, a page of a stream, a reset), so that a repetition has the same id and the same content."""
    fell: str | None = None
    """Why changes cannot lead on from `position`: the delivery under way is a `reset` to `end`."""
    digest_us: int | None = None
    """When the last digest was made."""


class Trouble(msgspec.Struct, frozen=True):
    """What stands in the way: since when, how often it was tried, when it is tried again."""

    since_us: int
    attempts: int
    retry_us: int
    error: str


class WebhookProgress(msgspec.Struct, frozen=True):
    """What is written down behind deliveries."""

    place: WebhookPlace = WebhookPlace()
    trouble: Trouble | None = None


def stored(webhook: Webhook) -> dict[str, Any]:
    return {control_keys.webhook(webhook.id): msgspec.to_builtins(webhook)}


def stored_progress(id: str, progress: WebhookProgress) -> dict[str, Any]:
    return {control_keys.webhook(id, _PROGRESS): msgspec.to_builtins(progress)}


def forgotten(id: str) -> dict[str, Any]:
    """What makes the log forget a webhook."""
    return {control_keys.webhook(id): None, control_keys.webhook(id, _PROGRESS): None}


def defined(keys: Iterable[str]) -> Iterator[str]:
    """The ids of the webhooks whose definitions are among these keys of the control stream."""
    for key in keys:
        id, _, part = control_keys.webhook.rest(key).partition("/")
        if not part:
            yield id


def restored(memory: Mapping[str, Any], id: str) -> tuple[Webhook, WebhookProgress] | None:
    """What the log knows of a webhook."""
    stored = memory.get(control_keys.webhook(id))
    if stored is None:
        return None
    progress = memory.get(control_keys.webhook(id, _PROGRESS)) or {}
    return msgspec.convert(stored, Webhook), msgspec.convert(progress, WebhookProgress)


_BYTES = 32
_START = "whsec_"
OVERLAP_S = 24 * 3600.0
"""How long a replaced secret signs along unless the owner says otherwise."""
MOST_SECRETS = 5
"""Secrets that sign at one time: receivers look at no endless header."""


# Signing, as Standard Webhooks says: with every secret that is valid, so that receivers change theirs in peace


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


DIGEST_LEAST_S = 1.0
DIGEST_MOST_S = 86_400.0
EXAMPLE = '{"url": "https://example.com/hook", "view": "topics"}'


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /webhooks`."""

    url: str
    view: str | None = None
    stream: str | None = None
    channel: str | None = None
    where: str | None = None
    params: Any = None
    select: str | list[str] | None = None
    shape: Shape = "change"
    digest_s: float | None = None
    since: str | None = None

    def target(self) -> str:
        """The one name that is given: of a view, a stream or a channel."""
        names = [name for name in (self.view, self.stream, self.channel) if name is not None]
        if len(names) != 1:
            raise BadRequestError("a webhook needs a view, a stream or a channel", hint=f"send {EXAMPLE}")
        return names[0]


class ChangedWebhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `PATCH /webhooks/{id}`: what is left out stays."""

    url: str | UnsetType = UNSET
    where: str | UnsetType | None = UNSET
    params: Any = UNSET
    select: str | list[str] | UnsetType | None = UNSET
    shape: Shape | UnsetType = UNSET
    digest_s: float | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """The fields of the definition that change."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "enabled"}
        return {name: value for name, value in values.items() if value is not UNSET}


def checked_digest(shape: str, digest_s: float | None) -> float | None:
    """How often a digest is sent; raises `BadRequestError` for what does not fit its shape."""
    if shape != "digest":
        if digest_s is not None:
            raise BadRequestError("'digest_s' is for the shape 'digest'", hint='add "shape": "digest"')
        return None
    if digest_s is None or not DIGEST_LEAST_S <= digest_s <= DIGEST_MOST_S:
        raise BadRequestError(
            "a digest needs 'digest_s', the seconds between two of them",
            hint=f"use {DIGEST_LEAST_S:g} to {DIGEST_MOST_S:g}",
        )
    return digest_s
