"""Keeps what Spark and its JVM say about themselves out of the terminal while `check` or `verify` use them.

A JVM inherits its stderr and keeps it to its end, so it must find another one when it is started. What it says is
kept in a file, for whoever needs it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

from penstock.cli.terminal import Terminal


def spark_log() -> Path:
    """Where Spark's words go when no data folder is at hand."""
    return Path(tempfile.gettempdir()) / f"penstock-spark-{os.getuid()}.log"


@contextmanager
def quietly(terminal: Terminal, doing: str) -> Iterator[None]:
    """Within this block stderr is a file; the user sees what is being done and for how long."""
    terminal.err.file.flush()
    kept = os.dup(2)
    log = os.open(spark_log(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 2)
    os.close(log)
    try:
        with os.fdopen(os.dup(kept), "w") as screen:
            shown = Console(file=screen, highlight=False, force_terminal=terminal.err.is_terminal)
            with shown.status(doing) if terminal.err.is_terminal else nullcontext():
                yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
