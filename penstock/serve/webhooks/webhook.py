"""What is known of one webhook: what its owner asked for, how far it has come, and what stands in its way.

All of it lives in the log's control stream (`webhook/<id>`, `webhook/<id>/progress`), so that it survives the process.
Definitions change seldom and are durable before anybody is told; progress is written behind what was delivered, so
that after a crash a delivery may be repeated and none is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from penstock.clock import rfc3339
from penstock.rights.credential import Credential
from penstock.rights.scope import known_scopes

PREFIX = "webhook/"
PROGRESS = "/progress"

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

    def asked(self) -> dict[str, Any]:
        """As a subscription would say it: all rows that pass, whatever limit the view's readers have by default."""
        given = {"where": self.where, "params": self.params, "select": self.select}
        return {name: value for name, value in given.items() if value is not None} | {"limit": None}

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


class Place(msgspec.Struct, frozen=True):
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


class Progress(msgspec.Struct, frozen=True):
    """What is written down behind deliveries."""

    place: Place = Place()
    trouble: Trouble | None = None


def stored(webhook: Webhook) -> dict[str, Any]:
    return {PREFIX + webhook.id: msgspec.to_builtins(webhook)}


def stored_progress(id: str, progress: Progress) -> dict[str, Any]:
    return {PREFIX + id + PROGRESS: msgspec.to_builtins(progress)}


def forgotten(id: str) -> dict[str, Any]:
    """What makes the log forget a webhook."""
    return {PREFIX + id: None, PREFIX + id + PROGRESS: None}


def restored(memory: Mapping[str, Any]) -> Iterator[tuple[Webhook, Progress]]:
    """All webhooks that the log knows of."""
    for key, value in memory.items():
        if key.startswith(PREFIX) and not key.endswith(PROGRESS):
            webhook = msgspec.convert(value, Webhook)
            yield webhook, msgspec.convert(memory.get(key + PROGRESS) or {}, Progress)
