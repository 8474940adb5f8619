"""Opens a log by its place, a URL that says where it lies: nobody else knows which backends there are.

`sqlite:///data/edge.db` is a file of this machine; `kafka://host:9092/shop/edge?index=...` lies on a Kafka cluster;
`memory://name` lies in this process alone, for tests. A place is text, so that it travels to any process: Spark's
workers open the log that a stream names (`Stream.place`).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from urllib.parse import urlsplit

from penstock.clock import Clock, SystemClock
from penstock.log.log import Log, LogReader

_BACKENDS = ("sqlite", "memory", "kafka")
"""Schemes, each of which is the name of a module in `log/logs`; it is imported only if such a log is opened."""


def open_log(place: str, *, app: str, clock: Clock | None = None) -> Log:
    """Become the writer of a log, which is made if need be: any other writer's next append fails. Raises
    `FolderMismatchError` when it is another app's."""
    log: Log = _backend(place).open_log(place, app, clock or SystemClock())
    return log


def open_reader(place: str) -> LogReader:
    """A reader of a log, which need not exist yet."""
    reader: LogReader = _backend(place).open_reader(place)
    return reader


def check_place(place: str, app: str) -> None:
    """Raise `FolderMismatchError` when no log may lie there, or another app's does. Nothing is touched."""
    _backend(place).check_place(place, app)


def _backend(place: str) -> ModuleType:
    scheme = urlsplit(place).scheme
    if scheme not in _BACKENDS:
        raise ValueError(f"'{place}' is not the place of a log: it begins with one of {', '.join(_BACKENDS)}")
    return import_module(f"penstock.log.logs.{scheme}")
