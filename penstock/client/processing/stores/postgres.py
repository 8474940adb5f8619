"""Keeps a processor's work in PostgreSQL, so that another machine takes over when its owner is gone or silent.

1. Ownership is a lease in a row: it lasts `lease_s` by the database's clock, and every transaction prolongs it.
2. Every transaction of an owner first updates that row where the term is its own. The row's lock puts a transaction
   and a take-over one after the other, so that an owner which was replaced commits nothing, however late it wakes up.
3. A session that stops within a transaction is ended by the server after the lease, so that its lock holds nobody up.
4. A lost connection is opened again for as long as `RETRY_S`, and the transaction repeated.

What fencing cannot do: call back a request that is already on its way when the lease ends.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any, TypeVar

from penstock.client.processing.sql_work import TABLES, Sql, SqlWork
from penstock.client.processing.work import ProcessorQuestion, Resumed
from penstock.errors import MissingPackageError, StoreFencedError, StoreUnavailableError

try:
    import psycopg
except ImportError:
    raise MissingPackageError(
        "a store in PostgreSQL needs the package 'psycopg'", hint="pip install 'penstock[postgres]'"
    ) from None

T = TypeVar("T")
RETRY_S = 30.0
"""How long a database may be away (a restart, a failover) before the processor gives in."""
_PAUSE_S = 0.2
_LOCK_WAIT_MS = 2000
"""How long a process that stands by waits for a transaction of the owner."""
_PASSING = ("08", "25006", "40", "53", "57")
"""SQLSTATEs: connections, a server that became a read-only one, conflicts, resources, somebody's intervention."""
_TABLES_LOCK = 0x70656E73
"""Two processes that make the tables at the same moment take turns: the number of an advisory lock, 'pens' in ASCII."""
_UNFIT = ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort")
"""Plans that read a whole queue to find its first task: it grows faster than statistics, and the indexes fit."""
_NOW_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class PostgresStore(SqlWork):
    """A `WorkStore` that machines share."""

    ONE_OF = "SELECT jsonb_array_elements_text(?::jsonb)"

    def __init__(self, address: str, name: str, lease_s: float) -> None:
        super().__init__(name)
        self.lease_s = lease_s
        self._address = address
        self._guard = RLock()
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._ours_until = 0.0
        """Until when the lease is certainly ours: as the last transaction said that was committed; 0: not known."""
        self._claimed_until = 0.0
        """The same as the transaction under way says."""
        self._connection: psycopg.Connection[Any] | None = None
        self._transact(_make_tables)

    def acquire(self, question: ProcessorQuestion) -> Resumed | None:
        return self._transact(lambda sql: self._take_over(sql, question))

    def _take_over(self, sql: Sql, question: ProcessorQuestion) -> Resumed | None:
        sql.run(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
        begun = time.monotonic()
        try:
            self._introduce(sql)
            query = f"SELECT holder, until_us > {_NOW_US} FROM penstock_processors WHERE name = ? FOR UPDATE"
            ((holder, held),) = sql.rows(query, self.name)
        except psycopg.errors.LockNotAvailable:
            raise _HeldUp from None
        if held and holder != self._holder:
            return None
        resumed = self._become_owner(sql, question, self._holder, 0)
        self._prolong(sql, begun)
        return resumed

    def ensure(self) -> None:
        with self._guard:
            if time.monotonic() >= self._ours_until:
                self.renew()

    def release(self) -> None:
        ours = "UPDATE penstock_processors SET until_us = 0, holder = NULL WHERE name = ? AND term = ?"
        with self._guard:
            self._ours_until = 0.0
            if self._connection is not None and not self._connection.closed:
                with suppress(psycopg.Error):  # then the lease runs out by itself
                    self._once(lambda sql: sql.run(ours, self.name, self.term))

    def close(self) -> None:
        with self._guard:
            self.release()
            if self._connection is not None:
                self._connection.close()

    def _hold(self, sql: Sql) -> None:
        self._prolong(sql, time.monotonic())

    def _prolong(self, sql: Sql, begun: float) -> None:
        until = f"{_NOW_US} + {int(self.lease_s * 1_000_000)}"
        change = f"UPDATE penstock_processors SET until_us = {until} WHERE name = ? AND term = ? AND holder = ?"
        if sql.run(change, self.name, self.term, self._holder) != 1:
            raise StoreFencedError(
                f"another process has taken '{self.name}' over", hint="end this one: it can do no harm"
            )
        self._claimed_until = begun + self.lease_s

    def _transact(self, work: Callable[[Sql], T]) -> T:
        with self._guard:
            deadline = time.monotonic() + RETRY_S
            while True:
                try:
                    return self._once(work)
                except _HeldUp:
                    return None  # type: ignore[return-value]  # only of `acquire`, to which None means the same
                except psycopg.Error as error:
                    if not self._is_lost(error):
                        raise
                    if time.monotonic() > deadline:
                        raise StoreUnavailableError(
                            f"the database of '{self.name}' does not answer",
                            detail=f"{type(error).__name__}: {error}",
                            hint="start the processor again when the database is back: it finishes what is open",
                        ) from None
                    time.sleep(_PAUSE_S)

    def _is_lost(self, error: psycopg.Error) -> bool:
        """Whether the session is gone or of no use, so that the same may succeed in another one."""
        if self._connection is None or self._connection.closed or self._connection.broken:
            return True
        if (error.sqlstate or "").startswith(_PASSING):
            self._connection.close()
            return True
        return False

    def _once(self, work: Callable[[Sql], T]) -> T:
        self._claimed_until = self._ours_until
        try:
            connection = self._connected()
            with connection.transaction(), connection.cursor() as cursor:
                done = work(_Transaction(cursor))
        except BaseException:
            self._ours_until = 0.0
            raise
        self._ours_until = self._claimed_until
        return done

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed or self._connection.broken:
            session = psycopg.connect(self._address, autocommit=True, connect_timeout=5, application_name="penstock")
            session.execute(f"SET idle_in_transaction_session_timeout = {max(1000, int(self.lease_s * 1000))}")
            session.execute("SET statement_timeout = 0")
            for plan in _UNFIT:
                session.execute(f"SET enable_{plan} = off")
            if session.execute("SHOW synchronous_commit").fetchone() == ("off",):
                session.execute("SET synchronous_commit = on")
            self._connection = session
        return self._connection


class _HeldUp(Exception):
    """The owner is within a transaction."""


class _Transaction(Sql):
    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    def rows(self, statement: str, *values: Any) -> list[Any]:
        return self._cursor.execute(statement.replace("?", "%s"), values).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        return self._cursor.execute(statement.replace("?", "%s"), values or None).rowcount

    def many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        self._cursor.executemany(statement.replace("?", "%s"), values)


def _make_tables(sql: Sql) -> None:
    sql.rows("SELECT pg_advisory_xact_lock(?)", _TABLES_LOCK)
    for statement in filter(str.strip, TABLES.split(";")):
        sql.run(statement)
