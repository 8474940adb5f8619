"""The wire contract as code: how typed values look in JSON, and the messages that a subscriber gets.

Timestamps are RFC 3339 in UTC with milliseconds, a window is `{"start", "end"}`, decimals are strings, binary is
base64, integers beyond 2^53 are strings, NaN and infinities are null. Server and clients import this, and neither
imports the other.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

_SAFE = 2**53
_encoder = msgspec.json.Encoder()

Message = dict[str, Any]
encode: Callable[[Any], bytes] = _encoder.encode


def wire(value: Any) -> Any:
    """A typed value as what goes into JSON.

    >>> wire(2**60), wire(float("nan")), wire(Decimal("1.50"))
    ('1152921504606846976', None, '1.50')
    """
    convert = _BY_TYPE.get(type(value))
    return value if convert is None else convert(value)


def _datetime(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    return value.astimezone(dt.UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _float(value: float) -> float | None:
    return value if math.isfinite(value) else None


def wire_int(value: int) -> int | str:
    """As `wire` does it, for what is known to be an integer."""
    return value if -_SAFE <= value <= _SAFE else str(value)


_BY_TYPE: dict[type, Callable[[Any], Any]] = {
    int: wire_int,
    float: _float,
    dt.datetime: _datetime,
    dt.date: lambda value: value.isoformat(),
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: base64.b64encode(value).decode(),
    dict: lambda value: {key: wire(item) for key, item in value.items()},
    list: lambda value: [wire(item) for item in value],
    tuple: lambda value: [wire(item) for item in value],
}


def wire_row(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """A row as a JSON object."""
    return {name: wire(value) for name, value in zip(names, row, strict=True)}


def retry_after_s(text: str | None, now_s: float) -> float | None:
    """What a `Retry-After` header says: seconds, or a date seen from `now_s`; None for what is neither.

    >>> retry_after_s("120", 0), retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 0), retry_after_s("soon", 0)
    (120.0, 60.0, None)
    """
    if text and text.isascii() and text.isdigit():
        return float(text[:12])
    moment_s = http_date_s(text)
    return None if moment_s is None else max(0.0, moment_s - now_s)


def http_date_s(text: str | None) -> float | None:
    """A date of an HTTP header in seconds since 1970; None for what is none."""
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, OverflowError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


def snapshot(
    view: str, position: str, rows: Sequence[Any], part: int = 1, parts: int = 1, complete: str | None = None
) -> Message:
    """`complete`, here and in the others: the time before which nothing comes to the view any more, where there is
    one."""
    message: Message = {"type": "snapshot", "view": view, "position": position, "rows": rows}
    message |= {} if complete is None else {"complete": complete}
    return message if parts == 1 else message | {"part": part, "parts": parts}


def changes(
    view: str,
    position: str,
    upserts: Sequence[Any],
    deletes: Sequence[Any],
    accepted: str | None = None,
    corrected: Sequence[Any] = (),
    complete: str | None = None,
) -> Message:
    """One batch. `accepted` is when the newest event that it absorbed was taken at the door: freshness begins there.
    `corrected` are the keys of rows of closed windows that late events have changed."""
    message: Message = {
        "type": "changes",
        "view": view,
        "position": position,
        "upserts": upserts,
        "deletes": deletes,
    }
    if accepted is not None:
        message["accepted"] = accepted
    if complete is not None:
        message["complete"] = complete
    if corrected:
        message["corrected"] = corrected
    return message


def reset(reason: str) -> Message:
    return {"type": "reset", "reason": reason}


def position_moved(position: str, complete: str | None = None) -> Message:
    message: Message = {"type": "position", "position": position}
    return message if complete is None else message | {"complete": complete}


def subscribed(position: str) -> Message:
    return {"type": "subscribed", "position": position}


def stall(behind: Mapping[str, Any]) -> Message:
    """How far behind a slow subscriber is: `batches` (of a stream `events`) that it was not sent, `bytes` that were not
    read yet, and for how many `seconds`."""
    return {"type": "stall", "behind": dict(behind)}


def error(body: Mapping[str, Any]) -> Message:
    return {"type": "error", "error": dict(body)}
