"""The log of one machine, `sqlite:///data/edge.db`: a file that holds the index, and the events in one of its tables.

Network file systems are refused; many machines are Kafka's job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import FolderMismatchError
from penstock.log.index import file
from penstock.log.index.reader import IndexedReader
from penstock.log.index.tables import Stored, Tables
from penstock.log.index.writer import IndexedLog
from penstock.log.log import Stream, Turn


class TablePayloads:
    """Bytes in the table `payloads` of the index, which hands them out together with their block."""

    def __init__(self, tables: Tables | None = None) -> None:
        self._tables = tables
        self._last: int | None = None

    def put(self, stream: Stream, partition: int, data: pa.Buffer, offsets: bytes | None) -> int:
        assert self._tables is not None, "a reader writes nothing"
        number = (self._tables.last_payload() if self._last is None else self._last) + 1
        self._tables.add_payload(number, data, offsets)
        self._last = number
        return number

    def get(self, block: Stored) -> None:
        """What the table does not have is gone."""

    def remove(self, numbers: Sequence[int]) -> None:
        assert self._tables is not None, "a reader writes nothing"
        self._tables.remove_payloads(numbers)


def path_of(place: str) -> Path:
    """The file of a place."""
    return Path(os.fsdecode(unquote_to_bytes(urlsplit(place).path)))


def open_log(place: str, app: str, clock: Clock, turn: Turn = "now") -> IndexedLog:
    """The locks of the folder say whose turn it is."""
    database = file.IndexFileWriter(path_of(place), clock)
    try:
        return IndexedLog(place, database, TablePayloads(database.tables), app, clock)
    except BaseException:
        database.close()
        raise


def open_reader(place: str, *, keep: bool = False) -> IndexedReader:
    return IndexedReader(place, file.IndexFile(path_of(place)), TablePayloads())


def check_place(place: str, app: str) -> None:
    path = path_of(place)
    file.refuse_network(path)
    owner = file.owner(path)
    if owner not in (None, app):
        raise FolderMismatchError(
            f"the folder '{path.parent}' belongs to the app '{owner}', not to '{app}'",
            hint="pass another folder with --data, or give the app its old name",
        )
