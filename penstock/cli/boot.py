"""Where every process of Penstock begins, with next to nothing imported: what must not wait for imports happens here.

Spark's JVM takes longest of all, so the flows process starts it before it imports the rest. And whoever ends a run in
its first second, by Ctrl-C or a signal, gets an exit code, not the traceback of an import, and finds nothing left.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from penstock.run.exit_codes import INTERRUPTED, TERMINATED

GOODBYE_S = 1.0
"""What handlers that an app has registered for the end of Python get: who asked to stop waits for them."""


def main() -> None:
    """The console script, and the command of both children of `run`."""
    asked: list[int] = []
    try:
        if _supervises():
            _listen(asked)
        if sys.argv[1:2] == ["flows"] and "--parent" in sys.argv:  # the supervisor has looked whether there is a Java
            from penstock.flows.engine import jvm

            jvm.begun()
        from penstock.cli.main import main as command_line

        command_line()
    except (KeyboardInterrupt, SystemExit) as end:
        code = end.code if isinstance(end, SystemExit) else INTERRUPTED
        if code == INTERRUPTED:
            _end(TERMINATED if asked else INTERRUPTED)
        if isinstance(code, int) and (_supervises() or "--parent" in sys.argv):
            _say_goodbye()
            _end(code)  # somebody waits, and Python's own way to end joins threads first
        sys.exit(code)


def _supervises() -> bool:
    return sys.argv[1:2] in (["run"], ["demo"])


def _say_goodbye() -> None:
    """Let what the app has registered run as at any end of Python, but not for ever."""
    goodbye = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    goodbye.start()
    goodbye.join(GOODBYE_S)


def _end(code: int) -> None:
    """End now. Python would end itself by SIGINT if the interrupt had passed through an `exec`, as imports do."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _listen(asked: list[int]) -> None:
    """Let the signals that ask to end do what Ctrl-C does, until a supervisor listens to them."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # by nohup
            signal.signal(number, interrupt)


if __name__ == "__main__":
    main()
