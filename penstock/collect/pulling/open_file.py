"""Reads one file of events line by line, and marks where it stands so that the same bytes are found again.

A mark holds the inode, the byte behind the last whole line, and a hash of the first bytes: names change by rotation,
inodes are used again, and a file that was cut off and written anew has neither changed. The bytes of a `.gz` file are
those that come out of it. Everything here blocks, and is called in threads.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping
from typing import IO, Any

from penstock.collect.pulling.lines import Lines

PRINT_BYTES = 1024
"""As much of the beginning tells files apart."""
READ_BYTES = 256 * 1024
MOST_READS = 64
"""Without a line end among them; then others get their turn."""
BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading raises when a packed file is not complete, or not packed at all."""

Mark = Mapping[str, Any]
"""`inode`, `offset`, `length`, `print` (a hash of the first `length` bytes), `modified_ns`, and `path` for people."""


class OpenFile:
    """A file that is being read. Raises `OSError`, and `BROKEN` if it is packed."""

    def __init__(self, path: str, event_bytes: int, mark: Mark | None = None) -> None:
        self.path = path
        self.packed = path.endswith(".gz")
        self._raw = open(path, "rb", buffering=0)  # noqa: SIM115
        try:
            self._file: IO[bytes] = gzip.GzipFile(fileobj=self._raw) if self.packed else self._raw  # type: ignore[assignment]
            self.inode = _inode(os.fstat(self._raw.fileno()))
            self.offset = int(mark["offset"]) if mark else 0
            self._length, self._print = (int(mark["length"]), str(mark["print"])) if mark else (0, _hash(b""))
            self._head = self._file.read(PRINT_BYTES) if self.packed else b""
            self._file.seek(self.offset)
        except BaseException:
            self._raw.close()
            raise
        self._lines = Lines(event_bytes)

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def read_some(self) -> list[bytes] | None:
        """The next lines that are whole; None at the end of the file. Few when lines are too long for anybody."""
        for _ in range(MOST_READS):
            lines = self._read()
            if lines is None or lines:
                return lines
        return []

    def _read(self) -> list[bytes] | None:
        chunk = self._file.read(READ_BYTES)
        if not chunk:
            return None
        ends = self.offset + self._lines.pending + len(chunk)
        lines = self._lines.feed(chunk)
        self.offset = ends - self._lines.pending
        return lines

    def rest(self) -> list[bytes]:
        """What stands behind the last line end; asked when no more will come."""
        self.offset += self._lines.pending
        line = self._lines.rest().strip()
        return [line] if line else []

    def intact(self) -> bool:
        """Whether what was read is still what the file begins with, and it has not become shorter."""
        if self.packed:
            return True
        size = os.fstat(self._raw.fileno()).st_size
        return size >= self.offset + self._lines.pending and self.begins(self._length, self._print)

    def begins(self, length: int, print_: str) -> bool:
        """Whether the first bytes are those that a mark tells of."""
        head = self._head[:length] if self.packed else os.pread(self._raw.fileno(), length, 0)
        return len(head) == length and _hash(head) == print_

    def mark(self) -> dict[str, Any]:
        """Where it stands. Asked after `intact`."""
        self._widen()
        return self.known()

    def _widen(self) -> None:
        if self._length < PRINT_BYTES and self._length < self.offset:
            length = min(PRINT_BYTES, self.offset)
            head = self._head[:length] if self.packed else os.pread(self._raw.fileno(), length, 0)
            self._length, self._print = length, _hash(head)

    def known(self) -> dict[str, Any]:
        """Where it stood when it was last intact."""
        return {
            "path": self.path,
            "inode": self.inode,
            "offset": self.offset,
            "length": self._length,
            "print": self._print,
            "modified_ns": os.fstat(self._raw.fileno()).st_mtime_ns,
        }

    def quiet_s(self, now_us: int) -> float:
        """How long nobody has written to it."""
        return now_us / 1e6 - os.fstat(self._raw.fileno()).st_mtime

    def unread(self) -> int:
        """Bytes on the disk that are not given out; of a packed file nobody knows."""
        return 0 if self.packed else max(0, os.fstat(self._raw.fileno()).st_size - self.offset)


def found_in(path: str, mark: Mark, *, same_inode: bool) -> bool:
    """Whether the file at this path is the one that a mark tells of, and still has what was read of it."""
    try:
        status = os.stat(path)
        if same_inode and _inode(status) != mark["inode"]:
            return False
        if not path.endswith(".gz"):
            if status.st_size < mark["offset"]:
                return False
            with open(path, "rb") as file:
                head = file.read(mark["length"])
        else:
            with gzip.open(path) as packed:
                head = packed.read(mark["length"])
    except (OSError, *BROKEN):
        return False
    return len(head) == int(mark["length"]) and _hash(head) == str(mark["print"])


def _inode(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def _hash(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()


EMPTY = _hash(b"")
