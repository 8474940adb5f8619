"""What an answer of the door means for the batch that was sent; no input or output happens here.

1. A batch is settled only by an answer that proves to come from the door: a page of a hotel's network with status 200
   or 204 settles nothing.
2. Whatever is not settled is sent again, made smaller, numbered anew, or stops the producer; nothing is dropped.
3. An answer that leaves open whether the batch was taken makes it doubtful: then its events stay under its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.client.backoff import asked_s
from penstock.client.batch import Receipt
from penstock.errors import (
    EventRejectedError,
    FencedError,
    LogUnavailableError,
    PenstockError,
    SequenceGapError,
    UnreachableError,
)

ACK = "Penstock-Ack"
EXPECTED = "Producer-Expected-Seq"


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply; the names of `headers` are as the contract spells them."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Settled:
    """The door has the batch; `rejected` by the index of the event."""

    receipt: Receipt
    rejected: Mapping[int, EventRejectedError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Again:
    """The same again later. `loud`: it will not pass by itself, so somebody must be told."""

    error: PenstockError
    doubtful: bool
    after_s: float | None = None
    loud: bool = False


@dataclass(frozen=True, slots=True)
class Smaller:
    """Too large for the server or for something before it; the number is not used up."""

    error: PenstockError


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The server does not know what came before this number: it forgot this producer, or has another log."""

    error: SequenceGapError


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer instance with this producer's id has sent."""

    error: FencedError


Verdict = Settled | Again | Smaller | Forgotten | Fenced


def judge(reply: Reply, now_s: float) -> Verdict:
    """What to do with the batch that got this answer."""
    body = _object(reply.body)
    code = _error(body).get("code")
    if reply.status in (200, 422) and isinstance(body.get("rejected"), list) and isinstance(body.get("ack"), str):
        return _settled(body)
    if reply.status == 204 and reply.headers.get(ACK):
        return Settled(Receipt(reply.headers[ACK], repeated=True))
    if reply.status == 403 and code == FencedError.code:
        return Fenced(FencedError(**_told(body)))
    if reply.status == 409 and code == SequenceGapError.code:
        return Forgotten(SequenceGapError(**_told(body), expected=int(reply.headers.get(EXPECTED) or 0)))
    if reply.status == 413:
        return Smaller(_refusal(reply, body))
    if reply.status in (408, 425, 429) or reply.status >= 500:
        return Again(_refusal(reply, body), reply.status >= 500, asked_s(reply.headers, now_s))
    return Again(_refusal(reply, body), reply.status < 400, asked_s(reply.headers, now_s), loud=True)


def _settled(body: Mapping[str, Any]) -> Settled:
    rejected = {
        int(one["index"]): EventRejectedError(
            f"the server rejected the event: {one.get('reason')}",
            detail=str(one.get("detail")),
            hint="mend the event or its sender; what was sent is in the stream 'dead'",
            reason=str(one.get("reason")),
        )
        for one in body["rejected"]
    }
    return Settled(Receipt(body["ack"], shed=int(body.get("shed") or 0)), rejected)


def _refusal(reply: Reply, body: Mapping[str, Any]) -> PenstockError:
    """The server's own words where there are any."""
    kind = LogUnavailableError if reply.status in (429, 503, 507) else UnreachableError
    if _error(body):
        told = _told(body)
        return kind(
            f"{reply.status} {_error(body).get('code')}: {told['message']}", detail=told["detail"], hint=told["hint"]
        )
    where = reply.headers.get("Location")
    return kind(
        f"the answer {reply.status} does not come from a Penstock stream",
        detail=f"it leads to {where}" if where else None,
        hint="see that the address is right and that nothing stands between",
    )


def _told(body: Mapping[str, Any]) -> dict[str, Any]:
    error = _error(body)
    return {"message": str(error.get("message")), "detail": error.get("detail"), "hint": error.get("hint")}


def _error(body: Mapping[str, Any]) -> Mapping[str, Any]:
    error = body.get("error")
    return error if isinstance(error, dict) else {}


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}
