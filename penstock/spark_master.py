"""Where Spark computes: on the cores of this machine, or on a cluster that a master's URL names.

The environment carries it, because Spark's JVM is started before a command line is read, and so that children of a
process have it too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.errors import BadMasterError

VARIABLE = "PENSTOCK_MASTER"
_CHECKPOINT = "PENSTOCK_CHECKPOINT"
_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)\])?")
_CLUSTER = re.compile(r"spark://[^/\s]+:\d+(,[^/\s]+:\d+)*|k8s://\S+|yarn")


def choose(master: str | None, checkpoint: Path | None = None) -> None:
    """Let this process and its children compute there, with the state of flows in a folder that workers see. Raises
    `BadMasterError` for what is no master."""
    if checkpoint is not None:
        os.environ[_CHECKPOINT] = str(checkpoint.absolute())
    if master is None:
        return
    if not _LOCAL.fullmatch(master) and not _CLUSTER.fullmatch(master):
        raise BadMasterError(
            f"'{master}' is no master of Spark",
            hint="write --master spark://host:7077, k8s://https://host:443, yarn, or local[4] for this machine",
        )
    os.environ[VARIABLE] = master


def cluster() -> str | None:
    """The master of the cluster; None: this machine computes."""
    master = os.environ.get(VARIABLE, "")
    return None if not master or _LOCAL.fullmatch(master) else master


def shares_checkpoint() -> bool:
    """Whether another machine may work on the same checkpoints, so that no lock of this one keeps it out."""
    return _CHECKPOINT in os.environ or cluster() is not None


def local_cores() -> int | None:
    """How many cores of this machine Spark may use, where that was said."""
    match = _LOCAL.fullmatch(os.environ.get(VARIABLE, ""))
    if match is None or match[2] == "*":
        return None
    return int(match[2] or 1)
