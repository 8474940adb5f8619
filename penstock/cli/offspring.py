"""What both child processes do first and last: end with their parent, show their threads, explain an end.

A child that ends for a reason that the next one would meet again writes the error to
`run/<name>.error.json` and exits with `USER_ERROR`; the supervisor then says it and starts nothing. Every
other end is a death like any other.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from penstock.cli.guard import die_with
from penstock.cli.ownership import write_json
from penstock.cli.terminal import FAILED, OK, USER_ERROR
from penstock.config import Folder
from penstock.errors import PenstockError
from penstock.rights.redaction import RedactingFormatter, redacted


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


def announce(folder: Folder, name: str, facts: dict[str, object]) -> None:
    """Tell the other processes of this folder who and where this one is: `run/<name>.json`."""
    write_json(folder.run / f"{name}.json", {"pid": os.getpid()} | facts)
