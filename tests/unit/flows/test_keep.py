"""Rows are told apart by key as the views do it: NaN is one key, for `keep=` and for `verify`."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from penstock.flows.keep import hashable
from penstock.flows.verify import compare_rows

MADE: Any = SimpleNamespace(proof="exact", node=SimpleNamespace(key=("f",)))


def table(count: int) -> pa.Table:
    return pa.table({"f": pa.array([float("nan"), 1.0]), "count": [count, 2]})


def test_nan_is_one_key() -> None:
    assert {hashable({"x": [float("nan")]}): 1}.keys() == {hashable({"x": [float("nan")]}): 2}.keys()


def test_rows_of_nan_are_compared_with_each_other() -> None:
    assert compare_rows(table(1), table(1), MADE) == ([], 2)
    assert len(compare_rows(table(1), table(3), MADE)[0]) == 1
