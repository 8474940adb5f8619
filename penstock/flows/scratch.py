"""One folder for all that Spark writes beside the data, so that nothing of it outlives who wrote it.

Native libraries, shuffle files, the local copy of the state, sockets: a JVM that is killed leaves hundreds of
megabytes of them. Here they lie in one folder for each process that uses Spark: under what `PENSTOCK_SCRATCH` names
(the supervisor names a place in the data folder), else where temporary files go. It is removed when its process ends.

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
_PREFIX = "penstock-spark-"
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
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
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
    place = Path(named) if named else Path(tempfile.gettempdir())
    if named and not _runs_code(place):
        place = Path(tempfile.gettempdir())
    made = Scratch.make(place)
    atexit.register(made.remove)
    return made


def _runs_code(place: Path) -> bool:
    """Spark loads native libraries from there; a file system that is mounted with `noexec` refuses them."""
    place.mkdir(parents=True, exist_ok=True)
    return not os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0)


def sweep(place: Path) -> None:
    """Remove the folders that nobody holds any more."""
    for path in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(descriptor)
                if found.st_uid == os.getuid() and time.time() - found.st_ctime > _YOUNG_S:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
