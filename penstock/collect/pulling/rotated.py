"""Finds where a log file's lines went while nobody looked: renamed, copied away, packed, and in which order to read on.

A rotated file stands beside the live one under its name and an ending of numbers: `app.log.1`, `app.log-20240501`,
`app.log.2024-05-01_10`, `app.log.2.gz`; or `.old`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.collect.pulling.open_file import Mark, found_in

_ENDING = re.compile(r"[.-](?:\d[\d._:T-]*|old)(?:\.gz)?")


@dataclass(frozen=True)
class Trail:
    """What to read, in order: the rest of the file that was being read, if it must be finished, then newer ones."""

    unfinished: str | None
    """Where the file is now that the mark tells of; None: gone."""
    newer: Sequence[str]
    """Rotated files that were never read, oldest first."""


def trail(path: str, mark: Mark, seen: Sequence[Mark]) -> Trail:
    """From a mark to the live file; `seen` are marks of files that are finished."""
    beside = _beside(path)
    unfinished = _now_at([path, *beside], mark)
    since_ns = (_modified_ns(unfinished) if unfinished is not None else None) or mark["modified_ns"]
    newer = [p for p in beside if p != unfinished and (_modified_ns(p) or 0) >= since_ns]
    return Trail(unfinished, [p for p in newer if not any(_is(p, known) for known in (mark, *seen))])


def _is(path: str, mark: Mark) -> bool:
    """A packed file has another inode than the one that it was made from."""
    return found_in(path, mark, same_inode=not path.endswith(".gz"))


def _now_at(paths: Sequence[str], mark: Mark) -> str | None:
    """By its inode; else by its content, since a copy has another."""
    for same_inode in (True, False):
        for path in paths:
            if (same_inode or mark["length"]) and found_in(path, mark, same_inode=same_inode):
                return path
    return None


def _beside(path: str) -> list[str]:
    """Oldest first. Of a file and its packed twin the packed one is left out."""
    beside = glob.glob(f"{glob.escape(path)}[.-]*")
    found = [p for p in beside if _ENDING.fullmatch(p.removeprefix(path)) and os.path.isfile(p)]
    plain = [p for p in found if not (p.endswith(".gz") and p.removesuffix(".gz") in found)]
    return sorted(plain, key=lambda p: (_modified_ns(p) or 0, p))


def _modified_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
