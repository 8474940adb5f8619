"""Where every process of Penstock begins, with next to nothing imported: what must not wait for imports happens here.

Spark's JVM takes longest of all, so the flows process starts it before it imports the rest. And somebody who presses
Ctrl-C at once gets an exit code, not the traceback of an import.
"""

from __future__ import annotations

import sys

from penstock.flows import jvm

INTERRUPTED = 130
"""As `terminal.py` has it, which is not imported yet."""


def main() -> None:
    """The console script, and the command of both children of `run`."""
    try:
        if sys.argv[1:2] == ["flows"] and "--parent" in sys.argv:  # the supervisor has looked whether there is a Java
            jvm.begun()
        from penstock.cli.main import main as command_line
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    command_line()


if __name__ == "__main__":
    main()
