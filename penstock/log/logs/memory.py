"""The log of one process, `memory://name`: the index in SQLite's memory, the events in a dict; for tests.

1. It holds the same promises as a file, as long as the process lives: whoever opens the name again finds what was
   there, until somebody calls `forget`.
2. All threads share one connection and one lock, which the writer holds for a whole transaction, so that nobody sees
   half of it.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import DiskFullError, FolderMismatchError
from penstock.log.index.reader import IndexedReader
from penstock.log.index.tables import Index, Look, Stored, Tables, Values
from penstock.log.index.writer import IndexedLog
from penstock.log.log import LogHealth, Stream, Turn

T = TypeVar("T")
Payload = tuple[Any, bytes | None]


class Memory:
    """One log's tables and payloads."""

    answer_s = 20.0
    problem = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.payloads: dict[int, Payload] = {}
        self.room: int | None = None
        """Bytes that a payload may take; None: as many as there are. For tests of what happens when there is none."""
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._tables = Tables(self.connection, name)
        self._lock = threading.RLock()
        self._is_log = False
        self._last = 0
        self._staged: dict[int, Payload | None] = {}

    # The database

    def rows(self, sql: str, values: Values = ()) -> list[Any]:
        with self._lock:
            return self.connection.execute(sql, values).fetchall() if self._is_log else []

    def some(self, sql: str, values: Values, take: Callable[[Iterable[Any]], list[T]]) -> list[T]:
        return take(self.rows(sql, values))

    def revision(self) -> int:
        with self._lock:
            return self.connection.total_changes

    def at_one_moment(self, work: Callable[[Look], Iterator[T]]) -> Iterator[T]:
        with self._lock:
            answers = list(work(self))
        yield from answers

    def check_turn(self) -> None:
        """Every transaction does."""

    def abandon(self) -> None:
        """A commit ends by itself."""

    def claim(self, app: str) -> int:
        with self.transaction() as tables:
            term = tables.claim(app)
        self._is_log = True
        return term

    @contextmanager
    def transaction(self, term: int | None = None) -> Iterator[Tables]:
        with self._lock:
            self.connection.execute("BEGIN")
            try:
                if term is not None:
                    self._tables.check_term(term)
                yield self._tables
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            else:
                self.connection.execute("COMMIT")
                self.payloads |= {number: payload for number, payload in self._staged.items() if payload is not None}
                for number in [number for number, payload in self._staged.items() if payload is None]:
                    self.payloads.pop(number, None)
            finally:
                self._staged = {}

    def writer(self) -> None:
        """It is this process."""

    def health(self) -> LogHealth:
        return LogHealth("memory", lag=0)

    def see_all(self) -> None:
        """Every question does."""

    def tidy(self) -> None:
        """There is nothing that could have grown."""

    def close(self) -> None:
        """It stays: others may read it, or open it again."""

    # The payloads

    def put(self, stream: Stream, partition: int, data: pa.Buffer, offsets: bytes | None) -> int:
        if self.room is not None and data.size > self.room:
            raise DiskFullError("the log's memory has no room", detail=self.name, hint="make some; then send again")
        self._last += 1
        self._staged[self._last] = (data, offsets)
        return self._last

    def get(self, block: Stored) -> Payload | None:
        return self.payloads.get(block.payload)

    def remove(self, numbers: Sequence[int]) -> None:
        self._staged |= dict.fromkeys(numbers)


_memories: dict[str, Memory] = {}
"""The logs of this process by their place, as a file system has files by their path."""
_lock = threading.Lock()


def memory_of(place: str) -> Memory:
    with _lock:
        return _memories.setdefault(place, Memory(place))


def forget(place: str) -> None:
    """What lies there, and at every place below it, is gone for whoever opens it next."""
    with _lock:
        for name in [name for name in _memories if name == place or name.startswith(f"{place}/")]:
            del _memories[name]


@contextmanager
def temporary_place() -> Iterator[str]:
    """A place that nobody else knows, for as long as the `with` lasts."""
    place = f"memory://{secrets.token_hex(8)}"
    try:
        yield place
    finally:
        forget(place)


def open_log(place: str, app: str, clock: Clock, turn: Turn = "now") -> IndexedLog:
    memory = memory_of(place)
    return IndexedLog(place, memory, memory, app, clock)


def open_reader(place: str, *, keep: bool = False) -> IndexedReader:
    memory = memory_of(place)
    return IndexedReader(place, memory, memory)


def check_place(place: str, app: str) -> None:
    owner = Index(memory_of(place)).meta().get("app")
    if owner not in (None, app):
        raise FolderMismatchError(f"'{place}' belongs to the app '{owner}', not to '{app}'")
