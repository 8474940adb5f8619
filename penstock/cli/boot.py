"""Where every process of Penstock begins, with next to nothing imported: what must not wait for imports happens here.

Spark's JVM takes longest of all, so the flows process starts it before it imports the rest. And whoever ends a run in
its first second, by Ctrl-C or a signal, gets an exit code, not the traceback of an import, and finds nothing left.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""As a shell says it of programs that end by Ctrl-C."""
TERMINATED = 143
"""And by SIGTERM: before `run` and `demo` were up. From then on a supervisor stops them in order, with 0."""


class Terminated(KeyboardInterrupt):
    """A signal that asks to end, where Ctrl-C would do the same."""


def main() -> None:
    """The console script, and the command of both children of `run`."""
    try:
        if sys.argv[1:2] in (["run"], ["demo"]):
            _listen()
        if sys.argv[1:2] == ["flows"] and "--parent" in sys.argv:  # the supervisor has looked whether there is a Java
            from penstock.flows import jvm

            jvm.begun()
        from penstock.cli.main import main as command_line
    except Terminated:
        sys.exit(TERMINATED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command_line()


def _listen() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # by nohup
            signal.signal(number, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


if __name__ == "__main__":
    from penstock.cli import boot  # else `Terminated` would be another class here than elsewhere

    boot.main()
