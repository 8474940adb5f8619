"""Reads all files of a folder, or those that a pattern names: each once, from where it was left, as they come and grow.

1. A file is known by its inode and its first bytes, so a renamed one is not read again, and a replaced one is.
2. A last line without an end counts when the file has not changed for `SETTLED_S`. A `.gz` file is read whole.
3. What is remembered of a file goes when the file is gone: the memory is bounded by what the folder holds.
"""

from __future__ import annotations

import asyncio
import glob
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.clock import Clock
from penstock.collect.pulling.open_file import BROKEN, EMPTY, OpenFile, found_in
from penstock.collect.pulling.pull_source import NotNow, PositionParts, SourceEvents, SourceLag, SourceRequest
from penstock.pull_origin import Origin, file_path

LOOK_S = 0.25
BUSY_PART = 10
"""Looking through the folder may take this fraction of the time: one part in so many."""
SETTLED_S = 30.0
MOST_FILES = 100_000
"""Each costs about 200 bytes of the log's memory for as long as it stands in the folder."""

_Entry = tuple[str, str, os.stat_result]


class FolderSource:
    """The position has a part for each file, by its inode: a mark as in `open_file.py`; `done`: a packed one's size."""

    def __init__(
        self, origin: Origin, event_bytes: int, clock: Clock, sleep: Callable[[float], Awaitable[Any]]
    ) -> None:
        self._path = file_path(origin.url)
        self._event_bytes, self._clock, self._sleep = event_bytes, clock, sleep
        self._files: _Files | None = None

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        if not await asyncio.to_thread(os.path.isdir, folder_of(self._path)):
            raise NotNow(f"there is no folder '{folder_of(self._path)}'", 1.0)
        self._files = _Files(self._path, self._event_bytes, self._clock, request.position)
        yield self._events(self._files)

    def lag(self) -> SourceLag:
        return {} if self._files is None else {"bytes": float(self._files.unread)}

    async def _events(self, files: _Files) -> AsyncIterator[SourceEvents]:
        while True:
            steps = files.steps()
            began = time.monotonic()
            while (arrived := await asyncio.to_thread(next, steps, None)) is not None:
                yield arrived
                began = time.monotonic()
            await self._sleep(max(LOOK_S, BUSY_PART * (time.monotonic() - began)))


class _Files:
    """What is known of each file; called in one thread at a time."""

    def __init__(self, pattern: str, event_bytes: int, clock: Clock, marks: PositionParts) -> None:
        self._pattern = f"{glob.escape(pattern)}*" if pattern.endswith("/") else pattern
        self._event_bytes, self._clock = event_bytes, clock
        self._marks: dict[str, Any] = dict(marks)
        self._looked: dict[str, tuple[int, int]] = {}
        self.unread = 0

    def steps(self) -> Iterator[SourceEvents]:
        """Look through the folder once, and read what is new in it."""
        entries = self._entries()
        gone = {inode: None for inode in self._marks.keys() - {inode for inode, _, _ in entries}}
        for inode in gone:
            del self._marks[inode]
            self._looked.pop(inode, None)
        if gone:
            yield SourceEvents([], gone)
        waiting = [entry for entry in entries if self._has_news(entry)]
        self.unread = sum(self._unread(entry) for entry in waiting)
        for entry in waiting:
            yield from self._read(entry)

    def _entries(self) -> list[_Entry]:
        entries: list[_Entry] = []
        for path in glob.iglob(self._pattern):
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            if os.path.isfile(path):
                entries.append((f"{status.st_dev}:{status.st_ino}", path, status))
        if len(entries) > MOST_FILES:
            raise NotNow(f"'{self._pattern}' names more than {MOST_FILES} files: move those away that are read", 30.0)
        return sorted(entries, key=lambda entry: (entry[2].st_mtime_ns, entry[1]))

    def _has_news(self, entry: _Entry) -> bool:
        inode, _, status = entry
        if self._looked.get(inode) != (status.st_size, status.st_mtime_ns):
            return True
        return self._is_settled(status) and self._unread(entry) > 0

    def _unread(self, entry: _Entry) -> int:
        inode, path, status = entry
        mark = self._marks.get(inode) or {"offset": 0}
        if path.endswith(".gz"):
            return 0 if mark.get("done") == status.st_size else status.st_size
        return max(0, status.st_size - int(mark["offset"]))

    def _is_settled(self, status: os.stat_result) -> bool:
        return self._clock.now_us() / 1e6 - status.st_mtime >= SETTLED_S

    def _read(self, entry: _Entry) -> Iterator[SourceEvents]:
        inode, path, status = entry
        mark = self._marks.get(inode)
        if mark is not None and not found_in(path, mark, same_inode=True):
            mark = None  # another file took its inode, or it was written anew
        if mark is not None and path.endswith(".gz") and mark.get("done") == status.st_size:
            self._looked[inode] = (status.st_size, status.st_mtime_ns)
            return
        try:
            file = OpenFile(path, self._event_bytes, mark)
        except FileNotFoundError:
            return
        except BROKEN as error:
            yield from self._broken(entry, 0, error)
            return
        try:
            yield from self._lines(entry, file)
        finally:
            file.close()

    def _lines(self, entry: _Entry, file: OpenFile) -> Iterator[SourceEvents]:
        inode, _, status = entry
        while True:
            try:
                lines = file.read_some()
            except BROKEN as error:
                yield from self._broken(entry, file.offset, error)
                return
            if not file.intact():
                return  # it is being written anew: the next look reads it from its beginning
            if lines is None:
                break
            yield self._arrived(inode, lines, file.mark())
            self.unread = max(0, self.unread - sum(map(len, lines)))
        self._looked[inode] = (status.st_size, status.st_mtime_ns)
        settled = self._is_settled(status)
        rest = file.rest() if file.packed or settled else []
        if rest or file.packed:
            mark = file.mark() | ({"done": status.st_size} if file.packed else {})
            yield self._arrived(inode, rest, mark)

    def _broken(self, entry: _Entry, offset: int, error: Exception) -> Iterator[SourceEvents]:
        """A packed file that is still being written, or never will be whole: then a dead letter says so."""
        inode, path, status = entry
        self._looked[inode] = (status.st_size, status.st_mtime_ns)
        if self._is_settled(status):
            why = f"{path} cannot be unpacked behind byte {offset}: {error}".encode()
            last = self._marks.get(inode) or {"inode": inode, "offset": 0, "length": 0, "print": EMPTY, "path": path}
            yield self._arrived(inode, [why], {**last, "done": status.st_size})

    def _arrived(self, inode: str, lines: list[bytes], mark: dict[str, Any]) -> SourceEvents:
        self._marks[inode] = mark
        return SourceEvents(lines, {inode: mark})


def folder_of(pattern: str) -> str:
    """The last folder in front of the first wildcard."""
    at = min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=len(pattern))
    return pattern[: pattern.rfind("/", 0, at) + 1]
