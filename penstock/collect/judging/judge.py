"""Judges the events of one stream: from bytes to typed events and rejections, with no effect on anything else.

1. Every event of a body is either a row or a rejection, in its place; none disappears.
2. A body is first decoded whole. Only when that fails is each event judged alone, so that one bad event costs its
   neighbours time but not their place.

Nothing here knows of HTTP, of the log or of other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect as mi

from penstock.collect.judging.event_columns import EventColumns
from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.json_events import (
    MOST_REJECTED,
    Form,
    Raws,
    count,
    deeper_than,
    hopeless,
    lines_of,
    opening_brackets,
    slices,
    split,
)
from penstock.collect.judging.rejection import Refused, Rejection, completed, concealed, refused, unknown_detail
from penstock.collect.judging.typed_texts import TypedTexts
from penstock.config import Limits
from penstock.declaration import StreamDef

_encode_raw = msgspec.json.Encoder().encode


class _Judgement(NamedTuple):
    """What has become of the events so far."""

    events: list[Any]
    rejections: list[Rejection]
    places: list[int]
    unknown: list[str | None]


class Judge:
    """Knows one stream's class, its choices and the limits. Stateless: any thread may ask."""

    def __init__(self, stream: StreamDef, limits: Limits) -> None:
        self.stream = stream
        self.limits = limits
        self._one = msgspec.json.Decoder(stream.events.kind)
        self._many = msgspec.json.Decoder(list[stream.events.kind])  # type: ignore[name-defined]
        self._columns = EventColumns(stream)
        self.build, self.build_apart = self._columns.build, self._columns.build_apart

    @cached_property
    def texts(self) -> TypedTexts:
        """How its events are read from texts."""
        return TypedTexts(self.stream.events.kind)

    @cached_property
    def _undeclared(self) -> Callable[[bytes], dict[str, msgspec.Raw]] | None:
        return unknown_fields(self.stream.events.kind) if self.stream.unknown != "ignore" else None

    # From bytes to events

    def decode(self, body: bytes, form: Form) -> DecodedEvents | None:
        """All events at once, in microseconds; None when some of them must be judged alone."""
        events = self._decode_whole(body, form) if self._undeclared is None else None
        return None if events is None else DecodedEvents(events, Raws(body, form))

    def decode_apart(self, body: bytes, form: Form) -> DecodedEvents:
        """Each event alone where it must be. Raises `BadBodyError` when the body as a whole is not JSON."""
        return self.decode_each(split(body, form))

    def decode_each(self, raws: Sequence[bytes]) -> DecodedEvents:
        """Judge events that were cut apart already."""
        so_far = _Judgement([], [], [], [])
        for start, part in slices(raws):
            events = self._decode_lines(part) if self._undeclared is None else None
            if events is None:
                self._decode_alone(so_far, start, part)
            else:
                so_far.events.extend(events)
                so_far.places.extend(range(start, start + len(part)))
        unknown = so_far.unknown if self.stream.unknown == "keep" else None
        return DecodedEvents(so_far.events, raws.__getitem__, so_far.rejections, unknown, so_far.places)

    def _decode_whole(self, body: bytes, form: Form) -> list[Any] | None:
        try:
            if form == "lines":
                events = self._one.decode_lines(body)
                whole = _one_per_line(body, len(events))
            elif body[:1] == b"[" or body.lstrip()[:1] == b"[":
                events, whole = self._many.decode(body), True
            else:
                events, whole = [self._one.decode(body)], True
        except Exception:
            return None
        return events if whole and self._within_limits(body, form, len(events)) else None

    def _decode_lines(self, raws: Sequence[bytes]) -> list[Any] | None:
        body = b"\n".join(raws)
        events = self._decode_whole(body, "lines")
        return events if events is not None and len(events) == len(raws) else None

    def _within_limits(self, body: bytes, form: Form, events: int) -> bool:
        """Whether no event can be too large, too deep or ill-encoded, asked of all of them at once."""
        if not _is_utf8(body) or len(body) > self.limits.event_bytes:
            return False
        if opening_brackets(body) - (form == "json") - max(events - 1, 0) <= self.limits.nesting:
            return True
        return all(opening_brackets(raw) <= self.limits.nesting for raw in split(body, form))

    def _decode_alone(self, so_far: _Judgement, start: int, raws: Sequence[bytes]) -> None:
        for place, raw in enumerate(raws, start):
            try:
                event = self._decode_one(raw)
                unknown = self._unknown_of(raw)
            except Exception as error:
                why = self.said(self._completed(refused(error), raw))
                so_far.rejections.append(Rejection(place, why.reason, why.detail, raw))
                if len(so_far.rejections) > MOST_REJECTED:
                    raise hopeless(why.reason, why.detail) from None
            else:
                so_far.events.append(event)
                so_far.places.append(place)
                so_far.unknown.append(unknown)

    def said(self, why: Refused) -> Refused:
        """What may be said of a fault: never the value of a private field."""
        return concealed(why, self.stream.events.kind) if self.stream.events.private else why

    def _completed(self, why: Refused, raw: bytes) -> Refused:
        if why.expected is None or why.found is not None:
            return why
        return completed(why, self.stream.events.kind, raw)

    def _decode_one(self, raw: bytes) -> Any:
        limits = self.limits
        if len(raw) > limits.event_bytes:
            raise Refused("too_large", f"the event: expected at most {limits.event_bytes} bytes, found {len(raw)}")
        raw.decode()
        if deeper_than(raw, limits.nesting):
            raise Refused("too_deep", f"the event: expected at most {limits.nesting} levels of nesting, found more")
        return self._one.decode(raw)

    def _unknown_of(self, raw: bytes) -> str | None:
        unknown = self._undeclared(raw) if self._undeclared else None
        if not unknown:
            return None
        if self.stream.unknown == "reject":
            raise Refused("unknown_field", unknown_detail(list(unknown)))
        return _encode_raw(unknown).decode()


def _one_per_line(body: bytes, events: int) -> bool:
    """Whether no line holds two events, and no event takes two lines.

    A line's end is part of no string, and `}` before `{` of no event: lines that all begin and end with a bracket hold
    whole events, so that as many events as lines are one in each. Counting lines alone is not enough: one that is empty
    makes up for two events in another.
    """
    if events == count(body, b"\n") + (not body.endswith(b"\n")) == body.count(b"}\n{") + 1:
        return True
    lines = lines_of(body)
    return events == len(lines) and all(line[:1] == b"{" and line[-1:] == b"}" for line in lines)


def _is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# Fields that the class does not declare. A finder is built once per class, from what msgspec knows of it; only streams
# with `unknown="keep"` or `"reject"` pay for it.

Unknown = Iterator[tuple[str, msgspec.Raw]]
Finder = Callable[[bytes | msgspec.Raw, str], Unknown]

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])


def unknown_fields(kind: type[msgspec.Struct]) -> Callable[[bytes], dict[str, msgspec.Raw]]:
    """A function from an event's JSON to its undeclared fields, by path (`extra`, `group.extra`, `topics[0].extra`).

    >>> class Order(msgspec.Struct):
    ...     amount: int
    >>> sorted(unknown_fields(Order)(b'{"amount": 1, "note": "x"}'))
    ['note']
    """
    find = _finder(mi.type_info(kind))
    return lambda raw: dict(find(raw, "")) if find else {}


def _finder(info: mi.Type) -> Finder | None:
    """How to look into a value of this type; None where nothing undeclared can be."""
    if isinstance(info, mi.Metadata):
        return _finder(info.type)
    if isinstance(info, mi.UnionType):
        return next((find for find in map(_finder, info.types) if find), None)
    if isinstance(info, mi.StructType):
        return _in_struct(info)
    if isinstance(info, mi.CollectionType):
        find = _finder(info.item_type)
        return _in_array(find) if find else None
    if isinstance(info, mi.DictType):
        find = _finder(info.value_type)
        return _in_map(find) if find else None
    return None


def _in_struct(info: mi.StructType) -> Finder | None:
    if info.array_like:
        return None
    fields = {field.encode_name: _finder(field.type) for field in info.fields}
    if info.tag_field:
        fields[info.tag_field] = None

    def find(raw: bytes | msgspec.Raw, path: str) -> Unknown:
        for name, value in _members(raw).items():
            where = f"{path}.{name}" if path else name
            if name not in fields:
                yield where, value
            elif inner := fields[name]:
                yield from inner(value, where)

    return find


def _in_array(inner: Finder) -> Finder:
    def find(raw: bytes | msgspec.Raw, path: str) -> Unknown:
        values = _array.decode(raw) if bytes(memoryview(raw)[:1]) == b"[" else []
        for index, value in enumerate(values):
            yield from inner(value, f"{path}[{index}]")

    return find


def _in_map(inner: Finder) -> Finder:
    def find(raw: bytes | msgspec.Raw, path: str) -> Unknown:
        for name, value in _members(raw).items():
            yield from inner(value, f"{path}.{name}")

    return find


def _members(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The members of an object; none of a null, which stands where a field is optional."""
    return _object.decode(raw) if bytes(memoryview(raw)[:1]) != b"n" else {}
