"""The messages of a publishing socket: what a client may send, read once and typed, and what it gets back."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import protocol
from penstock.collect.intake import Outcome
from penstock.errors import BadRequestError, PenstockError, SequenceGapError

_LARGEST = 2**53
_LONGEST_ID = 200


class Publish(msgspec.Struct, frozen=True):
    """`{"type": "publish", "id": 7, "event": {...}}` or `"events": [...]`."""

    id: int
    events: list[bytes]


class Hello(msgspec.Struct, frozen=True):
    """`{"type": "hello", "producer": "till-7", "epoch": 3}`: from here on ids are the producer's sequence."""

    producer: str
    epoch: int


class Ping(msgspec.Struct, frozen=True):
    """`{"type": "ping"}`"""


class _Sent(msgspec.Struct):
    type: str = ""
    id: int | None = None
    event: msgspec.Raw = msgspec.Raw()
    events: list[msgspec.Raw] | None = None
    producer: str | None = None
    epoch: int | None = None


_decode = msgspec.json.Decoder(_Sent).decode
_decode_id = msgspec.json.Decoder(dict[str, Any]).decode


def read(text: bytes) -> Publish | Hello | Ping:
    """Raises `BadRequestError`."""
    try:
        sent = _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _bad("a message must be a JSON object of a known shape", str(error)) from None
    if sent.type == "publish":
        return _publish(sent)
    if sent.type == "hello":
        return _hello(sent)
    if sent.type == "ping":
        return Ping()
    raise _bad(f"a message of type '{sent.type[:50]}' is not known", None)


def id_of(text: bytes) -> Any:
    """The id of a message that cannot be read as a whole, if it has one; never more than a few bytes of it."""
    try:
        id = _decode_id(text).get("id")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if isinstance(id, str):
        return id[:_LONGEST_ID]
    return id if isinstance(id, int) and abs(id) <= _LARGEST else None


def _publish(sent: _Sent) -> Publish:
    if sent.id is None or not 0 <= sent.id <= _LARGEST:
        raise _bad("a publish needs an id: an integer from 0", None)
    one = bytes(sent.event)
    if bool(one) == (sent.events is not None):
        raise _bad("a publish has either 'event' or 'events'", None)
    return Publish(sent.id, [one] if one else [bytes(raw) for raw in sent.events or ()])


def _hello(sent: _Sent) -> Hello:
    producer, epoch = sent.producer, sent.epoch
    if not producer or len(producer) > _LONGEST_ID or not producer.isprintable():
        raise _bad(f"'producer' must be 1 to {_LONGEST_ID} printable characters", None)
    if epoch is None or not 0 <= epoch <= _LARGEST:
        raise _bad("'epoch' must be an integer from 0", None)
    return Hello(producer, epoch)


def _bad(message: str, detail: str | None) -> BadRequestError:
    return BadRequestError(message, detail=detail, hint='{"type": "publish", "id": 1, "event": {...}}')


def welcome(stream: str, window: int, size: int) -> bytes:
    return protocol.encode({"type": "welcome", "stream": stream, "window": window, "bytes": size})


def resume(expected: int) -> bytes:
    return protocol.encode({"type": "resume", "expected": expected})


def pong() -> bytes:
    return b'{"type":"pong"}'


def ack(id: int, outcome: Outcome) -> bytes:
    body: dict[str, Any] = {
        "type": "ack",
        "id": id,
        "accepted": outcome.accepted,
        "duplicates": outcome.duplicates,
        "rejected": [rejection.body() for rejection in outcome.rejections],
        "ack": outcome.token,
    }
    if outcome.shed:
        body["shed"] = outcome.shed
    return protocol.encode(body)


def failed(id: Any, error: PenstockError) -> bytes:
    """Nothing of this message was taken. `retry_after_s` is there where it is worth sending it again."""
    body: dict[str, Any] = {"type": "error", "id": id, "error": error.body()}
    if error.retry:
        body["retry_after_s"] = round(error.retry_after_s or 1.0, 3)
    if isinstance(error, SequenceGapError):
        body["expected"] = error.expected
    return protocol.encode(body)
