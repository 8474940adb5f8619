"""Takes events in as columns, the fast lane: no event is touched by Python unless something is wrong with it.

1. Columns are matched by name and brought under the stored types. Those that are missing get their default, and so does
   a null where the field has a default and may not be null.
2. Rows that may be wrong are found by whole columns; each of them is then judged as the JSON that it would have been,
   so that the reasons are the same, and this JSON is what `dead` keeps.
3. If a suspected row turns out to be right, or the class asks for what columns cannot tell, all rows go that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import msgspec.inspect as mi
import numpy as np
import pyarrow as pa

from penstock.collect.contents.arrow_columns import (
    can_tell,
    check_columns,
    fit,
    refuse_undeclared,
    suspects,
    undeclared,
)
from penstock.collect.contents.arrow_stream import read_stream
from penstock.collect.judging.incoming_events import ArrivedEvents, DecodedEvents, Mask
from penstock.collect.judging.json_events import MOST_REJECTED, hopeless
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Rejection
from penstock.evolution import default_of

_encode = msgspec.json.Encoder(enc_hook=str).encode


def decode_arrow(judge: Judge, body: bytes) -> DecodedEvents:
    """Raises `BadBodyError` and `TooLargeError`, as for any body."""
    return decode_table(judge, read_stream(body, judge.limits.body_bytes))


def decode_table(judge: Judge, table: pa.Table) -> DecodedEvents:
    """Columns that were read already. Raises `BadBodyError` where they are not those of the class."""
    kept = _check(judge, table.schema)
    info = mi.type_info(judge.stream.events.kind)
    if kept or not can_tell(info):
        return judge.decode_each(_rows_as_json(table))
    assert isinstance(info, mi.StructType)
    return _Lane(judge, table, info).run()


def _check(judge: Judge, given: pa.Schema) -> bool:
    """Whether there are columns to keep beside the declared ones, which only event by event can be done."""
    wanted = judge.stream.events.arrow
    check_columns(given, wanted)
    if judge.stream.unknown == "ignore":
        return False
    paths = list(undeclared(given, wanted))
    if paths and judge.stream.unknown == "reject":
        refuse_undeclared(paths)
    return bool(paths)


class _Lane:
    """One body on its way."""

    def __init__(self, judge: Judge, table: pa.Table, info: mi.StructType) -> None:
        self._judge, self._table, self._info = judge, table, info
        self._fields = judge.stream.events.fields

    def run(self) -> DecodedEvents:
        alive = np.arange(self._table.num_rows)
        columns, bad = self._columns(self._table)
        wrong: list[int] = []
        while bad.any():
            wrong += alive[bad].tolist()
            alive = alive[~bad]
            columns, bad = self._columns(self._table.take(pa.array(alive)))
        rejections = self._judged(sorted(wrong))
        if rejections is None:
            return self._judge.decode_each(_rows_as_json(self._table))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._judge.stream.events.arrow)
        places = alive.tolist() if wrong else None
        return DecodedEvents(range(len(alive)), self._raw, rejections, None, places, columns=batch)

    def _columns(self, table: pa.Table) -> tuple[list[pa.Array], Mask]:
        """The columns under their types, and the rows that may not stay; if there are any, the columns mean nothing."""
        bad = np.zeros(table.num_rows, np.bool_)
        columns = []
        for field, declared in zip(self._fields, self._info.fields, strict=True):
            index = table.schema.get_field_index(field.name)
            sent = _whole(table.column(index)) if index >= 0 else None
            try:
                column = _filled(fit(sent, field, table.num_rows), field)
            except (pa.ArrowInvalid, OverflowError):
                assert sent is not None
                _mark_unfit(sent, field, 0, bad)
                continue
            doubts = suspects(column, declared.type, self._judge.limits.event_bytes)
            if doubts is not None:
                bad |= doubts
            columns.append(column)
        return columns, bad

    def _judged(self, rows: Sequence[int]) -> list[Rejection] | None:
        """Why each of these rows is rejected; None when one of them is not."""
        raws = [self._raw(row) for row in rows[: MOST_REJECTED + 1]]
        decoded = self._judge.decode_each(raws)
        reasons = {r.index: (r.reason, r.detail) for r in decoded.rejections}
        if decoded.events:
            built = self._judge.build_apart(ArrivedEvents(decoded.events, [0] * len(decoded.events)))
            reasons |= {decoded.place(row): (why.reason, why.detail) for row, why in built.faults if _stays(why.reason)}
        if len(reasons) < len(raws):
            return None
        if len(rows) > MOST_REJECTED:
            raise hopeless(*reasons[0])
        return [Rejection(rows[at], *reasons[at], raws[at]) for at in range(len(rows))]

    def _raw(self, row: int) -> bytes:
        return _rows_as_json(self._table.slice(row, 1))[0]


def _stays(reason: str) -> bool:
    """Whether this fault has nothing to do with when the event came."""
    return reason != "from_the_future"


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])


def _filled(column: pa.Array, field: pa.Field) -> pa.Array:
    default = default_of(field) if column.null_count else None
    return column.fill_null(default) if default is not None and default.is_valid else column


def _mark_unfit(given: pa.Array, field: pa.Field, start: int, bad: Mask) -> None:
    """Mark the rows whose value does not fit, found by halving until each stands alone."""
    try:
        fit(pa.concat_arrays([given]), field, len(given))
    except (pa.ArrowInvalid, OverflowError):
        if len(given) == 1:
            bad[start] = True
            return
        half = len(given) // 2
        _mark_unfit(given.take(pa.array(range(half))), field, start, bad)
        _mark_unfit(given.take(pa.array(range(half, len(given)))), field, start + half, bad)


# Rows as JSON


def _rows_as_json(table: pa.Table) -> list[bytes]:
    try:
        rows = table.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError, pa.ArrowException):
        rows = [_row(table, row) for row in range(table.num_rows)]
    return [_encode(_present(row)) for row in rows]


def _row(table: pa.Table, row: int) -> dict[str, Any]:
    return {name: _value(column[row]) for name, column in zip(table.column_names, table.columns, strict=True)}


def _value(scalar: pa.Scalar) -> Any:
    """A value that Python cannot hold (a year beyond its calendar) stays a number as text."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(scalar.cast(pa.int64()).as_py())


def _present(value: Any) -> Any:
    """Without nulls in objects: where a column has nothing, the event has no such field."""
    if isinstance(value, dict):
        return {name: _present(inner) for name, inner in value.items() if inner is not None}
    return [_present(item) for item in value] if isinstance(value, list) else value
