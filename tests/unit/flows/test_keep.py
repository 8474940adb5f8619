"""Rows are told apart by key as views do it, for `keep=` and for `verify`: NaN is one key, and far days are keys."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from penstock.change import DELETE, OP, UPSERT
from penstock.flows.keep import Expiry, hashable
from penstock.flows.plan import Planned
from penstock.flows.sink import changelog_schema
from penstock.flows.verify import compare_rows

MADE: Any = SimpleNamespace(proof="exact", node=SimpleNamespace(key=("f",)))


def table(count: int) -> pa.Table:
    return pa.table({"f": pa.array([float("nan"), 1.0]), "count": [count, 2]})


def test_nan_is_one_key() -> None:
    assert {hashable({"x": [float("nan")]}): 1}.keys() == {hashable({"x": [float("nan")]}): 2}.keys()


def test_rows_of_nan_are_compared_with_each_other() -> None:
    assert compare_rows(table(1), table(1), MADE) == ([], 2)
    assert len(compare_rows(table(1), table(3), MADE)[0]) == 1


def test_a_row_goes_whatever_day_or_moment_is_in_its_key() -> None:
    moment = pa.timestamp("us", tz="UTC")
    keys = {"day": pa.array([10**7, None], pa.date32()), "due": pa.array([2**60, None], moment)}
    times = pa.array([1, 10], pa.int64()).cast(moment)
    changes = pa.table(keys | {"_time": times, OP: pa.array([UPSERT, UPSERT], pa.int8())})
    gone = Expiry(["day", "due"], keep_us=5).apply(changes, max_us=10)
    assert gone.column(OP).to_pylist() == [UPSERT, DELETE]
    assert gone.select(list(keys)).slice(1).equals(changes.select(list(keys)).slice(0, 1))


def test_a_delete_needs_no_more_than_its_key_also_where_a_column_is_never_null() -> None:
    columns = T.StructType([T.StructField("k", T.StringType(), False), T.StructField("kind", T.StringType(), False)])
    made: Any = SimpleNamespace(frame_schema=columns)
    made.arrow = Planned.arrow.fget(made)  # type: ignore[attr-defined]
    rows = pa.table({"k": ["a"], OP: pa.array([DELETE], pa.int8())}).append_column("kind", pa.nulls(1, pa.string()))
    schema = changelog_schema(made)
    assert rows.select(schema.names).cast(schema).column("kind").to_pylist() == [None]
