"""Keeps large snapshots on disk while endpoints take them, so that a slow one holds no memory and no other's turn.

1. Making one depends on nobody outside; a few are made at one time. A webhook that has one waits for no other.
2. All together take `SPOOL_BYTES`, or one alone what it needs. When that is full whoever is taken more slowly than
   `SLOW_BYTES_S` makes room and begins anew later; if nobody is, the new one is tried again later.
3. A file has no name, so that nothing is left of it when the process is gone.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO

from penstock.change import Row
from penstock.clock import Clock
from penstock.errors import SpoolFullError
from penstock.protocol import encode
from penstock.serve.fanout.messages import RowCodec

SPOOL_BYTES = 1024**3
SLOW_BYTES_S = 1_000
"""Slower than any modem."""
GRACE_S = 60.0
"""How long one has to show how fast it is taken."""
MAKERS = 2
"""Snapshots that are made at one time: each holds a list of the view's rows and a thread."""


class LetGo(Exception):
    """The snapshot had to make room."""


@dataclass(eq=False)
class Spooled:
    """One snapshot: the rows of each part as a JSON array. Close it."""

    file: IO[bytes]
    began: float
    ends: list[int] = field(default_factory=lambda: [0])
    taken: int = 0
    """Bytes that its endpoint has taken."""

    @property
    def parts(self) -> int:
        return len(self.ends) - 1

    @property
    def size(self) -> int:
        return self.ends[-1]

    async def part(self, number: int) -> bytes:
        """From 0. Raises `LetGo`."""
        return await asyncio.to_thread(self._read, number)

    def _read(self, number: int) -> bytes:
        start, end = self.ends[number : number + 2]
        try:
            self.file.seek(start)
            return self.file.read(end - start)
        except ValueError:  # it was closed
            raise LetGo from None


class SnapshotSpool:
    """Of one edge. `folder` is on the disk that the log is on; None: the system's folder for such files."""

    def __init__(self, folder: Path | None, clock: Clock, most_bytes: int = SPOOL_BYTES) -> None:
        self._folder, self._clock, self._most = folder, clock, most_bytes
        self.making = asyncio.Semaphore(MAKERS)
        """Held while a large view is read, until its snapshot is on disk."""
        self._held: set[Spooled] = set()
        self._lock = Lock()

    async def put(self, codec: RowCodec, rows: Sequence[Row], part_rows: int) -> Spooled:
        """Raises `SpoolFullError`, or the `OSError` of the disk."""
        spooled = Spooled(await asyncio.to_thread(self._file), self._clock.monotonic())
        self._held.add(spooled)
        filling = asyncio.ensure_future(asyncio.to_thread(self._fill, spooled, codec, rows, part_rows))
        try:
            await asyncio.shield(filling)
        except BaseException:
            filling.add_done_callback(partial(self._abandoned, spooled))
            raise
        return spooled

    def _abandoned(self, spooled: Spooled, filling: asyncio.Future[None]) -> None:
        if not filling.cancelled():
            filling.exception()
        self.close(spooled)

    def close(self, spooled: Spooled) -> None:
        """As often as you like."""
        with self._lock:
            self._close(spooled)

    def _close(self, spooled: Spooled) -> None:
        self._held.discard(spooled)
        spooled.file.close()

    def _file(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self._folder)

    def _fill(self, spooled: Spooled, codec: RowCodec, rows: Sequence[Row], part_rows: int) -> None:
        for start in range(0, max(len(rows), 1), part_rows):
            raw = encode(codec.rows(rows[start : start + part_rows]))
            self._make_room(spooled, len(raw))
            spooled.file.write(raw)
            spooled.ends.append(spooled.size + len(raw))

    def _make_room(self, spooled: Spooled, size: int) -> None:
        with self._lock:
            while sum(one.size for one in self._held) + size > self._most and len(self._held) > 1:
                slow = [one for one in self._held if one is not spooled and self._is_slow(one)]
                if not slow:
                    raise SpoolFullError(
                        "there is no room for the snapshot of this webhook beside those of others",
                        hint="it is tried again by itself; endpoints that answer sooner make room sooner",
                    )
                self._close(max(slow, key=lambda one: one.size))

    def _is_slow(self, one: Spooled) -> bool:
        age_s = self._clock.monotonic() - one.began
        return age_s > GRACE_S and one.taken < age_s * SLOW_BYTES_S
