"""Keeps the index of a log that is written elsewhere as new as its journal, for all processes of a data folder.

One process of a folder follows the journal, its *keeper*; the others look at the index and ask Kafka nothing. Where the
log's writer works on the folder it is the keeper itself: it applies its record before it acknowledges it.

1. Whoever keeps an index holds a lock, which the kernel lets go of with the process, and leaves a *pulse* several times
   a second. A lock without a pulse is that of a process which stands still: others ask Kafka themselves.
2. A keeper that follows is behind by the time that Kafka takes to hand a record on, some milliseconds. Who was given a
   position elsewhere and does not find it asks Kafka before it says so (`LogReader.see_all`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.errors import LogUnavailableError
from penstock.log.logs.kafka_journal import State

PULSE_S = 0.25
FRESH_S = 2.0
"""A pulse as old as this is that of a process that stands still, or of a machine so busy that asking Kafka is cheap."""
_TRIES = 100
_TRY_S = 0.001
_WAIT_S = 0.1
_AWAY_S = 1.0

_log = logging.getLogger(__name__)


class Pulse(NamedTuple):
    """What a keeper says of itself and of the writer, in nanoseconds of this machine's own clock."""

    at_ns: int
    heard_ns: int
    """When the log's writer was last heard of; 0: not yet."""
    lag: int
    """Records of the journal that the index does not have yet."""


_PULSE = struct.Struct("<qqq")


class Hold:
    """A lock on a file beside the index, with a pulse in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    @property
    def is_held(self) -> bool:
        return self._file is not None

    def take(self) -> bool:
        """Whether it is ours; not where another process has it. One that just looks is waited for."""
        if self._file is not None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(_TRIES):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(file, _PULSE.pack(0, 0, 0), 0)
                self._file = file
                return True
            if self.look() is not None:
                break
            time.sleep(_TRY_S)
        os.close(file)
        return False

    def pulse(self, heard_ns: int, lag: int = 0) -> None:
        if self._file is not None:
            os.pwrite(self._file, _PULSE.pack(time.monotonic_ns(), heard_ns, lag), 0)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def look(self) -> Pulse | None:
        """The pulse of whoever holds it; None: nobody does, or who does stands still. Those who look share the lock for
        a moment, so that none takes another for a keeper."""
        try:
            file = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            data = os.pread(file, _PULSE.size, 0)
            if len(data) < _PULSE.size:
                return None
            pulse = Pulse._make(_PULSE.unpack(data))
            return pulse if 0 <= time.monotonic_ns() - pulse.at_ns < FRESH_S * 1e9 else None
        finally:
            os.close(file)
        return None


class FollowedJournal(Protocol):
    """What a keeper needs of a journal, with clients of its own: it waits for records while others ask."""

    def follow(self, wait_s: float) -> State:
        """Apply what comes within a time, at once when it comes; gives the state of the index behind it."""

    def lag(self) -> int:
        """How many records are known of that were not applied."""

    def close(self) -> None: ...


class IndexKeeper:
    """A thread that keeps the index as long as nobody else in the folder does."""

    def __init__(self, open_journal: Callable[[], FollowedJournal], written: Hold, kept: Hold) -> None:
        self._open_journal = open_journal
        self._written, self._kept = written, kept
        self._ended = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._live, name="index-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _live(self) -> None:
        while not self._ended.is_set():
            try:
                if self._written.look() is None and self._kept.take():
                    self._keep()
            except Exception as error:
                if not self._failed:
                    quiet = isinstance(error, LogUnavailableError)
                    _log.warning("the index beside '%s' is not kept: %s", self._kept.path, error, exc_info=not quiet)
                self._failed = True
                self._ended.wait(_AWAY_S)
            finally:
                self._kept.release()
            self._ended.wait(PULSE_S)

    def _keep(self) -> None:
        journal = self._open_journal()
        try:
            heard_ns, signs = 0, -1
            while not self._ended.is_set() and self._written.look() is None:
                state = journal.follow(_WAIT_S)
                if signs >= 0 and state.signs != signs:  # what was there at the beginning may be of long ago
                    heard_ns = time.monotonic_ns()
                signs, self._failed = state.signs, False
                self._kept.pulse(heard_ns, journal.lag())
        finally:
            journal.close()
