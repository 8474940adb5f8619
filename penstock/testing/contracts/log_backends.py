"""Registers the log's backends with what a contract test must be able to do to them: open, damage, starve, cut."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

from penstock.clock import Clock
from penstock.config import sqlite_place
from penstock.log.log import Log, LogReader
from penstock.log.logs.sqlite import SqliteLog
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts import sqlite_tearing


class LogBackend(Protocol):
    """How the contract's tests handle one kind of log. `place` is a folder of the test's own."""

    def open(self, place: Path, clock: Clock | None = None) -> Log:
        """Become the writer."""

    def reader(self, place: Path) -> LogReader: ...

    def damage(self, place: Path, what: str) -> None:
        """Change what is stored of the newest block: `byte` (of its events), `place` or `missing`."""

    def starved(self, log: Log) -> AbstractContextManager[None]:
        """Within it the log has no room for more than a few kilobytes."""

    def hurry(self, log: Log) -> None:
        """From now on it moves what it has written to its last place often, so that a power cut can meet that."""

    def copy(self, place: Path, into: Path) -> None:
        """What a new folder would hold if the power failed now, just after an acknowledgement."""

    def cut_between(self, before: Path, after: Path, into: Path, chance: Random) -> None:
        """Make a folder as a power cut may leave it during the one commit between these two copies."""

    def tail_bytes(self, copy: Path) -> int:
        """How long that is which only ever grows by commits while nothing is moved."""

    def cut_tail(self, whole: Path, into: Path, at: int, chance: Random) -> None:
        """Make a folder in which everything behind so many of these bytes is lost."""


class SqliteBackend:
    """`penstock.log.logs.sqlite`."""

    def open(self, place: Path, clock: Clock | None = None) -> Log:
        return open_log(sqlite_place(place / "log.db"), app="contract", clock=clock)

    def reader(self, place: Path) -> LogReader:
        return open_reader(sqlite_place(place / "log.db"))

    def damage(self, place: Path, what: str) -> None:
        with closing(sqlite3.connect(place / "log.db")) as connection, connection:
            newest = "(SELECT max(payload) FROM blocks)"
            if what == "byte":
                ((data,),) = connection.execute(f"SELECT data FROM payloads WHERE id = {newest}").fetchall()
                changed = bytes([*data[:-9], data[-9] ^ 1, *data[-8:]])
                connection.execute(f"UPDATE payloads SET data = ? WHERE id = {newest}", (changed,))
            elif what == "place":
                connection.execute(f"UPDATE blocks SET written_us = written_us + 1 WHERE payload = {newest}")
            elif what == "missing":
                connection.execute(f"DELETE FROM payloads WHERE id = {newest}")

    @contextmanager
    def starved(self, log: Log) -> Iterator[None]:
        assert isinstance(log, SqliteLog)
        ((pages,),) = log._writer.execute("PRAGMA page_count").fetchall()
        log._writer.execute(f"PRAGMA max_page_count = {pages + 1}").fetchall()
        try:
            yield
        finally:
            log._writer.execute(f"PRAGMA max_page_count = {2**30}").fetchall()

    def hurry(self, log: Log) -> None:
        assert isinstance(log, SqliteLog)
        log._writer.execute("PRAGMA wal_autocheckpoint = 12").fetchall()

    def copy(self, place: Path, into: Path) -> None:
        sqlite_tearing.copy(place, into)

    def cut_between(self, before: Path, after: Path, into: Path, chance: Random) -> None:
        sqlite_tearing.cut_between(before, after, into, chance)

    def tail_bytes(self, copy: Path) -> int:
        return (copy / sqlite_tearing.WAL).stat().st_size

    def cut_tail(self, whole: Path, into: Path, at: int, chance: Random) -> None:
        sqlite_tearing.cut_tail(whole, into, at, chance)


BACKENDS: dict[str, LogBackend] = {"sqlite": SqliteBackend()}
"""By the name of the module in `penstock.log.logs`."""
