"""Makes deliveries out of what is read: the bodies of each shape, and ids that are the same whenever the content is.

An id is a hash of the webhook and of what is delivered (the position, and in the shape `change` the row's key), so
that a repetition after a failure, a crash or a replay carries the same one, and nothing has to be remembered for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.protocol import encode
from penstock.serve.webhooks.webhook import Place, Webhook

Level = Callable[[], None]
"""Called by a source when there is nothing more to deliver, before it waits."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request to an endpoint."""

    id: str
    type: str
    position: str
    payload: bytes
    held: bool = False
    """A part of something that cannot be read again: worth a few tries before it is begun anew."""


@dataclass(frozen=True, slots=True)
class Step:
    """A delivery (or none) and the place behind it, once it was taken."""

    then: Place
    delivery: Delivery | None = None
    durable: bool = False
    """The place must be in the log before anything else happens."""


class _Changes(msgspec.Struct):
    view: str
    position: str
    upserts: list[msgspec.Raw]
    deletes: list[msgspec.Raw]


_changes = msgspec.json.Decoder(_Changes)


def delivery_id(webhook: Webhook, *facts: str) -> str:
    """Without a full stop, which ends an id in what is signed."""
    return "msg_" + hashlib.blake2b(encode((webhook.id, *facts)), digest_size=16).hexdigest()


def whole(webhook: Webhook, type: str, position: str, payload: bytes, *facts: str, held: bool = False) -> Delivery:
    """A message as it is."""
    return Delivery(delivery_id(webhook, type, position, *facts), type, position, payload, held)


def made(webhook: Webhook, body: dict[str, Any], *facts: str) -> Delivery:
    return whole(webhook, body["type"], body["position"], encode(body), *facts)


def reset(webhook: Webhook, position: str, reason: str) -> Delivery:
    return made(webhook, {"type": "reset", webhook.kind: webhook.name, "position": position, "reason": reason})


# Shape `change`


def changes_apart(webhook: Webhook, payload: bytes, key: Sequence[str]) -> list[Delivery]:
    """One delivery per change of a `changes` message, always in the same order: deletes, then upserts, by key."""
    message = _changes.decode(payload)
    gone = sorted((encode(msgspec.json.decode(raw)), bytes(raw)) for raw in message.deletes)
    rows = sorted((_key(raw, key), bytes(raw)) for raw in message.upserts)
    return [
        *(_change(webhook, "delete", message.position, k, b"key", raw) for k, raw in gone),
        *(_change(webhook, "upsert", message.position, k, b"row", raw) for k, raw in rows),
    ]


def rows_apart(webhook: Webhook, rows: Sequence[Any], key: Sequence[str], position: str) -> Iterator[Delivery]:
    """The rows of a snapshot as upserts."""
    for row in rows:
        name = encode({column: row[column] for column in key})
        yield _change(webhook, "upsert", position, name, b"row", encode(row), held=True)


def _change(
    webhook: Webhook, type: str, position: str, key: bytes, field: bytes, raw: bytes, *, held: bool = False
) -> Delivery:
    head = {"type": type, "view": webhook.name, "position": position}
    payload = b'%b,"%b":%b}' % (encode(head)[:-1], field, raw)
    return whole(webhook, type, position, payload, key.decode(), held=held)


def _key(raw: msgspec.Raw, key: Sequence[str]) -> bytes:
    row = msgspec.json.decode(raw)
    return encode({column: row[column] for column in key})
