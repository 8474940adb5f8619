"""Turns outcomes and errors into HTTP replies, so that every reply of the door has the shape of the wire contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from penstock import protocol
from penstock.collect.intake import Outcome
from penstock.collect.ways.kept_replies import KeptReply
from penstock.errors import EventsRejectedError, IdempotencyBusyError, PenstockError, SequenceGapError

ACK = "Penstock-Ack"
EXPECTED = "Producer-Expected-Seq"
REPLAYED = "Idempotency-Replayed"
APPLIED_PREFERENCE = {"Preference-Applied": "respond-async"}
_RETRY_AFTER_S = {503: "1", 507: "10"}
"""A full queue drains within a second; a full disk waits for a person or for retention."""


def json_reply(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=protocol.encode(body), headers={"Content-Type": "application/json", **(headers or {})}
    )


def error_reply(error: PenstockError, more: Mapping[str, str] | None = None) -> web.Response:
    headers = dict(more or {})
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif error.status in _RETRY_AFTER_S:
        headers["Retry-After"] = _RETRY_AFTER_S[error.status]
    if isinstance(error, IdempotencyBusyError):
        headers["Retry-After"] = "1"
    if isinstance(error, SequenceGapError):
        headers[EXPECTED] = str(error.expected)
    return json_reply(error.status, {"error": error.body()}, headers)


def outcome_reply(
    outcome: Outcome,
    level: str,
    expected: int | None,
    more: Mapping[str, Any] | None = None,
    *,
    late: bool = False,
) -> web.Response:
    """200, 422 when every event was rejected, or 204 for a producer's number that was taken before. `more` stands in
    the body too; `late`: what the sender waits for has not come, which is 202: who asked for it gets no 204."""
    token = outcome.token
    headers = {ACK: token} if expected is None else {ACK: token, EXPECTED: str(expected)}
    if outcome.repeated and more is None and not late:
        return web.Response(status=204, headers=headers)
    rejected = [rejection.body() for rejection in outcome.rejections]
    body = _body(outcome.accepted, outcome.duplicates, rejected, token, level, outcome.shed)
    if rejected and not outcome.accepted and not outcome.duplicates and not outcome.shed:
        return json_reply(422, body | {"error": _all_rejected(rejected[0]).body()}, headers)
    return json_reply(202 if late else 200, {**body, **(more or {})}, headers)


def replayed_reply(
    kept: KeptReply, level: str, more: Mapping[str, Any] | None = None, *, late: bool = False
) -> web.Response:
    """What was replied before; `more` and `late` as for `outcome_reply`."""
    ack = kept.position.token()
    body = _body(kept.accepted, kept.duplicates, kept.rejected, ack, level, kept.shed)
    headers = {ACK: ack, REPLAYED: "true"}
    if kept.rejected_in_all > len(kept.rejected):
        body["rejected_in_all"] = kept.rejected_in_all
    if kept.rejected and not kept.accepted and not kept.duplicates and not kept.shed:
        return json_reply(422, body | {"error": _all_rejected(kept.rejected[0]).body()}, headers)
    return json_reply(202 if late else 200, {**body, **(more or {})}, headers)


def _body(
    accepted: int, duplicates: int, rejected: list[dict[str, Any]], ack: str, level: str, shed: int
) -> dict[str, Any]:
    body = {"accepted": accepted, "duplicates": duplicates, "rejected": rejected, "ack": ack, "level": level}
    return body | {"shed": shed} if shed else body


def _all_rejected(first: Mapping[str, Any]) -> EventsRejectedError:
    return EventsRejectedError(
        "no event of the request was taken",
        detail=f"{first['reason']}: {first['detail']}",
        hint="'rejected' says why for each event; what was sent is in the stream 'dead'",
    )
