"""What Spark throws, told in one paragraph: the flow, the user's line, the batch and the offsets, and why."""

from __future__ import annotations

import re
from pathlib import Path

from penstock import spark_master
from penstock.declaration import Node, Place
from penstock.errors import (
    BatchRangeError,
    ConditionError,
    DiskFullError,
    FlowError,
    LogUnavailableError,
    OutcomeUnknownError,
    PenstockError,
)
from penstock.flows.cluster_session import unfit

_CALLED = re.compile(r"was called from\s+(\S+?):(\d+)")
_TRACED = re.compile(r'File "([^"]+)", line (\d+)')
_LOST = ("CANNOT_LOAD_STATE_STORE", "CheckpointInfo length", "Incomplete log file", "MISSING_METADATA_FILE")
_FULL = ("No space left on device", "Disk quota exceeded")
_NOT_LOST = (*_FULL, "Too many open files", "Permission denied", "Mkdirs failed")


_RETRIED = (
    "mend the function, or the events; the flow tries again by itself, and an event that alone makes it "
    "fail is put into 'dead' after 3 failures"
)
_STOPPED = (
    "mend the function and start again: the flow stays stopped, since no event fails alone that could be put into "
    "'dead', or so many do that it is the function"
)


def flow_error(
    node: Node, error: BaseException, batch: int | None, offsets: str, *, stopped: bool = False
) -> PenstockError:
    """The error as a user reads it. One of ours stays what it is."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    if spark_master.cluster() and (unfit_worker := unfit(text)):
        return unfit_worker
    place = user_place(node, text)
    where = f"batch {batch}, offsets {offsets}" if batch is not None else "before its first batch"
    return FlowError(
        f"the flow '{node.name}' failed at {place}: {reason(text)}",
        detail=where,
        hint=_STOPPED if stopped else _RETRIED,
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


def checkpoint_lost(error: BaseException, checkpoint: Path) -> bool:
    """Whether Spark cannot go on from its checkpoint, so that only a rebuild helps: it says so, or its account of the
    failure names a file of the checkpoint."""
    if isinstance(error, BatchRangeError):
        return True
    text = str(error)
    machine = isinstance(error, DiskFullError) or any(word in text for word in _NOT_LOST)
    return not machine and (str(checkpoint) in text or any(word in text for word in _LOST))


def log_refused(error: BaseException) -> bool:
    """Whether the log, or a full disk, is to blame, and neither the function nor the events."""
    kinds = (ConditionError, DiskFullError, LogUnavailableError, OutcomeUnknownError)
    return isinstance(error, kinds) or any(word in str(error) for word in (*_FULL, LogUnavailableError.__name__))


_CLUSTER = (
    "ExecutorLostFailure",
    "Executor heartbeat timed out",
    "Master removed our application",
    "SparkContext was shut down",
    "stopped SparkContext",
    "CONCURRENT_STREAM_LOG_UPDATE",
)


def cluster_lost(error: BaseException) -> bool:
    """Whether a worker, an executor or the master is to blame, or another driver that has not ended yet."""
    return any(word in str(error) for word in _CLUSTER)


def no_worker(error: BaseException) -> bool:
    """Whether Spark gave up on a Python process of its own before that had started: it allows ten seconds, which is
    little on a busy machine. Neither the function nor the events are to blame."""
    return "failed to connect back" in str(error)
