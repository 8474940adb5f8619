"""Columns become the same values as Arrow's own slow conversion, and keys are hashable."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.change import OP
from penstock.views.unpack import frozen, ops_of, unpack

TS = pa.timestamp("us", tz="UTC")
NOW = dt.datetime(2024, 2, 29, 12, 30, 1, 123456, tzinfo=dt.UTC)
COLUMNS = {
    "ints": pa.array([1, None, 2**62]),
    "floats": pa.array([1.5, None, -0.0]),
    "strings": pa.array(["a", None, ""]),
    "moments": pa.array([NOW, None, NOW], TS),
    "local moments": pa.array([NOW.replace(tzinfo=None), None, None], pa.timestamp("us")),
    "milliseconds": pa.array([NOW.replace(microsecond=123000), None, None], pa.timestamp("ms", tz="UTC")),
    "days": pa.array([NOW.date(), None, NOW.date()]),
    "decimals": pa.array([Decimal("1.50"), None, Decimal("-2.25")]),
    "windows": pa.array(
        [{"start": NOW, "end": NOW}, None, {"start": NOW, "end": None}], pa.struct([("start", TS), ("end", TS)])
    ),
    "structs": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "lists of moments": pa.array([[NOW], None, []], pa.list_(TS)),
    "maps": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "binary": pa.array([b"\x00", None, b""]),
    "flags": pa.array([True, None, False]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("cut", [slice(0, 3), slice(1, 3), slice(2, 3), slice(0, 0)])
def test_values_are_those_of_arrow(name: str, cut: slice) -> None:
    array = COLUMNS[name].slice(cut.start, cut.stop - cut.start)
    assert unpack(array) == array.to_pylist(maps_as_pydicts="strict")


def test_moments_are_aware_and_equal_windows_are_one_object() -> None:
    windows = unpack(pa.array([{"start": NOW, "end": NOW}] * 2, pa.struct([("start", TS), ("end", TS)])))
    assert windows[0] is windows[1]
    assert windows[0]["start"].tzinfo is dt.UTC


def test_a_moment_or_day_that_python_cannot_hold_is_null() -> None:
    assert unpack(pa.array([2**60], TS)) == [None]
    assert unpack(pa.array([10**7, 0, -(10**7)], pa.date32())) == [None, dt.date(1970, 1, 1), None]


def test_the_last_operation_on_a_key_counts() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), (OP, pa.int8())])
    rows = [("a", 1, 0), ("a", None, 1), ("b", 1, 0), ("b", 2, 0)]
    batch = pa.RecordBatch.from_pylist([dict(zip(("k", "v", OP), row, strict=True)) for row in rows], schema=schema)
    assert ops_of(batch, ["k", "v"], ["k"]) == {("a",): None, ("b",): ("b", 2)}


def test_keys_with_nan_objects_and_arrays_can_be_found_again() -> None:
    key = (frozen(float("nan")), frozen({"start": 1, "end": [2]}))
    assert {key: 1}[(frozen(math.nan), (1, (2,)))] == 1
