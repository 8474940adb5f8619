"""Reads the rows of a table from PostgreSQL: one query, in a transaction that only reads and sees one moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from penstock.collect.judging.judge import Judge
from penstock.collect.pulling.credentials import Credentials
from penstock.collect.pulling.pull_source import NotNow
from penstock.collect.pulling.table_source import MOST_ROWS, TableReading, nullable
from penstock.errors import MissingPackageError
from penstock.pull_origin import Origin

CONNECT_S = 10
READ_S = 300.0
TOGETHER_ROWS = 2_000
"""Rows that are turned into Python's values at once, on the loop: about 2 ms."""
_encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode


class PostgresTable:
    """What one query gives. Nothing tells whether it would give the same again, so it has no mark."""

    def __init__(self, origin: Origin, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self._origin, self._credentials = origin, Credentials(origin)

    async def mark(self) -> Any:
        return None

    async def read(self, judge: Judge) -> TableReading:
        import psycopg

        try:
            async with asyncio.timeout(READ_S):
                names, rows = await self._rows()
        except TimeoutError:
            raise NotNow(f"the query took longer than {READ_S:g} s") from None
        except psycopg.Error as error:
            raise NotNow(f"the database refused: {str(error).strip().splitlines()[0]}") from None
        if len(set(names)) < len(names):
            raise NotNow(f"the query gives two columns of one name: {', '.join(names)}")
        decoded = await asyncio.to_thread(lambda: judge.decode_each(_as_json(names, rows, nullable(judge))))
        return TableReading(decoded, frozenset(names))

    async def _rows(self) -> tuple[list[str], list[Sequence[Any]]]:
        try:
            import psycopg
        except ImportError:
            raise MissingPackageError(
                "a pull from PostgreSQL needs the package 'psycopg'", hint="pip install 'penstock[postgres]'"
            ) from None
        connection = await psycopg.AsyncConnection.connect(
            self._origin.url, connect_timeout=CONNECT_S, application_name="penstock", **self._settings()
        )
        async with connection:
            await connection.set_read_only(True)
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            cursor = await connection.execute(self._origin.query or "")
            if cursor.description is None:
                raise NotNow("the query gives no rows: write a SELECT")
            if cursor.rowcount > MOST_ROWS:
                raise NotNow(f"the query gives more than {MOST_ROWS} rows")
            names = [column.name for column in cursor.description]
            rows: list[Sequence[Any]] = []
            while some := await cursor.fetchmany(TOGETHER_ROWS):
                rows += some
                await asyncio.sleep(0)
            return names, rows

    def _settings(self) -> dict[str, Any]:
        password = self._credentials.secret()
        return self._credentials.settings() | ({} if password is None else {"password": password})


def _as_json(names: Sequence[str], rows: Sequence[Sequence[Any]], nullable: frozenset[str]) -> list[bytes]:
    """A null is a field that is not there, unless the field may be null."""
    return [_encode({n: v for n, v in zip(names, row, strict=True) if v is not None or n in nullable}) for row in rows]
