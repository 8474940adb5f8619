"""Reads CloudEvents 1.0 over HTTP: one in a body, many in a body, or attributes in headers and the data as the body.

`source` and `id` together make an event unique where the stream says `id="cloudevent"`; `time` is the event's time
where the stream names no field for it; `data` is the event. The other attributes are not stored, except that a stream
with `unknown="keep"` keeps them in `_unknown`, each as `ce-<name>`.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.json_events import MOST_REJECTED, hopeless, split
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Refused, Rejection, refused, short
from penstock.collect.judging.time_columns import FIRST_US, LAST_US
from penstock.errors import BadBodyError

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode
BAD_ENVELOPE: Final = "bad_cloudevent"
"""The reason of a letter whose envelope could not be opened."""
_VERSION = "specversion"
_REQUIRED = ("id", "source", "type")
_OURS = ("specversion", "id", "source", "data", "data_base64")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ESCAPED = re.compile(r"\\(.)")
_LONGEST = 1_000
"""Characters of a source or an id."""


class Envelope(msgspec.Struct, frozen=True):
    """What a CloudEvent says of its event, and the event's JSON."""

    id: str
    time_us: int | None
    data: bytes
    kept: dict[str, msgspec.Raw]


def decode_cloudevents(judge: Judge, body: bytes) -> DecodedEvents:
    """Raises `BadBodyError` when the body is not JSON."""
    return decode_envelopes(judge, split(body, "json"))


def is_envelope(judge: Judge, raw: bytes) -> bool:
    """Whether this is a CloudEvent and no event of the class itself."""
    if _VERSION in judge.stream.events.names:
        return False
    try:
        members = _decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return _VERSION in members and all(name in members for name in _REQUIRED)


def decode_envelopes(judge: Judge, raws: Sequence[bytes]) -> DecodedEvents:
    """CloudEvents that were cut apart already."""
    places, envelopes, rejections = _opened(raws)
    judged = judge.decode_each([envelope.data for envelope in envelopes])
    rejections += [Rejection(places[r.index], r.reason, r.detail, raws[places[r.index]]) for r in judged.rejections]
    rows = range(len(judged.events)) if judged.places is None else judged.places
    taken = [envelopes[row] for row in rows]
    return DecodedEvents(
        judged.events,
        raws.__getitem__,
        sorted(rejections, key=lambda rejection: rejection.index),
        None if judge.stream.unknown != "keep" else [*_kept(taken, judged.unknown)],
        [places[row] for row in rows],
        [envelope.id for envelope in taken],
        [envelope.time_us for envelope in taken],
    )


def _opened(raws: Sequence[bytes]) -> tuple[list[int], list[Envelope], list[Rejection]]:
    places: list[int] = []
    envelopes: list[Envelope] = []
    rejections: list[Rejection] = []
    for place, raw in enumerate(raws):
        try:
            envelopes.append(_open(raw))
            places.append(place)
        except Exception as error:
            why = error if isinstance(error, Refused) else refused(error)
            rejections.append(Rejection(place, BAD_ENVELOPE, why.detail, raw))
            if len(rejections) > MOST_REJECTED:
                raise hopeless(why.reason, why.detail) from None
    return places, envelopes, rejections


def _open(raw: bytes) -> Envelope:
    members = {name: value for name, value in _decode(raw).items() if name == "data" or bytes(value) != b"null"}
    version = _attribute(members, _VERSION)
    if version != "1.0":
        raise _wrong(_VERSION, "1.0", version)
    id, source, _ = (_attribute(members, name) for name in _REQUIRED)
    kept = {f"ce-{name}": value for name, value in members.items() if name not in _OURS}
    return Envelope(_encode([source, id]).decode(), _time(members), _data(members), kept)


def _attribute(members: Mapping[str, msgspec.Raw], name: str) -> str:
    if name not in members:
        raise Refused(BAD_ENVELOPE, f"'{name}': expected a value, found nothing")
    try:
        text = _text.decode(members[name])
    except msgspec.ValidationError:
        raise _wrong(name, "a string", bytes(members[name]).decode(errors="replace")) from None
    if not 0 < len(text) <= _LONGEST:
        raise _wrong(name, f"1 to {_LONGEST} characters", text)
    return text


def _time(members: Mapping[str, msgspec.Raw]) -> int | None:
    if "time" not in members:
        return None
    text = _attribute(members, "time")
    try:
        moment = dt.datetime.fromisoformat(text.upper())  # RFC 3339 has `t` and `z` too
        time_us = (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)) - _EPOCH
    except (ValueError, OverflowError):
        raise _wrong("time", "an RFC 3339 time", text) from None
    return min(max(time_us // dt.timedelta(microseconds=1), FIRST_US), LAST_US)


def _data(members: Mapping[str, msgspec.Raw]) -> bytes:
    """The event's JSON."""
    kind = _attribute(members, "datacontenttype") if "datacontenttype" in members else "application/json"
    media = kind.partition(";")[0].strip().lower()
    if media not in ("application/json", "text/json") and not media.endswith("+json"):
        raise _wrong("datacontenttype", "application/json", kind)
    if "data" in members and "data_base64" in members:
        raise Refused(BAD_ENVELOPE, "'data_base64': expected nothing beside 'data'")
    if "data" in members:
        return bytes(members["data"])
    if "data_base64" not in members:
        raise Refused(BAD_ENVELOPE, "'data': expected a value, found nothing")
    text = _text.decode(members["data_base64"])
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong("data_base64", "base64", text) from None


def _wrong(name: str, expected: str, found: str) -> Refused:
    return Refused(BAD_ENVELOPE, f"'{name}': expected {expected}, found {short(repr(found))}")


def _kept(taken: Sequence[Envelope], unknown: Sequence[str | None] | None) -> Iterator[str | None]:
    """The attributes that are not stored elsewhere, beside the event's own undeclared fields."""
    for envelope, text in zip(taken, unknown or [None] * len(taken), strict=True):
        fields: dict[str, Any] = _decode(text) if text else {}
        whole = envelope.kept | fields
        yield _encode(whole).decode() if whole else None


# The binary mode


def is_binary(headers: Mapping[str, str]) -> bool:
    return "ce-specversion" in headers or "ce-id" in headers


def enveloped(headers: Mapping[str, str], body: bytes) -> bytes:
    """A CloudEvent whose attributes came in headers, as if it had come whole. Raises `BadBodyError`."""
    members: dict[str, Any] = {
        name.lower().removeprefix("ce-"): _header_text(name, unquote_to_bytes(_raw(_unquoted(value))))
        for name, value in headers.items()
        if name.lower().startswith("ce-")
    }
    if kind := headers.get("Content-Type"):
        members["datacontenttype"] = _header_text("Content-Type", _raw(kind))
    if body:
        members["data_base64"] = base64.b64encode(body).decode()
    return _encode(members)


def _raw(value: str) -> bytes:
    """As it was sent."""
    return value.encode(errors="surrogateescape")


def _header_text(name: str, value: bytes) -> str:
    """Not with replacement characters: two ids that differ would become one, and the second event a duplicate."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadBodyError(
            f"the header '{name}' of the CloudEvent is not UTF-8",
            detail=f"'{name}': expected percent-encoded UTF-8, found {short(repr(value))}",
            hint="encode what is not printable ASCII as UTF-8, then each byte as %XX",
        ) from None


def _unquoted(value: str) -> str:
    """A header's value without the double quotes that it may stand in."""
    return _ESCAPED.sub(r"\1", value[1:-1]) if len(value) > 1 and value[0] == value[-1] == '"' else value
