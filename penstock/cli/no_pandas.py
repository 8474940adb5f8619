"""Keeps pandas out of the edge: Arrow imports it, where it is installed, with the first value that it converts.

Spark wants pandas installed; the edge has no use for it, and it costs 0.3 s of its start and 40 MiB. Arrow looks for
it once in a process. An app file that imports pandas itself has it, with all that Arrow does for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

_NAME = "pandas"


class _Absent:
    """A finder that finds no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _NAME:
            raise ModuleNotFoundError(f"no {_NAME} here", name=name)
        return None


def leave_pandas_out() -> None:
    """Let Arrow look for it now, and find none. Called before anything is converted, and after the app is loaded."""
    if _NAME in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(absent)
