"""Follows one file as it grows, through rotation (rename or copy and cut), truncation and restarts, at the right byte.

1. A last line without an end is not yet an event, unless the file was rotated away: then nothing more will come.
2. A file that was rotated away is finished before the new one is begun; so are all that were rotated meanwhile.
3. A file that is gone with lines unread is told loudly, and the live one is read from its beginning.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.clock import Clock
from penstock.collect.pulling.open_file import BROKEN, Mark, OpenFile
from penstock.collect.pulling.rotated import Trail, trail
from penstock.collect.pulling.source import Arrived, Ask, Lag, NotNow, Parts, Reset
from penstock.origin import Origin, file_path

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
    async def open(self, ask: Ask) -> AsyncIterator[AsyncIterator[Arrived]]:
        tail = await asyncio.to_thread(_Tail, self._path, self._event_bytes, self._clock, ask.position)
        self._tail = tail
        try:
            yield self._events(tail)
        finally:
            self._tail = None
            await asyncio.to_thread(tail.close)

    def lag(self) -> Lag:
        return {} if self._tail is None else {"bytes": float(self._tail.unread)}

    async def _events(self, tail: _Tail) -> AsyncIterator[Arrived]:
        while True:
            arrived = await asyncio.to_thread(tail.step)
            if arrived is not None:
                yield arrived
            else:
                await self._sleep(LOOK_S)


class _Tail:
    """What is read now and next; called in one thread at a time."""

    def __init__(self, path: str, event_bytes: int, clock: Clock, position: Parts) -> None:
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

    def step(self) -> Arrived | None:
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
            return Arrived(lines, {FILE: self._file.mark()}) if lines else None
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
        found = trail(self._path, mark, self._seen)
        if found.unfinished is None and not mark.get("done"):
            raise Reset(f"'{mark['path']}', which was read up to byte {mark['offset']}, is gone")
        self._follow(found, mark)

    def _cut_off(self, file: OpenFile, mark: Mark) -> None:
        """The file is shorter than what was read, or begins otherwise: its lines may stand in a copy."""
        file.close()
        self._file = None
        self._follow(trail(self._path, mark, self._seen), mark)

    def _follow(self, found: Trail, mark: Mark) -> None:
        """The rest of what was begun, else the oldest that was not, else the live file."""
        if found.unfinished is not None:
            self._next = (found.unfinished, mark)
        else:
            self._next = (found.newer[0] if found.newer else self._path, None)

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

    def _finish(self) -> Arrived:
        assert self._file is not None
        rest = self._file.rest()
        mark = self._file.mark()
        self._follow_on(mark)
        self._seen = [mark, *(known for known in self._seen if known["inode"] != mark["inode"])][:MOST_SEEN]
        self._file.close()
        self._file = None
        return Arrived(rest, {FILE: mark | {"done": True}, SEEN: [dict(known) for known in self._seen]})

    def _follow_on(self, mark: Mark) -> None:
        """What was rotated between two looks comes before the live file."""
        newer = trail(self._path, mark, self._seen).newer
        self._next = (newer[0] if newer else self._path, None)

    def _broken(self, error: Exception) -> Arrived:
        """A packed file that cannot be unpacked: a dead letter says so, and reading goes on behind it."""
        assert self._file is not None
        why = f"{self._file.path} cannot be unpacked behind byte {self._file.offset}: {error}".encode()
        finished = self._finish()
        return Arrived([*finished.raws, why], finished.position)
