"""Opens a log by its place, a URL that says where it lies: nobody else knows which backends there are.

`sqlite:///data/edge.db` is a file of this machine; `kafka://host:9092/shop/edge?index=...` lies on a
Kafka cluster, and `kafkas://` too, over TLS; `memory://name` lies in this process alone, for tests. A place is text, so
that it travels to any process: Spark's workers open the log that a stream names (`Stream.place`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.log.index.reader import IndexedReader, PlacedRange
from penstock.log.index.tables import Payloads, WritableDatabase
from penstock.log.log import Block, Log, LogReader, Stream, Turn
from penstock.log.topic import Topic

_BACKENDS = {"sqlite": "sqlite", "memory": "memory", "kafka": "kafka", "kafkas": "kafka"}
"""By scheme, the name of a module in `log/logs`; it is imported only if such a log is opened."""


def open_log(place: str, *, app: str, clock: Clock | None = None, turn: Turn = "now") -> Log:
    """Become the writer of a log, which is made if need be: any other writer's next append fails. Raises
    `FolderMismatchError` when it is another app's, and `LogHeldError` when it is another writer's turn."""
    log: Log = _backend(place).open_log(place, app, clock or SystemClock(), turn)
    return log


def open_reader(place: str, *, keep: bool = False) -> LogReader:
    """A reader of a log, which need not exist yet. `keep`: for a process that stays and asks often; where the log is
    written on another machine it follows it on behalf of all processes of its folder."""
    reader: LogReader = _backend(place).open_reader(place, keep=keep)
    return reader


def placed(log: LogReader, stream: Stream, partition: int, start: int, end: int) -> bytes | None:
    """A range with where its blocks lie, for `read_placed`; None: it can be read through the log alone."""
    found = log.placed(stream, partition, start, end) if isinstance(log, IndexedReader) else None
    return None if found is None else zlib.compress(msgspec.msgpack.encode(found), 1)


def access(place: str) -> Any:
    """What a process on another machine needs to read what lies there, besides the place: it may hold secrets, and so
    is handed from process to process and written nowhere. None: nothing."""
    backend = _backend(place)
    return backend.access(place) if hasattr(backend, "access") else None


def read_placed(
    stream: Stream, data: bytes, columns: Sequence[str] | None = None, given: Any = None
) -> Iterator[Block]:
    """The blocks of a range that `placed` gave, in any process, without an index, with what `access` gave or what this
    process has itself. Raises `PositionGoneError`."""
    found = msgspec.msgpack.decode(zlib.decompress(data), type=PlacedRange)
    blocks: Iterator[Block] = _backend(stream.place).read_placed(stream, found, columns, given)
    return blocks


def open_topic(place: str, name: str, partitions: int, *, compacted: bool, retention_ms: int = -1) -> Topic:
    """A topic for other programs beside a log. Only one that lies on Kafka has them."""
    topic: Topic = _backend(place).open_topic(place, name, partitions, compacted=compacted, retention_ms=retention_ms)
    return topic


def open_copy(place: str, app: str, clock: Clock) -> tuple[WritableDatabase, Payloads]:
    """The tables of a log that another one is copied into, in our hands: `log_copy.py` fills them."""
    opened: tuple[WritableDatabase, Payloads] = _backend(place).open_copy(place, app, clock)
    return opened


def mend(place: str) -> list[str]:
    """Give what a log on Kafka lies in the settings that it should have; says what was changed."""
    changed: list[str] = _backend(place).mend(place)
    return changed


def check_place(place: str, app: str) -> None:
    """Raise `FolderMismatchError` when no log may lie there, or another app's does. Nothing is touched."""
    _backend(place).check_place(place, app)


def _backend(place: str) -> ModuleType:
    scheme = urlsplit(place).scheme
    if scheme not in _BACKENDS:
        raise ValueError(f"'{place}' is not the place of a log: it begins with one of {', '.join(_BACKENDS)}")
    return import_module(f"penstock.log.logs.{_BACKENDS[scheme]}")
