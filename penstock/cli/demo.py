"""`penstock demo`: the Meetup example with its simulated feed, in one command.

The example lies beside this file: in a checkout a link to `examples/meetup`, in an installed Penstock its files. The
feed server is a child like any other: it ends with this process, however that ends. Unless `--data` names one, the data
folder is a fresh one that is removed in the end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import AppFileError
from penstock.run.app_file import load
from penstock.run.child import Lifeline
from penstock.run.launch import Request, run
from penstock.run.preflight import check_java
from penstock.run.security import Security
from penstock.run.terminal import Terminal

EXAMPLE = Path(__file__).parent / "meetup"


def demo(terminal: Terminal, *, host: str, port: int, rate: float, data: Path | None, log: str) -> int:
    """Run the example until asked to stop; returns the exit code."""
    check_java()
    with _feed(rate) as feed, _folder(data) as root:
        os.environ["MEETUP_FEED"] = feed.url
        loaded = load(str(EXAMPLE / "app.py"))
        feed.check()
        terminal.note(f"a simulated Meetup feed sends {rate:g} RSVPs a second at {feed.url}")
        return run(Request.of(loaded, root, log, host, port, Security()), terminal)


@dataclass(frozen=True)
class _Feed:
    """The feed server, which starts while the app file is loaded."""

    url: str
    server: subprocess.Popen[str]
    command: list[str]

    def check(self) -> None:
        """It says `feed <address>` when it listens."""
        assert self.server.stdout is not None
        if not self.server.stdout.readline().startswith("feed "):
            raise AppFileError("the feed of the demo does not start", hint=f"try it alone: {' '.join(self.command)}")


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as fresh:
        yield Path(fresh) / "meetup"


@contextmanager
def _feed(rate: float) -> Iterator[_Feed]:
    port = _free_port()
    command = [sys.executable, str(EXAMPLE / "server.py"), "--port", str(port), "--rate", str(rate)]
    lifeline = Lifeline()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0)
    guard = lifeline.guard(server.pid)
    try:
        yield _Feed(f"ws://127.0.0.1:{port}/2/rsvps", server, command)
    finally:
        server.kill()  # it has nothing to put in order
        server.communicate()
        guard.kill()
        guard.wait()
        lifeline.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
