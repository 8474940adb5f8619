"""The edge converts values without pandas, and an app that wants pandas has it whole."""

from __future__ import annotations

import subprocess
import sys

EDGE = """
import sys, datetime
from penstock.run.edge_memory import leave_pandas_out
leave_pandas_out()
import penstock.run.edge
import pyarrow as pa
assert pa.array([datetime.datetime(2026, 1, 1), None]).to_pylist()[1] is None
assert "pandas" not in sys.modules
"""
APP = """
import pandas as pd, pyarrow as pa
from penstock.run.edge_memory import leave_pandas_out
leave_pandas_out()
assert pa.array(pd.Series([1, 2])).to_pandas().sum() == 3
"""


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stderr


def test_an_edge_has_no_pandas() -> None:
    assert python(EDGE) == ""


def test_an_app_that_imports_it_has_it_with_all_that_arrow_does_for_it() -> None:
    assert python(APP) == ""
