"""Rows that say whether their window can still change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock.change import DELETE, OP, UPSERT
from penstock.flows.final_rows import IS_FINAL, OpenRows
from penstock.schema import TIMESTAMP

WINDOW = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])
SCHEMA = pa.schema([("window", WINDOW), ("c", pa.int64()), (IS_FINAL, pa.bool_()), (OP, pa.int8())])


def changes(*rows: tuple[int, int, int]) -> pa.Table:
    """The end of each row's window, in microseconds, its count, and what it is."""
    made = [{"window": {"start": end - 10, "end": end}, "c": c, IS_FINAL: False, OP: op} for end, c, op in rows]
    return pa.Table.from_pylist(made, schema=SCHEMA)


def told(table: pa.Table) -> list[Any]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [((row["window"]["end"] - epoch).microseconds, row["c"], row[IS_FINAL]) for row in table.to_pylist()]


def test_a_row_is_published_once_more_when_its_window_has_closed() -> None:
    rows = OpenRows(["window"])
    assert told(rows.apply(changes((10, 1, UPSERT), (20, 1, UPSERT)), None)) == [(10, 1, False), (20, 1, False)]
    assert told(rows.apply(changes((10, 2, UPSERT)), 9)) == [(10, 2, False)]
    assert told(rows.apply(changes(), 10)) == [(10, 2, True)]
    assert told(rows.apply(changes(), 19)) == []
    assert told(rows.apply(changes((20, 5, UPSERT), (30, 1, UPSERT)), 25)) == [(20, 5, True), (30, 1, False)]
    assert told(rows.apply(changes(), 99)) == [(30, 1, True)]


def test_a_row_that_is_gone_does_not_come_back() -> None:
    rows = OpenRows(["window"])
    rows.apply(changes((10, 1, UPSERT)), None)
    rows.apply(changes((10, 1, DELETE)), 5)
    assert told(rows.apply(changes(), 50)) == []


def test_what_is_open_is_known_again_from_the_changelog() -> None:
    first = OpenRows(["window"])
    batches = [first.apply(changes((10, 1, UPSERT), (20, 1, UPSERT)), None), first.apply(changes((20, 2, UPSERT)), 10)]
    rows = OpenRows(["window"])
    rows.load(batch for table in batches for batch in table.to_batches())
    assert told(rows.apply(changes(), 20)) == [(20, 2, True)]
