"""Reads the rows of a table from one file, whole: CSV with a header, Parquet, a JSON array, or JSON lines.

1. A file that changes while it is looked at is not read: half of it would look as if the other half were deleted.
2. An empty file is no file of no rows: it is what a writer that was stopped leaves behind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.collect.contents.arrow import decode_table
from penstock.collect.contents.csv import csv_header, decode_csv
from penstock.collect.judging.json_events import lines_of
from penstock.collect.judging.judge import Judge
from penstock.collect.pulling.pull_source import NotNow
from penstock.collect.pulling.table_source import MOST_ROWS, TableReading
from penstock.errors import BadBodyError, TooLargeError
from penstock.pull_origin import Origin, file_path

SETTLED_S = 0.5
"""A file that has not changed for so long is taken to be whole."""
_raws = msgspec.json.Decoder(list[msgspec.Raw])


class TableFile:
    """One file; read in a thread."""

    def __init__(self, origin: Origin, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self._path, self._sleep = Path(file_path(origin.url)), sleep

    async def mark(self) -> Any:
        return await asyncio.to_thread(self._mark)

    async def read(self, judge: Judge) -> TableReading:
        before = await self.mark()
        await self._sleep(SETTLED_S)
        read = await asyncio.to_thread(self._read, judge)
        if await self.mark() != before:
            raise NotNow(f"'{self._path}' is being written", SETTLED_S)
        return TableReading(read.decoded, read.columns, before)

    def _mark(self) -> Any:
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise NotNow(f"'{self._path}' cannot be read: {error.strerror}") from None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self, judge: Judge) -> TableReading:
        try:
            if self._path.suffix.lower() == ".parquet":
                return _parquet(self._path, judge)
            body = self._path.read_bytes()
            if not body.strip():
                raise NotNow(f"'{self._path}' is empty")
            return (_csv if self._path.suffix.lower() == ".csv" else _json)(body, judge)
        except OSError as error:
            raise NotNow(f"'{self._path}' cannot be read: {error.strerror or error}") from None
        except (BadBodyError, TooLargeError, pa.ArrowException, msgspec.DecodeError) as error:
            detail = getattr(error, "detail", None) or str(error)
            raise NotNow(f"'{self._path}' does not hold rows of this table: {detail}") from None


def _csv(body: bytes, judge: Judge) -> TableReading:
    names = frozenset(name.partition(".")[0] for name in csv_header(body))
    return TableReading(decode_csv(judge, body, MOST_ROWS), names)


def _parquet(path: Path, judge: Judge) -> TableReading:
    with pq.ParquetFile(path) as file:
        if file.metadata.num_rows > MOST_ROWS:
            raise NotNow(f"'{path}' has more than {MOST_ROWS} rows")
        table = file.read()
    plain = [_unfolded(column) for column in table.columns]
    return TableReading(decode_table(judge, pa.table(plain, names=table.column_names)), frozenset(table.column_names))


def _unfolded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A dictionary says the same texts in another way."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _json(body: bytes, judge: Judge) -> TableReading:
    array = body.lstrip()[:1] == b"["
    raws = [bytes(raw) for raw in _raws.decode(body)] if array else lines_of(body)
    if len(raws) > MOST_ROWS:
        raise NotNow(f"it has more than {MOST_ROWS} rows")
    return TableReading(judge.decode_each(raws))
