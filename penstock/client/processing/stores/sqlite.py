"""Keeps a processor's work in one SQLite file, fsynced at each commit; a lock beside it makes one process its owner."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from penstock.client.processing.sql_work import TABLES, Sql, SqlWork
from penstock.client.processing.work import ProcessorQuestion, Resumed
from penstock.errors import DiskFullError, StoreFencedError, StoreMismatchError, StoreUnavailableError

T = TypeVar("T")
BUSY_S = 10.0
"""How long a transaction waits for that of somebody who looks at the same file."""


class SqliteStore(SqlWork):
    """A `WorkStore` for one machine. The file must not lie on a network file system: its locks are the machine's."""

    ONE_OF = "SELECT value FROM json_each(?)"
    lease_s = None

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(name)
        self._path = path = path.resolve()  # however it is spelled, one file has one lock
        self._guard = RLock()
        self._lock: int | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(TABLES)
        except sqlite3.Error as error:
            self._db.close()
            raise StoreMismatchError(
                f"'{path}' cannot be used as a store", detail=str(error), hint="choose another file"
            ) from None

    def acquire(self, question: ProcessorQuestion) -> Resumed | None:
        with self._guard:
            if self._lock is None:
                self._lock = _locked(self._path.with_name(f"{self._path.name}.{self.name}.lock"))
            if self._lock is None:
                return None
            try:
                return self._transact(lambda sql: self._own(sql, question))
            except BaseException:
                self.release()
                raise

    def _own(self, sql: Sql, question: ProcessorQuestion) -> Resumed:
        self._introduce(sql)
        return self._become_owner(sql, question, str(os.getpid()), 0)

    def ensure(self) -> None:
        """Ownership is as long as the process, unless somebody has removed the lock's file."""
        self.renew()

    def release(self) -> None:
        with self._guard:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def close(self) -> None:
        with self._guard:
            self.release()
            self._db.close()

    def _hold(self, sql: Sql) -> None:
        terms = sql.rows("SELECT term FROM penstock_processors WHERE name = ?", self.name)
        if self._lock is None or terms != [(self.term,)]:
            raise StoreFencedError(
                f"another process has taken '{self.name}' over in '{self._path}'",
                hint="end this one: it can do no harm",
            )

    def _transact(self, work: Callable[[Sql], T]) -> T:
        with self._guard:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                done = work(_Transaction(self._db))
                self._db.execute("COMMIT")
                return done
            except sqlite3.Error as error:
                raise self._trouble(error) from None
            finally:
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")

    def _trouble(self, error: sqlite3.Error) -> DiskFullError | StoreUnavailableError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what makes an extended code of it
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return DiskFullError(
                f"the store '{self._path}' cannot be written", detail=str(error), hint="make room on that disk"
            )
        return StoreUnavailableError(
            f"the store '{self._path}' cannot be used",
            detail=f"{type(error).__name__}: {error}",
            hint="see what else uses the file, and that it may be written; then start the processor again",
        )


class _Transaction(Sql):
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def rows(self, statement: str, *values: Any) -> list[Any]:
        return self._db.execute(statement, values).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        return self._db.execute(statement, values).rowcount

    def many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        self._db.executemany(statement, values)


def _locked(path: Path) -> int | None:
    """An open file whose lock ends with this process, however it ends; None if another has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
