"""A data folder whose logs lie in the memory of the test's process: no test waits for a disk that it does not test."""

from __future__ import annotations

from pathlib import Path

from penstock.config import Folder


def memory_folder(root: Path) -> Folder:
    """The same root gives the same logs, until the test that has it as its `tmp_path` ends (`conftest.py`)."""
    return Folder(root, log=f"memory://{root}")
