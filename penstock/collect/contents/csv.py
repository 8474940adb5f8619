"""Reads events out of CSV with a header: one event per row, each judged alone, with the column named that is wrong.

Python's own reader cuts the rows: it knows quotes, doubled quotes and line ends inside of them, and costs less than
typing the values does.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.collect.judging.incoming_events import DecodedEvents
from penstock.collect.judging.json_events import MOST_EVENTS, MOST_REJECTED, hopeless
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Refused, Rejection, refused, short, unknown_detail
from penstock.errors import BadBodyError, TooLargeError

_TOGETHER = 1_000
"""Rows that are typed in one call: about 2 ms."""
_encode = msgspec.json.Encoder().encode

Row = dict[str, str]


def decode_csv(judge: Judge, body: bytes, most_rows: int = MOST_EVENTS) -> DecodedEvents:
    """Raises `BadBodyError` when there is no header, or not of this stream."""
    decoded = _decoded(judge, body, alone=True, most_rows=most_rows)
    assert decoded is not None
    return decoded


def decode_csv_whole(judge: Judge, body: bytes) -> DecodedEvents | None:
    """The same; None when rows must be judged alone, which takes six times as long."""
    return _decoded(judge, body, alone=False)


def csv_header(body: bytes) -> list[str]:
    """The names in its first line; none, where it cannot be read."""
    try:
        text = body.split(b"\n", 1)[0].decode("utf-8-sig")
        return [name.strip() for name in next(csv.reader([text]), [])]
    except (UnicodeDecodeError, csv.Error):
        return []


def _decoded(judge: Judge, body: bytes, *, alone: bool, most_rows: int = MOST_EVENTS) -> DecodedEvents | None:
    texts = judge.texts
    names, rows = _rows(body, most_rows)
    undeclared = [name for name in names if not texts.declared(name)]
    _check_header(judge, names, undeclared)
    events = _RowEvents(judge, names, undeclared, small=len(body) <= judge.limits.event_bytes)
    for start in range(0, len(rows), _TOGETHER):
        if not events.take(start, rows[start : start + _TOGETHER], alone=alone):
            return None
    return DecodedEvents(events.events, events.raw(rows), events.rejections, events.unknown, events.places)


def _rows(body: bytes, most_rows: int) -> tuple[list[str], list[list[str]]]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad(f"it is not UTF-8: {error}") from None
    csv.field_size_limit(len(text) + 1)  # the body is bounded already
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    try:
        names = [name.strip() for name in next(reader, [])]
        for row in reader:
            if row:
                rows.append(row)
            if len(rows) > most_rows:
                raise TooLargeError(f"the body holds more than {most_rows} events", hint="send several bodies")
    except csv.Error as error:
        raise _bad(f"line {reader.line_num}: {error}") from None
    return names, rows


def _check_header(judge: Judge, names: Sequence[str], undeclared: list[str]) -> None:
    if not names or len(set(names)) < len(names):
        raise _bad("its header names a column twice" if names else "it has no header")
    if len(undeclared) == len(names):
        raise _bad(f"its header names no field of the stream: {short(', '.join(names))}")
    if undeclared and judge.stream.unknown == "reject":
        raise _bad(unknown_detail(undeclared))


class _RowEvents:
    """What the rows have become so far."""

    def __init__(self, judge: Judge, names: list[str], undeclared: list[str], *, small: bool) -> None:
        """`small`: the whole body is not too large for one event."""
        self._judge, self._names, self._undeclared = judge, names, undeclared
        self._texts, self._small = judge.texts, small
        self._plain = judge.texts.are_plain(names)
        self.events: list[Any] = []
        self.places: list[int] = []
        self.rejections: list[Rejection] = []
        self.unknown: list[str | None] | None = [] if judge.stream.unknown == "keep" else None

    def raw(self, rows: list[list[str]]) -> Any:
        return lambda place: self._texts.raw(dict(zip(self._names, rows[place], strict=False)))

    def take(self, start: int, rows: list[list[str]], *, alone: bool) -> bool:
        """False when they must be judged alone and may not."""
        whole = [dict(zip(self._names, row, strict=False)) for row in rows]
        try:
            plain = self._plain and not any("" in row for row in rows)
            events = self._texts.events(whole, plain=plain) if self._all_fit(rows) else None
        except msgspec.ValidationError:
            events = None
        if events is not None:
            self._add(events, range(start, start + len(rows)), whole)
        elif alone:
            self._take_each(start, rows, whole)
        return events is not None or alone

    def _all_fit(self, rows: list[list[str]]) -> bool:
        if set(map(len, rows)) != {len(self._names)}:
            return False
        return self._small or not any(map(self._too_large, rows))

    def _too_large(self, row: list[str]) -> bool:
        return sum(map(len, row)) > self._judge.limits.event_bytes

    def _take_each(self, start: int, rows: list[list[str]], whole: list[Row]) -> None:
        for place, (row, texts) in enumerate(zip(rows, whole, strict=True), start):
            try:
                self._add([self._event(row, texts)], [place], [texts])
            except (msgspec.ValidationError, Refused) as error:
                why = self._judge.said(self._texts.blamed(refused(error), texts))
                self.rejections.append(Rejection(place, why.reason, why.detail, self._texts.raw(texts)))
                if len(self.rejections) > MOST_REJECTED:
                    raise hopeless(why.reason, why.detail) from None

    def _event(self, row: list[str], texts: Row) -> Any:
        if len(row) != len(self._names):
            raise Refused("malformed", f"the row: expected {len(self._names)} columns, found {len(row)}")
        if self._too_large(row):
            most = self._judge.limits.event_bytes
            raise Refused("too_large", f"the event: expected at most {most} bytes, found {sum(map(len, row))}")
        return self._texts.event(texts)

    def _add(self, events: list[Any], places: Sequence[int], rows: list[Row]) -> None:
        self.events += events
        self.places += places
        if self.unknown is not None:
            self.unknown += [_kept(row, self._undeclared) for row in rows]


def _kept(row: Row, undeclared: list[str]) -> str | None:
    fields = {name: row[name] for name in undeclared if row.get(name)}
    return _encode(fields).decode() if fields else None


def _bad(detail: str) -> BadBodyError:
    return BadBodyError(
        "the body is not CSV of this stream",
        detail=detail,
        hint="send UTF-8 with commas, and a first line with the names of the fields; quote what holds commas or lines",
    )
