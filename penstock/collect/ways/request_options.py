"""Reads what a request asks for in its query and headers: how sure, how long to wait, who sends, and when."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from aiohttp import web

from penstock.collect.judging.time_columns import FIRST_US, LAST_US
from penstock.errors import BadRequestError
from penstock.log.log import Producer
from penstock.route import waiting

AckLevel = Literal["none", "logged", "replicated", "applied"]
APPLIED_WAIT_S = 5.0
"""How long `ack=applied` waits unless the request says otherwise."""
_PRODUCER = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
PROMISE = "Penstock-Complete"
_LONGEST_ID = 200
_LARGEST = 2**53
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class PostOptions:
    """What one POST asks for."""

    level: AckLevel
    wait_s: float
    producer: Producer | None
    once: str | None
    """The Idempotency-Key."""
    reply: str | None
    """The view whose row the sender wants to see."""
    preferred: bool
    """It said `Prefer: respond-async` instead of `ack=none`."""
    sent_us: int | None
    promise: int | Literal["end"] | None = None
    """Of a numbered producer: nothing older comes from it, or nothing at all."""


def post_options(request: web.Request, most_s: float, *, replicates: bool = False) -> PostOptions:
    """`replicates`: whether the log does. Raises `BadRequestError` for what cannot be had, or not together."""
    headers = request.headers
    if not request.query_string and not any(name in headers for name in _ASKING):
        return _NOTHING_SPECIAL
    preferred = (
        "Prefer" in headers
        and _prefers_async(headers["Prefer"])
        and "ack" not in request.query
        and "reply" not in request.query
        and not any(name in headers for name in _ANSWERED)  # a preference that cannot be honoured is none
    )
    options = PostOptions(
        "none" if preferred else ack_level(request, replicates=replicates),
        wait_s(request, APPLIED_WAIT_S, most_s),
        producer_of(request),
        once_key(request),
        request.query.get("reply") if request.query_string else None,
        preferred,
        moment_us(headers, "Penstock-Sent") if "Penstock-Sent" in headers else None,
        _promise(headers[PROMISE]) if PROMISE in headers else None,
    )
    if options.promise is not None and options.producer is None:
        raise BadRequestError(f"{PROMISE} is for numbered producers", hint=f"send {', '.join(_PRODUCER)} with it")
    if options.producer is not None and options.once is not None:
        raise BadRequestError(
            "Idempotency-Key and Producer-Seq both make a request happen once", hint="send one of the two"
        )
    if options.level == "none":
        _refuse_without_answer(options)
    return options


_NOTHING_SPECIAL = PostOptions("logged", APPLIED_WAIT_S, None, None, None, False, None)
_ASKING = (*_PRODUCER, "Idempotency-Key", "Prefer", "Penstock-Sent", PROMISE)
"""Headers by which a request asks for something."""
_ANSWERED = (*_PRODUCER, "Idempotency-Key")
"""Those of them that need an answer."""


def _refuse_without_answer(options: PostOptions) -> None:
    wants = (
        ("a producer's sequence", options.producer),
        ("an Idempotency-Key", options.once),
        ("reply=", options.reply),
    )
    for what, value in wants:
        if value is not None:
            raise BadRequestError(f"{what} needs an answer", detail="ack=none", hint="use ack=logged with it")


def _prefers_async(text: str) -> bool:
    return any(part.strip().lower() == "respond-async" for part in text.split(","))


def once_key(request: web.Request) -> str | None:
    """The Idempotency-Key. It may stand in double quotes, as the header's draft has it."""
    text = request.headers.get("Idempotency-Key")
    if text is None:
        return None
    key = text.strip().removeprefix('"').removesuffix('"')
    if not key or len(key) > _LONGEST_ID or not key.isprintable():
        raise BadRequestError("Idempotency-Key is not a key", hint=f"use 1 to {_LONGEST_ID} printable characters")
    return key


def _promise(text: str) -> int | Literal["end"]:
    return "end" if text.strip() == "end" else moment_us({PROMISE: text}, PROMISE)


def moment_us(headers: Mapping[str, str], name: str) -> int:
    """Milliseconds since 1970, or RFC 3339."""
    text = headers[name]
    try:
        if text.lstrip("-").isdigit() and len(text) <= 16:
            sent_us = int(text) * 1000
        else:
            moment = dt.datetime.fromisoformat(text)
            aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
            sent_us = (aware - _EPOCH) // dt.timedelta(microseconds=1)
    except (ValueError, OverflowError):
        sent_us = LAST_US + 1
    if not FIRST_US <= sent_us <= LAST_US:
        raise BadRequestError(f"{name} '{text[:40]}' is not a time", hint="use milliseconds since 1970, or RFC 3339")
    return sent_us


def ack_level(request: web.Request, *, replicates: bool = False) -> AckLevel:
    """`?ack=`, `logged` unless given."""
    level = request.query.get("ack", "logged") if request.query_string else "logged"
    if level == "replicated" and not replicates:
        raise BadRequestError(
            "this log does not replicate",
            detail="ack=replicated",
            hint="use ack=logged, or run the app on a Kafka cluster of three brokers or more",
        )
    if level not in ("none", "logged", "replicated", "applied"):
        raise BadRequestError(f"ack='{level[:40]}' is not a level", hint="use none, logged or applied")
    return cast(AckLevel, level)


def wait_s(request: web.Request, default_s: float, most_s: float) -> float:
    """`?wait=` in seconds, within the server's own limit."""
    return waiting(request.query.get("wait") if request.query_string else None, default_s, most_s)


def producer_of(request: web.Request) -> Producer | None:
    """The producer's three headers; all of them or none."""
    headers = request.headers
    if "Producer-Id" not in headers and "Producer-Epoch" not in headers and "Producer-Seq" not in headers:
        return None
    missing = [name for name in _PRODUCER if name not in headers]
    if missing:
        raise BadRequestError(
            f"the header {' and '.join(missing)} is missing",
            hint=f"send {', '.join(_PRODUCER)} together, or none of them",
        )
    id = headers["Producer-Id"]
    if not id or len(id) > _LONGEST_ID or not id.isprintable():
        raise BadRequestError("Producer-Id is not a name", hint=f"use 1 to {_LONGEST_ID} printable characters")
    return Producer(id, _number(request, "Producer-Epoch"), _number(request, "Producer-Seq"))


def _number(request: web.Request, name: str) -> int:
    text = request.headers[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= _LARGEST):
        raise BadRequestError(f"{name} '{text[:40]}' is not a number", hint=f"use an integer from 0 to {_LARGEST}")
    return int(text)
