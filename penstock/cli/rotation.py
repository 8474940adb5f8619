"""Keeps children's logs readable and bounded: each appends to its own file, and a full one is moved aside.

A child writes to the file itself, with its raw stderr and that of its JVM, so its last words are there
however it or the supervisor dies, and a supervisor that is stopped holds up nobody. The price: what is
written in the instant between copying a full file and emptying it is lost.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

FULL_BYTES = 8 * 1024**2
KEPT = 3
"""Older files beside the current one: `edge.log.1` is the newest of them."""


class LogFile:
    """One child's log."""

    def __init__(self, path: Path, full_bytes: int = FULL_BYTES) -> None:
        self.path = path
        self._full_bytes = full_bytes
        self._began = 0

    def open(self) -> int:
        """A descriptor for a child's stdout and stderr; the caller closes it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._began = os.fstat(descriptor).st_size
        return descriptor

    def mark(self, text: str) -> None:
        """A line of the supervisor's own among the child's."""
        with suppress(OSError), self.path.open("a") as file:  # a full disk must not end who watches over the rest
            file.write(f"--- {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")

    def rotate(self) -> None:
        """Called now and then: moves the content aside when there is too much of it."""
        if not self.path.exists() or self.path.stat().st_size < self._full_bytes:
            return
        for number in range(KEPT, 1, -1):
            older = self._older(number - 1)
            if older.exists():
                older.replace(self._older(number))
        with suppress(OSError):  # a full disk: the newest lines are worth more than the older ones
            shutil.copyfile(self.path, self._older(1))
        os.truncate(self.path, 0)
        self._began = 0

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def last_lines(self, count: int) -> list[str]:
        """The end of what the newest child wrote."""
        with self.path.open("rb") as file:
            file.seek(self._began)
            return [line.decode(errors="replace").rstrip() for line in deque(file, count)]
