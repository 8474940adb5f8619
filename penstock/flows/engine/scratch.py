"""One folder for all that Spark writes beside the data, so that nothing of it outlives who wrote it.

Native libraries, shuffle files, the local copy of the state, sockets: a JVM that is killed leaves hundreds of
megabytes of them. Here they lie in one folder for each process that uses Spark, where temporary files go: sockets need
a short path. Where nothing there may be executed they lie in the data folder. It is removed when its process ends.

1. A folder is locked as long as its process, that one's JVM or its nursery lives: they share one open descriptor of it.
2. Whoever makes one first removes those beside it that nobody holds: what a killed run has left is gone at the next.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PLACE = "PENSTOCK_SCRATCH"
"""Set by the supervisor: the place in the data folder."""
RUN = "PENSTOCK_RUN"
"""Set by the supervisor: by it the folders of its children have their names."""
_PREFIX = "penstock-spark-"
_DYING_S = 2.0
"""How long a JVM that was killed may hold its folder: the system takes a moment to let its memory go."""
_YOUNG_S = 5.0
"""A folder that is younger may be one that is just being made, and not locked yet."""


@dataclass(frozen=True)
class Scratch:
    """The folder, and the descriptor that holds its lock: children inherit it."""

    path: Path
    held: int

    @staticmethod
    def make(place: Path) -> Scratch:
        """Raises `OSError` where nothing can be written."""
        place.mkdir(parents=True, exist_ok=True)
        sweep(place)
        path = Path(tempfile.mkdtemp(prefix=_prefix(os.environ.get(RUN, "")), dir=place))
        held = os.open(path, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)  # what tidies /tmp up on some systems leaves a locked folder alone, too
        return Scratch(path, held)

    def inside(self, name: str) -> Path:
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@cache
def scratch() -> Scratch:
    """The one of this process, made at the first call and removed when it ends."""
    named = os.environ.get(PLACE)
    place = Path(tempfile.gettempdir())
    made = Scratch.make(Path(named) if named and not _runs_code(place) else place)
    atexit.register(made.remove)
    return made


def _runs_code(place: Path) -> bool:
    """Spark loads native libraries from there; a file system that is mounted with `noexec` refuses them."""
    return not os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0)


def _prefix(run: str) -> str:
    return f"{_PREFIX}{run[:6]}"


def ended(run: str) -> None:
    """Remove what the children of a run have left, however they ended. Called when they have, or were killed."""
    until = time.monotonic() + _DYING_S
    while sweep(Path(tempfile.gettempdir()), run) and time.monotonic() < until:
        time.sleep(0.02)


def sweep(place: Path, run: str = "") -> bool:
    """Remove the folders that nobody holds any more; of one run, or all that are not just being made. Whether one is
    left that somebody holds."""
    young_s = 0.0 if run else _YOUNG_S
    left = False
    for path in place.glob(f"{_prefix(run)}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(descriptor)
                if found.st_uid == os.getuid() and time.time() - found.st_ctime > young_s:
                    shutil.rmtree(path, ignore_errors=True)
            except BlockingIOError:
                left = True
            finally:
                os.close(descriptor)
    return left
