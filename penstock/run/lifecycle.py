"""What every process does first and last: end with its parent, hear signals, show its threads, explain its end.

A child that ends for a reason that the next one would meet again writes the error to
`run/<name>.error.json` and exits with `USER_ERROR`; the supervisor then says it and starts nothing. Every
other end is a death like any other.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from penstock.config import Folder
from penstock.errors import PenstockError
from penstock.rights.redaction import RedactingFormatter, redacted
from penstock.run.exit_codes import FAILED, OK, USER_ERROR
from penstock.run.ownership import write_json

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Called first thing in a child: from here on it does not outlive its parent. Ends at once if it
    already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def live(name: str, parent: int | None, data: Path | None, body: Callable[[], None]) -> int:
    """Run a child's body and return its exit code. Without a parent, errors are the caller's to show."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if parent is None or data is None:
        body()
        return OK
    die_with(parent)
    try:
        body()
    except Exception as error:
        sys.stderr.write(redacted(traceback.format_exc()))
        return _explained(Folder(data.absolute()), name, error)
    return OK


def _explained(folder: Folder, name: str, error: Exception) -> int:
    if not isinstance(error, PenstockError) or error.retry:
        return FAILED
    folder.run.mkdir(parents=True, exist_ok=True)
    write_json(folder.run / f"{name}.error.json", error.body())
    return USER_ERROR


class Bell:
    """Wakes who waits for it, also from the handler of a signal. An `Event` of `threading` may not be set there: its
    lock is not reentrant, and a signal that comes while the same thread holds it waits for ever."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Until it rings, or has rung since it was waited for."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
            while True:
                self._rings.get_nowait()
