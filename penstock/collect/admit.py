"""Judges the events of one stream: from bytes to typed columns and rejections, with no effect on anything else.

1. Every event of a body is either a row or a rejection, in its place; none disappears.
2. A body is first decoded whole. Only when that fails is each event judged alone, so that one bad event costs its
   neighbours time but not their place.
3. What the columns cannot hold (an integer beyond 64 bits, a decimal with too many digits) is the event's fault and
   rejected here, never an error of the server.

Nothing here knows of HTTP, of the log or of other requests: `intake.py` joins the events of many requests and asks
for their columns once, because the cost of building columns lies in the calls, not in the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa

from penstock.collect.cutting import MOST_REJECTED, Form, Raws, lines_of, slices, split
from penstock.collect.nesting import count, deeper_than, opening_brackets
from penstock.collect.rejection import Refused, Rejection, concealed, refused, unknown_detail
from penstock.collect.system_columns import SystemColumns
from penstock.collect.unknown_fields import unknown_fields
from penstock.config import Limits
from penstock.declaration import StreamDef
from penstock.errors import BadBodyError
from penstock.schema import simple_type

_encode_raw = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Decoded:
    """Events of the right shape, and those that are not; `places` says where each event stood (None: one by one)."""

    events: list[Any]
    raw: Callable[[int], bytes]
    rejections: list[Rejection] = field(default_factory=list)
    unknown: list[str | None] | None = None
    places: list[int] | None = None

    @property
    def received(self) -> int:
        return len(self.events) + len(self.rejections)

    def place(self, row: int) -> int:
        return row if self.places is None else self.places[row]


@dataclass(frozen=True, slots=True)
class Built:
    """The columns of the events that fit them; `faults` names the others by their row."""

    batch: pa.RecordBatch
    rows: Sequence[int]
    """For each row of the batch the event that it came from."""
    faults: list[tuple[int, Refused]]


class Judge:
    """Knows one stream's class, its choices and the limits. Stateless: any thread may ask."""

    def __init__(self, stream: StreamDef, limits: Limits) -> None:
        self.stream = stream
        self._limits = limits
        self._one = msgspec.json.Decoder(stream.events.kind)
        self._many = msgspec.json.Decoder(list[stream.events.kind])  # type: ignore[name-defined]
        self._system = SystemColumns(stream)

    @cached_property
    def _undeclared(self) -> Callable[[bytes], dict[str, msgspec.Raw]] | None:
        return unknown_fields(self.stream.events.kind) if self.stream.unknown != "ignore" else None

    # From bytes to events

    def decode(self, body: bytes, form: Form) -> Decoded | None:
        """All events at once, in microseconds; None when some of them must be judged alone."""
        events = self._decode_whole(body, form) if self._undeclared is None else None
        return None if events is None else Decoded(events, Raws(body, form))

    def decode_apart(self, body: bytes, form: Form) -> Decoded:
        """Each event alone where it must be. Raises `BadBodyError` when the body as a whole is not JSON."""
        return self.decode_each(split(body, form))

    def decode_each(self, raws: Sequence[bytes]) -> Decoded:
        """Judge events that were cut apart already."""
        found = Decoded([], raws.__getitem__, [], None if self.stream.unknown != "keep" else [], [])
        for start, part in slices(raws):
            events = self._decode_lines(part) if self._undeclared is None else None
            if events is None:
                self._decode_alone(found, start, part)
            else:
                found.events += events
                found.places += range(start, start + len(part))  # type: ignore[operator]
        return found

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
        if not _is_utf8(body) or len(body) > self._limits.event_bytes:
            return False
        if opening_brackets(body) - (form == "json") - max(events - 1, 0) <= self._limits.nesting:
            return True
        return all(opening_brackets(raw) <= self._limits.nesting for raw in split(body, form))

    def _decode_alone(self, found: Decoded, start: int, raws: Sequence[bytes]) -> None:
        for place, raw in enumerate(raws, start):
            try:
                event = self._decode_one(raw)
                unknown = self._unknown_of(raw)
            except Exception as error:
                why = self._said(refused(error))
                found.rejections.append(Rejection(place, why.reason, why.detail, raw))
                if len(found.rejections) > MOST_REJECTED:
                    raise _hopeless(why) from None
            else:
                found.events.append(event)
                found.places.append(place)  # type: ignore[union-attr]
                if found.unknown is not None:
                    found.unknown.append(unknown)

    def _decode_one(self, raw: bytes) -> Any:
        limits = self._limits
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

    # From events to columns

    def build(
        self, events: Sequence[Any], unknown: Sequence[str | None] | None, received: Sequence[int]
    ) -> Built | None:
        """Columns of all events, `received` (microseconds) being one for each; None when some events do not fit."""
        try:
            batch = self._columns(events, unknown, received)
        except Exception:
            return None
        return self._without_future(Built(batch, range(len(events)), []))

    def build_apart(
        self, events: Sequence[Any], unknown: Sequence[str | None] | None, received: Sequence[int]
    ) -> Built:
        """Columns of the events that fit, after finding those that do not; slow when there are many."""
        faults = list(self._faults(range(len(events)), events, unknown, received))
        bad = {row for row, _ in faults}
        rows = [row for row in range(len(events)) if row not in bad]
        return self._without_future(Built(self._columns(*_pick(rows, events, unknown, received)), rows, faults))

    def _columns(
        self, events: Sequence[Any], unknown: Sequence[str | None] | None, received: Sequence[int]
    ) -> pa.RecordBatch:
        if not events:
            return pa.RecordBatch.from_pylist([], self.stream.stored)
        columns = self.stream.events.columns(events)
        kept = [pa.array(unknown, pa.string())] if unknown is not None else []
        system = self._system.build(events, [*columns, *kept], received)
        return pa.RecordBatch.from_arrays([*columns, *kept, *system], schema=self.stream.stored)

    def _without_future(self, built: Built) -> Built:
        ahead = self._system.ahead(built.batch)
        if not ahead:
            return built
        faults = [*built.faults, *((built.rows[at], self._said(why)) for at, why in ahead)]
        kept = sorted(set(range(built.batch.num_rows)) - {at for at, _ in ahead})
        batch = built.batch.take(pa.array(kept, pa.int64()))
        return Built(batch, [built.rows[at] for at in kept], sorted(faults, key=lambda fault: fault[0]))

    def _faults(self, rows: range, *what: Any) -> Iterator[tuple[int, Refused]]:
        """The rows that do not fit, found by halving until each stands alone."""
        try:
            self._columns(*_pick(rows, *what))
        except Exception as error:
            if len(rows) == 1:
                yield rows[0], self._said(self._blame(what[0][rows[0]], error))
            else:
                yield from self._faults(rows[: len(rows) // 2], *what)
                yield from self._faults(rows[len(rows) // 2 :], *what)

    def _blame(self, event: Any, error: Exception) -> Refused:
        """The fault, with the name of the field that has it."""
        why = refused(error)
        nothing = dict.fromkeys(self.stream.events.names)
        for name in () if isinstance(error, Refused) else nothing:
            try:
                self.stream.events.columns([SimpleNamespace(**nothing | {name: getattr(event, name)})])
            except Exception:
                kind = simple_type(self.stream.events.arrow.field(name).type)
                found = _short(repr(getattr(event, name)))
                return Refused(why.reason, f"'{name}': expected what fits {kind}, found {found}")
        return why

    def _said(self, why: Refused) -> Refused:
        """What may be said of a fault: never the value of a private field."""
        return concealed(why, self.stream.events.kind) if self.stream.events.private else why


def _hopeless(last: Refused) -> BadBodyError:
    return BadBodyError(
        f"more than {MOST_REJECTED} events of the body were rejected",
        detail=f"the last one: {last.reason}: {last.detail}",
        hint="see whether this is the right stream, or send smaller bodies",
    )


def _pick(
    rows: Sequence[int], events: Sequence[Any], unknown: Sequence[str | None] | None, received: Sequence[int]
) -> tuple[list[Any], list[str | None] | None, list[int]]:
    kept = None if unknown is None else [unknown[row] for row in rows]
    return [events[row] for row in rows], kept, [received[row] for row in rows]


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _one_per_line(body: bytes, events: int) -> bool:
    """Whether no line holds two events, and no event takes two lines."""
    return events == count(body, b"\n") + (not body.endswith(b"\n")) or events == len(lines_of(body))


def _is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
