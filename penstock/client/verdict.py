"""What the server's answers mean, to a sender and to a reader; no input or output happens here.

1. A batch is settled only by an answer that proves to come from the door: a page of a hotel's network with status 200
   or 204 settles nothing.
2. Whatever is not settled is sent again, made smaller, numbered anew, or stops the producer; nothing is dropped.
3. An answer that leaves open whether the batch was taken makes it doubtful: then its events stay under its number.
4. A reader's failures either pass if one tries again (`TransientFailure`), or are raised to whoever reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.client.backoff import asked_s
from penstock.client.batch import Receipt
from penstock.errors import (
    BadRequestError,
    EventRejectedError,
    FencedError,
    ForbiddenError,
    LogUnavailableError,
    PenstockError,
    PositionGoneError,
    SequenceGapError,
    UnauthorizedError,
    UnknownPathError,
    UnreachableError,
    revived,
)

ACK = "Penstock-Ack"
EXPECTED = "Producer-Expected-Seq"


@dataclass(frozen=True, slots=True)
class DoorReply:
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


def judge(reply: DoorReply, now_s: float) -> Verdict:
    """What to do with the batch that got this answer."""
    body = _object(reply.body)
    code = _error(body).get("code")
    if reply.status in (200, 422) and isinstance(body.get("rejected"), list) and isinstance(body.get("ack"), str):
        return _settled(body)
    if reply.status == 204 and reply.headers.get(ACK):
        return Settled(Receipt(reply.headers[ACK], repeated=True))
    if reply.status == 403 and code == FencedError.code:
        return Fenced(FencedError(**_words(body)))
    if reply.status == 409 and code == SequenceGapError.code:
        return Forgotten(SequenceGapError(**_words(body), expected=int(reply.headers.get(EXPECTED) or 0)))
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


def _refusal(reply: DoorReply, body: Mapping[str, Any]) -> PenstockError:
    """The server's own words where there are any."""
    kind = LogUnavailableError if reply.status in (429, 503, 507) else UnreachableError
    if _error(body):
        words = _words(body)
        return kind(**words | {"message": f"{reply.status} {_error(body).get('code')}: {words['message']}"})
    where = reply.headers.get("Location")
    return kind(
        f"the answer {reply.status} does not come from a Penstock stream",
        detail=f"it leads to {where}" if where else None,
        hint="see that the address is right and that nothing stands between",
    )


def _words(body: Mapping[str, Any]) -> dict[str, Any]:
    error = _error(body)
    return {"message": str(error.get("message")), "detail": error.get("detail"), "hint": error.get("hint")}


def _error(body: Mapping[str, Any]) -> Mapping[str, Any]:
    error = body.get("error")
    return error if isinstance(error, dict) else {}


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return {}
    return body if isinstance(body, dict) else {}


_PASSING = frozenset({408, 425, 429})
_BY_STATUS: Mapping[int, type[PenstockError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: UnknownPathError,
    410: PositionGoneError,
}
_FINAL_CLOSES: Mapping[int, type[PenstockError]] = {
    1002: BadRequestError,
    1003: BadRequestError,
    1007: BadRequestError,
    1008: ForbiddenError,
    1009: BadRequestError,
    4400: BadRequestError,
    4401: UnauthorizedError,
    4403: ForbiddenError,
    4404: UnknownPathError,
}


class TransientFailure(Exception):
    """A failure after which the same is asked again; `why` is what is raised when patience ends."""

    def __init__(self, why: PenstockError) -> None:
        super().__init__(why.message)
        self.why = why


def failure_in(body: Mapping[str, Any]) -> Exception:
    """What the body of an error means: the error, or something that passes. A server's own trouble passes too."""
    error = revived(body)
    return TransientFailure(error) if error.retry or body.get("code") == PenstockError.code else error


def reply_failure(status: int, headers: Mapping[str, str], body: bytes, where: str) -> Exception:
    """What a reply other than 200 means: as its body says, else as its status does."""
    failure = _failure_of(body) or _unexplained(status, where)
    wait_s = asked_s(headers, 0.0)
    if isinstance(failure, TransientFailure) and wait_s is not None:
        failure.why.after(wait_s)
    return failure


def _unexplained(status: int, where: str) -> Exception:
    if status >= 500 or status in _PASSING:
        return TransientFailure(UnreachableError(f"{where} answered {status}", hint="it is tried again"))
    return _BY_STATUS.get(status, UnreachableError)(
        f"{where} answered {status}", hint="see that the address is right and that nothing stands between"
    )


def close_failure(code: int | None, reason: str) -> Exception:
    """What the end of a socket means."""
    kind = _FINAL_CLOSES.get(code or 0)
    if kind is not None:
        return kind(f"the server closed the connection: {reason or code}")
    return TransientFailure(UnreachableError(f"the connection ended ({code}{': ' + reason if reason else ''})"))


def _failure_of(body: bytes) -> Exception | None:
    try:
        reply: Any = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return None
    error = reply.get("error") if isinstance(reply, dict) else None
    return failure_in(error) if isinstance(error, dict) and "code" in error else None
