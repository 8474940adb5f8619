"""Spark's checkpoint on a local disk: what it says of a batch, how it becomes durable, what a power cut leaves.

Spark calls fsync on nothing here. After `kill -9` a checkpoint is whole; after a power cut its newest files may be
empty, torn or gone. The sink calls `sync` before each commit, so that what the log knows of is on disk.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BatchRangeError
from penstock.flows.source import Offset, ends_of

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class PlannedBatch:
    """What `offsets/N` says of batch N: where each input ends."""

    ends: dict[str, tuple[str, int, tuple[int, ...]]]
    """By stream: epoch, the commit number behind the batch, and the offsets. Read twice: the smaller."""
    planned_us: int
    even: bool
    """A stream that is read twice was read to the same end."""


def planned(checkpoint: Path, batch: int) -> PlannedBatch | None:
    """Read `offsets/N`; None when there is no such batch."""
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().split("\n")
        stamp = path.stat().st_mtime_ns // 1000
    except FileNotFoundError:
        return None
    ends: dict[str, tuple[str, int, tuple[int, ...]]] = {}
    even = True
    for line in lines[2:]:
        if line.strip() not in ("", "-"):
            offset: Offset = json.loads(line)
            found = (offset["epoch"], offset["commit"], ends_of(offset))
            even = even and ends.get(offset["stream"], found) == found
            ends[offset["stream"]] = min(ends.get(offset["stream"], found), found, key=lambda e: e[1])
    return PlannedBatch(ends, stamp, even)


def sync(checkpoint: Path) -> None:
    """Make the checkpoint durable: `offsets/N`, the state of N and `commits/N-1` were written before this call."""
    handle = os.open(checkpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(checkpoint))
    finally:
        os.close(handle)


def mend(checkpoint: Path, last_batch: int | None) -> None:
    """Remove what a power cut tore, where that is safe; raise `BatchRangeError` where only a rebuild helps.

    A torn newest `commits/N` may go: the batch replays and the sink discards it. A torn newest `offsets/N` may go
    when the batch was not committed. A checkpoint that is behind the log, or torn elsewhere, is lost.
    """
    commits = _numbered(checkpoint / "commits")
    while commits and not _whole(commits[max(commits)]):
        commits.pop(max(commits)).unlink()
    offsets = _numbered(checkpoint / "offsets")
    while offsets and not _whole(offsets[max(offsets)]) and max(offsets) not in commits:
        offsets.pop(max(offsets)).unlink()
    torn = [path for path in (*commits.values(), *offsets.values()) if not _whole(path)]
    newest = max(offsets, default=None)
    behind = last_batch is not None and (newest is None or newest < last_batch)
    if torn or behind or (commits and newest is not None and max(commits) > newest):
        raise BatchRangeError(
            "the checkpoint has lost batches that the log already holds",
            detail=f"newest batch in the checkpoint: {newest}, in the log: {last_batch}",
        )


def _numbered(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    return {int(path.name): path for path in folder.iterdir() if path.name.isdigit()}


def _whole(path: Path) -> bool:
    """Whether a file of offsets or commits has its version line and JSON that ends."""
    try:
        lines = path.read_text().rstrip("\n").split("\n")
        return len(lines) >= 2 and lines[0].startswith("v") and all(_is_json(line) for line in lines[1:])
    except (OSError, UnicodeDecodeError):
        return False


def _is_json(line: str) -> bool:
    try:
        value: Any = json.loads(line) if line != "-" else {}
    except ValueError:
        return False
    return isinstance(value, dict)
