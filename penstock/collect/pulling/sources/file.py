"""Follows one file as it grows, through rotation (rename or copy and cut), truncation and restarts, at the right byte.

1. A last line without an end is not yet an event, unless the file was rotated away: then nothing more will come.
2. A file that was rotated away is finished before the new one is begun; so are all that were rotated meanwhile.
3. A file that is gone with lines unread is told loudly, and the live one is read from its beginning.
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from penstock.clock import Clock
from penstock.collect.pulling.open_file import BROKEN, Mark, OpenFile, found_in
from penstock.collect.pulling.pull_source import (
    NotNow,
    PositionParts,
    SourceEvents,
    SourceLag,
    SourceRequest,
    SourceReset,
)
from penstock.pull_origin import Origin, file_path

LOOK_S = 0.25
"""How often a file that has nothing new is looked at."""
GRACE_S = 1.0
"""A writer may go on with a rotated file until it opens the new one; so long after its last line it is finished."""
FILE, SEEN = "file", "seen"
MOST_SEEN = 10
"""Marks of finished files that are kept, so that none is read twice."""


class FileSource:
    """The parts of the position are `file`, the mark of the file that is read, and `seen`, those of finished ones."""

    def __init__(
        self, origin: Origin, event_bytes: int, clock: Clock, sleep: Callable[[float], Awaitable[Any]]
    ) -> None:
        self._path = file_path(origin.url)
        self._event_bytes, self._clock, self._sleep = event_bytes, clock, sleep
        self._tail: _Tail | None = None

    @asynccontextmanager
    async def open(self, request: SourceRequest) -> AsyncIterator[AsyncIterator[SourceEvents]]:
        tail = await asyncio.to_thread(_Tail, self._path, self._event_bytes, self._clock, request.position)
        self._tail = tail
        try:
            yield self._events(tail)
        finally:
            self._tail = None
            await asyncio.to_thread(tail.close)

    def lag(self) -> SourceLag:
        return {} if self._tail is None else {"bytes": float(self._tail.unread)}

    async def _events(self, tail: _Tail) -> AsyncIterator[SourceEvents]:
        while True:
            arrived = await asyncio.to_thread(tail.step)
            if arrived is not None:
                yield arrived
            else:
                await self._sleep(LOOK_S)


class _Tail:
    """What is read now and next; called in one thread at a time."""

    def __init__(self, path: str, event_bytes: int, clock: Clock, position: PositionParts) -> None:
        self._path, self._event_bytes, self._clock = path, event_bytes, clock
        self._seen: list[Mark] = list(position.get(SEEN) or ())
        mark: Mark | None = position.get(FILE)
        self._file: OpenFile | None = None
        self._next: tuple[str, Mark | None] = (path, None)
        self.unread = 0
        if mark is None:
            if not os.path.isfile(path):
                raise NotNow(f"there is no file '{path}'", 1.0)
        else:
            self._take_up(mark)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def step(self) -> SourceEvents | None:
        """The next lines, with the position behind them; None when there is nothing now."""
        if self._file is None and not self._begin():
            return None
        assert self._file is not None
        before = self._file.known()
        try:
            lines = self._file.read_some()
        except BROKEN as error:
            return self._broken(error)
        if not self._file.intact():
            self._cut_off(self._file, before)
            return None
        if lines and not before["offset"] and self._was_overtaken(self._file):
            return None
        self.unread = self._file.unread()
        if lines is not None:
            return SourceEvents(lines, {FILE: self._file.mark()}) if lines else None
        return self._finish() if self._is_finished(self._file) else None

    # Which file

    def _begin(self) -> bool:
        try:
            self._file = OpenFile(self._next[0], self._event_bytes, self._next[1])
        except FileNotFoundError:
            self._next = (self._path, None) if self._next[1] is None else self._next
            return False  # between a rename and the new file
        return True

    def _take_up(self, mark: Mark) -> None:
        """Go on after a restart."""
        files = trail(self._path, mark, self._seen)
        if files.unfinished is None and not mark.get("done"):
            raise SourceReset(f"'{mark['path']}', which was read up to byte {mark['offset']}, is gone")
        self._follow(files, mark)

    def _cut_off(self, file: OpenFile, mark: Mark) -> None:
        """The file is shorter than what was read, or begins otherwise: its lines may stand in a copy."""
        file.close()
        self._file = None
        self._follow(trail(self._path, mark, self._seen), mark)

    def _follow(self, files: Trail, mark: Mark) -> None:
        """The rest of what was begun, else the oldest that was not, else the live file."""
        if files.unfinished is not None:
            self._next = (files.unfinished, mark)
        else:
            self._next = (files.newer[0] if files.newer else self._path, None)

    def _was_overtaken(self, file: OpenFile) -> bool:
        """Before the first line of the live file: whether others were copied away from it and it was cut off."""
        if file.path != self._path or not self._seen:
            return False
        newer = trail(self._path, self._seen[0], self._seen).newer
        if newer:
            file.close()
            self._file, self._next = None, (newer[0], None)
        return bool(newer)

    def _is_finished(self, file: OpenFile) -> bool:
        """At its end, and nobody will write to it: another file stands at the live path."""
        if file.path == self._path and not self._was_renamed(file):
            return False
        return file.packed or file.quiet_s(self._clock.now_us()) >= GRACE_S

    def _was_renamed(self, file: OpenFile) -> bool:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        return f"{status.st_dev}:{status.st_ino}" != file.inode

    def _finish(self) -> SourceEvents:
        assert self._file is not None
        rest = self._file.rest()
        mark = self._file.mark()
        self._follow_on(mark)
        self._seen = [mark, *(seen for seen in self._seen if seen["inode"] != mark["inode"])][:MOST_SEEN]
        self._file.close()
        self._file = None
        return SourceEvents(rest, {FILE: mark | {"done": True}, SEEN: [dict(seen) for seen in self._seen]})

    def _follow_on(self, mark: Mark) -> None:
        """What was rotated between two looks comes before the live file."""
        newer = trail(self._path, mark, self._seen).newer
        self._next = (newer[0] if newer else self._path, None)

    def _broken(self, error: Exception) -> SourceEvents:
        """A packed file that cannot be unpacked: a dead letter says so, and reading goes on behind it."""
        assert self._file is not None
        why = f"{self._file.path} cannot be unpacked behind byte {self._file.offset}: {error}".encode()
        finished = self._finish()
        return SourceEvents([*finished.raws, why], finished.position)


# Where a log file's lines went while nobody looked. A rotated file stands beside the live one under its name and an
# ending of numbers (`app.log.1`, `app.log-20240501`, `app.log.2024-05-01_10`, `app.log.2.gz`) or `.old`.

_ENDING = re.compile(r"[.-](?:\d[\d._:T-]*|old)(?:\.gz)?")


@dataclass(frozen=True)
class Trail:
    """What to read, in order: the rest of the file that was being read, if it must be finished, then newer ones."""

    unfinished: str | None
    """Where the file is now that the mark tells of; None: gone."""
    newer: Sequence[str]
    """Rotated files that were never read, oldest first."""


def trail(path: str, mark: Mark, finished: Sequence[Mark]) -> Trail:
    """From a mark to the live file; `finished` are the marks of files that were read to their end."""
    beside = _beside(path)
    unfinished = _now_at([path, *beside], mark)
    since_ns = (_modified_ns(unfinished) if unfinished is not None else None) or mark["modified_ns"]
    newer = [p for p in beside if p != unfinished and (_modified_ns(p) or 0) >= since_ns]
    return Trail(unfinished, [p for p in newer if not any(_is(p, read) for read in (mark, *finished))])


def _is(path: str, mark: Mark) -> bool:
    """A packed file has another inode than the one that it was made from."""
    return found_in(path, mark, same_inode=not path.endswith(".gz"))


def _now_at(paths: Sequence[str], mark: Mark) -> str | None:
    """By its inode; else by its content, since a copy has another."""
    for same_inode in (True, False):
        for path in paths:
            if (same_inode or mark["length"]) and found_in(path, mark, same_inode=same_inode):
                return path
    return None


def _beside(path: str) -> list[str]:
    """Oldest first. Of a file and its packed twin the packed one is left out."""
    beside = glob.glob(f"{glob.escape(path)}[.-]*")
    rotated = [p for p in beside if _ENDING.fullmatch(p.removeprefix(path)) and os.path.isfile(p)]
    plain = [p for p in rotated if not (p.endswith(".gz") and p.removesuffix(".gz") in rotated)]
    return sorted(plain, key=lambda p: (_modified_ns(p) or 0, p))


def _modified_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
