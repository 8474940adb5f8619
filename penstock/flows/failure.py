"""What Spark throws, told in one paragraph: the flow, the user's line, the batch and the offsets, and why."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.errors import PySparkException

from penstock.declaration import Node, Place
from penstock.errors import BatchRangeError, FlowError, PenstockError

_CALLED = re.compile(r"was called from\s+(\S+?):(\d+)")
_TRACED = re.compile(r'File "([^"]+)", line (\d+)')
_CLASS = re.compile(r"^\[?([A-Z_]+(?:\.[A-Z_]+)*)\]?")
_LOST = (
    "CANNOT_LOAD_STATE_STORE",
    "STATE_STORE",
    "StateStore",
    "RocksDB",
    "CheckpointInfo",
    "HDFSMetadataLog",
    "OffsetSeq",
    "CommitLog",
    "offset log",
    "commit log",
    "batch id",
    "FileNotFoundException",
    "EOFException",
    "CorruptedCheckpoint",
    "checksum",
    "MALFORMED_CHECKPOINT",
    "Incomplete log file",
    "MISSING_METADATA_FILE",
    "STREAM_FAILED_TO_LOAD",
    "metadata",
)


def told(node: Node, error: BaseException, batch: int | None, offsets: str) -> PenstockError:
    """The error as a user reads it. One of ours stays what it is."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    place = user_place(node, text)
    where = f"batch {batch}, offsets {offsets}" if batch is not None else "before its first batch"
    return FlowError(
        f"the flow '{node.name}' failed at {place}: {reason(text)}",
        detail=where,
        hint="mend the function, or the events; the flow tries again by itself, and an event that alone makes it "
        "fail is put into 'dead' after 3 failures",
    )


def user_place(node: Node, text: str) -> Place:
    """The line of the app file that Spark's or Python's account of an error names."""
    for pattern in (_CALLED, _TRACED):
        for file, line in reversed(pattern.findall(text)):
            if Path(file).name == Path(node.place.file).name:
                return Place(file, int(line))
    return node.place


def reason(text: str) -> str:
    """The first sentence that means something to a user."""
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    python = [line for line in lines if re.match(r"^[A-Za-z_.]*(Error|Exception)\b", line)]
    if "Traceback (most recent call last)" in text and python:
        return python[-1][:400]
    return (lines[0] if lines else "no reason given")[:400]


def checkpoint_lost(error: BaseException) -> bool:
    """Whether Spark cannot go on from its checkpoint, so that only a rebuild helps."""
    if isinstance(error, BatchRangeError):
        return True
    text = str(error)
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return any(word in (condition or "") or word in text[:2000] for word in _LOST)
