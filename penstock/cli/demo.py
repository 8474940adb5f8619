"""`penstock demo`: the Meetup example with its simulated feed, from a checkout, in one command.

The feed server is a child like any other: it ends with this process, however that ends. Unless `--data`
names one, the data folder is a fresh one that is removed in the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from penstock.cli.guard import Lifeline
from penstock.cli.launch import Request, run
from penstock.cli.loading import load
from penstock.cli.terminal import Terminal
from penstock.config import Folder
from penstock.errors import AppFileError

EXAMPLE = Path(penstock.__file__).parents[1] / "examples" / "meetup"


def demo(terminal: Terminal, *, host: str, port: int, rate: float, data: Path | None) -> int:
    """Run the example until asked to stop; returns the exit code."""
    if not (EXAMPLE / "app.py").exists():
        raise AppFileError(
            "the demo is part of the checkout, and this Penstock was installed without it",
            detail=f"looked for {EXAMPLE}",
            hint="clone the repository and run `make demo` in it",
        )
    with _feed(rate) as url, _folder(data) as folder:
        terminal.note(f"a simulated Meetup feed sends {rate:g} RSVPs a second at {url}")
        os.environ["MEETUP_FEED"] = url
        return run(Request(load(str(EXAMPLE / "app.py")), folder, host, port), terminal)


@contextmanager
def _folder(data: Path | None) -> Iterator[Folder]:
    if data is not None:
        yield Folder(data.absolute())
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as fresh:
        yield Folder(Path(fresh) / "meetup")


@contextmanager
def _feed(rate: float) -> Iterator[str]:
    """The feed server's address; it says `feed <address>` when it listens."""
    command = [sys.executable, str(EXAMPLE / "server.py"), "--port", "0", "--rate", str(rate)]
    lifeline = Lifeline()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0)
    guard = lifeline.guard(server.pid)
    try:
        assert server.stdout is not None
        word, _, url = server.stdout.readline().strip().partition(" ")
        if word != "feed":
            raise AppFileError("the feed of the demo does not start", hint=f"try it alone: {' '.join(command)}")
        yield url
    finally:
        server.terminate()
        server.communicate()
        guard.kill()
        guard.wait()
        lifeline.close()
