"""Makes deliveries out of what is read: the bodies of each shape, and ids that are the same whenever the content is.

An id is a hash of the webhook, of what it asks for and of what is delivered (the position, in the shape `change` the
row's key, of a part of a snapshot its content), so that a repetition after a failure, a crash or a replay carries the
same one, other content another one, and nothing has to be remembered for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.protocol import encode
from penstock.serve.webhooks.webhook import Webhook, WebhookPlace

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
class DeliveryStep:
    """A delivery (or none) and the place behind it, once it was taken."""

    then: WebhookPlace
    delivery: Delivery | None = None
    durable: bool = False
    """The place must be in the log before anything else happens."""


class _Changes(msgspec.Struct):
    view: str
    position: str
    upserts: list[msgspec.Raw]
    deletes: list[msgspec.Raw]


_changes = msgspec.json.Decoder(_Changes)
_rows = msgspec.json.Decoder(list[msgspec.Raw])


def delivery_id(webhook: Webhook, *facts: str) -> str:
    """Without a full stop, which ends an id in what is signed."""
    query = (webhook.where, webhook.params, webhook.select)
    return "msg_" + hashlib.blake2b(encode((webhook.id, query, *facts)), digest_size=16).hexdigest()


def whole(webhook: Webhook, type: str, position: str, payload: bytes, *facts: str, held: bool = False) -> Delivery:
    """A message as it is."""
    return Delivery(delivery_id(webhook, type, position, *facts), type, position, payload, held)


def encoded(webhook: Webhook, body: dict[str, Any], *facts: str) -> Delivery:
    return whole(webhook, body["type"], body["position"], encode(body), *facts)


def reset(webhook: Webhook, position: str, reason: str) -> Delivery:
    return encoded(webhook, {"type": "reset", webhook.kind: webhook.name, "position": position, "reason": reason})


# Shape `change`


def changes_apart(webhook: Webhook, payload: bytes, key: Sequence[str]) -> list[Delivery]:
    """One delivery per change of a `changes` message, always in the same order: deletes, then upserts, by key."""
    message = _changes.decode(payload)
    deletes = sorted(map(bytes, message.deletes))
    rows = sorted((change_key(raw, key), bytes(raw)) for raw in message.upserts)
    return [
        *(deleted(webhook, message.position, raw) for raw in deletes),
        *(upserted(webhook, message.position, raw, key) for _, raw in rows),
    ]


def rows_apart(webhook: Webhook, rows: bytes, key: Sequence[str], position: str) -> Iterator[Delivery]:
    """The rows of a snapshot, a JSON array, as upserts."""
    for raw in _rows.decode(rows):
        yield upserted(webhook, position, bytes(raw), key, held=True)


def deleted(webhook: Webhook, position: str, key: bytes) -> Delivery:
    """`key`: an object of the key's columns as JSON."""
    return _change(webhook, "delete", position, key, b"key", key)


def upserted(webhook: Webhook, position: str, row: bytes, key: Sequence[str], *, held: bool = False) -> Delivery:
    """`row`: as JSON; `key`: the names of the key's columns."""
    return _change(webhook, "upsert", position, change_key(row, key), b"row", row, held=held)


def change_key(row: bytes | msgspec.Raw, key: Sequence[str]) -> bytes:
    """What a change is sorted and told apart by."""
    values = msgspec.json.decode(row)
    return encode({column: values[column] for column in key})


def _change(
    webhook: Webhook, type: str, position: str, key: bytes, field: bytes, raw: bytes, *, held: bool = False
) -> Delivery:
    head = {"type": type, "view": webhook.name, "position": position}
    payload = b'%b,"%b":%b}' % (encode(head)[:-1], field, raw)
    return whole(webhook, type, position, payload, key.decode(), held=held)
