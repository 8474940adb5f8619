"""Turns outcomes and errors into HTTP replies, so that every reply of the door has the shape of the wire contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from penstock import protocol
from penstock.collect.intake import Outcome
from penstock.errors import EventsRejectedError, PenstockError, SequenceGapError

ACK = "Penstock-Ack"
EXPECTED = "Producer-Expected-Seq"
_RETRY_AFTER_S = {503: "1", 507: "10"}
"""A full queue drains within a second; a full disk waits for a person or for retention."""


def json_reply(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=protocol.encode(body), headers={"Content-Type": "application/json", **(headers or {})}
    )


def error_reply(error: PenstockError) -> web.Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif error.status in _RETRY_AFTER_S:
        headers["Retry-After"] = _RETRY_AFTER_S[error.status]
    if isinstance(error, SequenceGapError):
        headers[EXPECTED] = str(error.expected)
    return json_reply(error.status, {"error": error.body()}, headers)


def outcome_reply(outcome: Outcome, level: str, expected: int | None) -> web.Response:
    """200, 422 when every event was rejected, or 204 for a producer's number that was taken before."""
    token = outcome.token
    headers = {ACK: token} if expected is None else {ACK: token, EXPECTED: str(expected)}
    if outcome.repeated:
        return web.Response(status=204, headers=headers)
    body = {
        "accepted": outcome.accepted,
        "duplicates": outcome.duplicates,
        "rejected": [rejection.body() for rejection in outcome.rejections],
        "ack": token,
        "level": level,
    }
    if outcome.shed:
        body["shed"] = outcome.shed
    if outcome.rejections and not outcome.accepted and not outcome.shed and not outcome.duplicates:
        return json_reply(422, body | {"error": _all_rejected(outcome).body()}, headers)
    return json_reply(200, body, headers)


def _all_rejected(outcome: Outcome) -> EventsRejectedError:
    first = outcome.rejections[0]
    return EventsRejectedError(
        "no event of the request was taken",
        detail=f"{first.reason}: {first.detail}",
        hint="'rejected' says why for each event; what was sent is in the stream 'dead'",
    )
