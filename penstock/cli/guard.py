"""Makes children end with their parent, however it dies, so that no run ever leaves an orphan behind.

Two independent means. The kernel kills the child's Python the moment its parent ends (Linux only). And a
guard, a shell that waits in the child's process group for the end of a pipe whose other end only the
supervisor holds, kills the whole group: that is what ends the JVM, which is a child of the child, and what
works when a process is stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Called first thing in a child: from here on it does not outlive its parent. Ends at once if it
    already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Lifeline:
    """The supervisor's end of the pipe: the kernel closes it when the supervisor ends, and only then."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def guard(self, group: int) -> subprocess.Popen[bytes]:
        """Start the guard of a process group. It is a member of the group, so that the number cannot be
        reused."""
        return subprocess.Popen(
            ["/bin/sh", "-c", "read _; kill -KILL 0"],
            stdin=self._read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=group,
        )

    def close(self) -> None:
        """Ends every group that still has a guard."""
        os.close(self._read)
        os.close(self._write)
