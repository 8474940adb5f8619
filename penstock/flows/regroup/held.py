"""Rows that regrouped views are computed from, and those views' own rows, in an SQLite file that can be found by value.

Everything here is derived from the log. The file may be lost, damaged or older than the log: then it is filled again.

1. What a step changes here, it changes in one transaction, together with how far each table has followed the log.
2. The log comes first: a step is committed there before it is committed here. So this file may be behind, never ahead.
3. Values by which rows are found are bytes that are equal when Spark calls the values equal (`cells.py`).
4. A `HeldSnapshot` shows the file as one transaction left it, however many follow. What is computed on it lies over its
   tables, and nobody else sees that.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.flows.keep import row_times
from penstock.flows.regroup.cells import array_of, cells_of, values_of, width

_CACHE_KIB = 64 * 1024
_SNAPSHOT_CACHE_KIB = 16 * 1024
_WAL_BYTES = 64 * 1024**2
"""What is left of the WAL when a snapshot that has kept it from being taken over has ended."""
_VALUES_AT_ONCE = 30_000
"""SQLite takes 32,766 values in one statement."""

_FOLLOWED = ("reached", "filling")
"""Facts about a table that a new one of its name begins without."""
_KEY = itemgetter(0)

Index = tuple[str, ...]
"""Expressions over a table's columns by whose values its rows are found."""


Order = tuple[str | None, tuple[tuple[str, bool], ...]]
"""By what first rows are found: SQL of a condition that they meet, and columns, each with whether it is descending."""
_WANTED = '"penstock/wanted"'
"""A name that no table of an app has."""
_TRUE = values_of([pa.array([True])])[0]


@dataclass(frozen=True)
class Shape:
    """What a table holds: its columns, the key of its rows, and by what they are found."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    expires: bool = False
    """Its rows are looked for by their time, too."""
    time: str | None = None
    """The column that is their time, where it is not that of a view's rows."""
    orders: tuple[Order, ...] = ()
    """Orders of which the first rows are read; the condition of each is one of `indexes`."""

    @property
    def digest(self) -> str:
        """Another one: the table is filled again."""
        columns = [f"{field.name} {field.type}" for field in self.schema]
        told = (columns, self.key, self.indexes, self.expires, self.time, self.orders)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def terms(self, order: Order) -> list[tuple[str, str]]:
        """The columns of an order in SQLite, which then has Spark's order, and how each is sorted."""
        place, cells = 0, {}
        for field in self.schema:
            cells[field.name] = (f"c{place}", pa.types.is_floating(field.type))
            place += width(field.type)
        terms = [(cells[name], "DESC" if descending else "ASC") for name, descending in order[1]]
        return [(f"iif({cell} = x'2d30', 0.0, {cell})" if is_float else cell, way) for (cell, is_float), way in terms]


class HeldFile:
    """The file. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = _opened(path)
        self.tables: dict[str, Table] = {}

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def table(self, shape: Shape) -> Table:
        """The table of this shape, made anew and empty if there is none, or one of another shape."""
        stored = self._fact(f"shape/{shape.name}")
        if stored != shape.digest:
            with self.transaction():
                self._make(shape)
        self.tables[shape.name] = Table(shape, self._connection)
        return self.tables[shape.name]

    def snapshot(self) -> HeldSnapshot:
        """All tables as the last transaction has left them; called between two."""
        return HeldSnapshot(self.path, {name: table.shape for name, table in self.tables.items()})

    def _make(self, shape: Shape) -> None:
        name = _quoted(shape.name)
        self._connection.execute(f"DROP TABLE IF EXISTS {name}")
        self._connection.execute(f"CREATE TABLE {name} ({_columns_of(shape)}) WITHOUT ROWID")
        if shape.expires:
            self._connection.execute(f"CREATE INDEX {_quoted(f'{shape.name}.t')} ON {name} (t)")
        for i in range(len(shape.indexes)):
            self._connection.execute(f"CREATE INDEX {_quoted(f'{shape.name}.{i}')} ON {name} (x{i})")
        for i, order in enumerate(shape.orders):
            met = [] if order[0] is None else [f"x{shape.indexes.index((order[0],))}"]
            terms = ", ".join([*met, *(f"{term} {way}" for term, way in shape.terms(order))])
            self._connection.execute(f"CREATE INDEX {_quoted(f'{shape.name}.o{i}')} ON {name} ({terms})")
        self.remember({f"shape/{shape.name}": shape.digest} | {f"{of}/{shape.name}": None for of in _FOLLOWED})

    # What is to be computed

    def dirty(self, view: str) -> set[bytes]:
        """Units of a view that are not computed yet."""
        return {unit for (unit,) in self._connection.execute("SELECT unit FROM dirty WHERE view = ?", (view,))}

    def mark(self, view: str, units: Iterable[bytes]) -> None:
        self._connection.executemany("INSERT OR IGNORE INTO dirty VALUES (?, ?)", ((view, unit) for unit in units))

    def clean(self, view: str, units: Iterable[bytes]) -> None:
        statement = "DELETE FROM dirty WHERE view = ? AND unit = ?"
        self._connection.executemany(statement, ((view, unit) for unit in units))

    # Facts about tables

    def reached(self, name: str) -> tuple[str, list[int]] | None:
        """The epoch and offsets up to which a table has followed its stream; None: it holds nothing of it."""
        stored = self._fact(f"reached/{name}")
        return None if stored is None else (stored[0], stored[1])

    def building(self, name: str) -> bool:
        """Whether all units of a view are to be computed, since its rows were lost."""
        return bool(self._fact(f"building/{name}"))

    def is_filling(self, name: str) -> bool:
        """Whether a table that is filled anew lacks some of what its stream held when that began."""
        return bool(self._fact(f"filling/{name}"))

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Keep words about tables, within a transaction; None forgets one."""
        for key, value in facts.items():
            stored = None if value is None else msgspec.msgpack.encode(value)
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, stored))

    def _fact(self, key: str) -> Any:
        found = self._connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if found is None or found[0] is None else msgspec.msgpack.decode(found[0])


@dataclass(frozen=True)
class HeldRows:
    """Rows of a table, in the order of their keys, each with its values of every index."""

    table: pa.Table
    found: tuple[list[bytes], ...]

    def values(self, index: int) -> set[bytes]:
        return set(self.found[index])


class Table:
    """The rows of one input or view."""

    def __init__(self, shape: Shape, connection: sqlite3.Connection) -> None:
        self.shape = shape
        self._connection = connection
        self._name = _quoted(shape.name)
        self._written = self._name
        self._cells = [f"c{i}" for i in range(sum(width(field.type) for field in shape.schema))]

    def __len__(self) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM {self._name}").fetchone()[0])

    def keys_of(self, rows: pa.Table) -> list[bytes]:
        return values_of([rows.column(name).combine_chunks() for name in self.shape.key])

    def put(self, rows: HeldRows) -> None:
        """Insert rows, or replace those of the same key."""
        table = rows.table
        cells = [c for name in self.shape.schema.names for c in cells_of(table.column(name).combine_chunks())]
        times = self._times(table).to_pylist() if self.shape.expires else [None] * table.num_rows
        marks = ", ".join("?" * (2 + len(rows.found) + len(cells)))
        statement = f"INSERT OR REPLACE INTO {self._written} VALUES ({marks})"
        self._connection.executemany(statement, zip(self.keys_of(table), times, *rows.found, *cells, strict=True))

    def _times(self, rows: pa.Table) -> pa.Array:
        return row_times(rows) if self.shape.time is None else rows.column(self.shape.time).cast(pa.int64())

    def apply(self, old: HeldRows, new: HeldRows) -> None:
        """Let rows go, and put others into their place."""
        self.remove(self.keys_of(old.table))
        self.put(new)

    def remove(self, keys: Iterable[bytes]) -> None:
        self._connection.executemany(f"DELETE FROM {self._written} WHERE k = ?", ((key,) for key in keys))

    def clear(self) -> None:
        self._connection.execute(f"DELETE FROM {self._name}")

    def by_key(self, keys: Iterable[bytes]) -> HeldRows:
        return self._where("k", keys)

    def by_value(self, index: int, values: Iterable[bytes]) -> HeldRows:
        """The rows whose value of an index is one of these."""
        return self._where(f"x{index}", values)

    def counts(self, index: int, values: Iterable[bytes]) -> dict[bytes, int]:
        """How many rows have each of these values of an index; those that none has are left out."""
        wanted, counts = sorted(set(values)), dict[bytes, int]()
        for start in range(0, len(wanted), _VALUES_AT_ONCE):
            some = wanted[start : start + _VALUES_AT_ONCE]
            marks = ", ".join("?" * len(some))
            statement = f"SELECT x{index}, count(*) FROM {self._name} WHERE x{index} IN ({marks}) GROUP BY x{index}"
            counts |= dict(self._connection.execute(statement, some))
        return counts

    def before(self, time_us: int) -> HeldRows:
        """The rows whose time is before this one."""
        found = self._connection.execute(f"SELECT {self._columns} FROM {self._name} WHERE t < ?", (time_us,)).fetchall()
        return self._read(sorted(found, key=_KEY))

    def forget(self, time_us: int) -> None:
        """Let the rows go whose time is before this one."""
        self._connection.execute(f"DELETE FROM {self._name} WHERE t < ?", (time_us,))

    def index(self, expressions: Index) -> int:
        return self.shape.indexes.index(expressions)

    def values(self, index: int) -> set[bytes]:
        """All different values of an index."""
        return {value for (value,) in self._connection.execute(f"SELECT DISTINCT x{index} FROM {self._name}")}

    def everything(self) -> HeldRows:
        return self._read(self._connection.execute(f"SELECT {self._columns} FROM {self._name} ORDER BY k").fetchall())

    def first(self, order: Order, count: int) -> HeldRows:
        """So many rows, first in one of the shape's orders, and those that are equal to the last of them there."""
        terms = self.shape.terms(order)
        values, sorted_by = ", ".join(term for term, _ in terms), ", ".join(f"{term} {way}" for term, way in terms)
        condition = "" if order[0] is None else f" WHERE x{self.index((order[0],))} = ?"
        index = _quoted(f"{self.shape.name}.o{self.shape.orders.index(order)}")
        source = f"{self._name}{self._indexed_by(index)}{condition}"
        statement = f"SELECT {values}, {self._columns} FROM {source} ORDER BY {sorted_by}"
        found = self._connection.execute(statement, () if order[0] is None else (_TRUE,))
        rows: list[Any] = []
        for row in found:
            if len(rows) >= count and (not rows or row[: len(terms)] != rows[-1][: len(terms)]):
                break
            rows.append(row)
        return self._read(sorted((row[len(terms) :] for row in rows), key=_KEY))

    def _indexed_by(self, index: str) -> str:
        """Without a word SQLite would rather sort than look up many rows one by one: it does not know that few are
        taken."""
        return f" INDEXED BY {index}"

    def pieces(self, wanted: Sequence[tuple[int, Iterable[bytes]]] | None, rows: int) -> Iterator[HeldRows]:
        """The rows that have one of these values of one of these indexes, each once, so many at a time, in no certain
        order; None: all rows. At least one piece, if only an empty one. Nothing may be written meanwhile."""
        condition = ""
        if wanted is not None:
            self._connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {_WANTED} (i, v BLOB, PRIMARY KEY (i, v))")
            self._connection.execute(f"DELETE FROM {_WANTED}")
            values = ((index, value) for index, some in wanted for value in some)
            self._connection.executemany(f"INSERT OR IGNORE INTO {_WANTED} VALUES (?, ?)", values)
            parts = (f"x{index} IN (SELECT v FROM {_WANTED} WHERE i = {index})" for index, _ in wanted)
            condition = f" WHERE {' OR '.join(parts)}"
        cursor = self._connection.execute(f"SELECT {self._columns} FROM {self._name}{condition}")
        piece = cursor.fetchmany(rows)
        yield self._read(piece)
        while len(piece) == rows:
            piece = cursor.fetchmany(rows)
            yield self._read(piece)

    @property
    def _columns(self) -> str:
        return ", ".join(["k", *(f"x{i}" for i in range(len(self.shape.indexes))), *self._cells])

    def _where(self, column: str, values: Iterable[bytes]) -> HeldRows:
        wanted = sorted(set(values))
        rows: list[Any] = []
        for start in range(0, len(wanted), _VALUES_AT_ONCE):
            some = wanted[start : start + _VALUES_AT_ONCE]
            marks = ", ".join("?" * len(some))
            statement = f"SELECT {self._columns} FROM {self._name} WHERE {column} IN ({marks})"
            rows += self._connection.execute(statement, some)
        rows.sort(key=_KEY)
        return self._read(rows)

    def _read(self, rows: Sequence[Any]) -> HeldRows:
        total = 1 + len(self.shape.indexes) + len(self._cells)
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(total)]
        at = 1 + len(self.shape.indexes)
        found, arrays = tuple(columns[1:at]), []
        for field in self.shape.schema:
            arrays.append(array_of(columns[at : at + width(field.type)], field.type))
            at += width(field.type)
        return HeldRows(pa.Table.from_arrays(arrays, schema=self.shape.schema), found)


class HeldSnapshot:
    """The file as one transaction has left it, until it is closed. Used by one thread at a time."""

    def __init__(self, path: Path, shapes: Mapping[str, Shape]) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute(f"PRAGMA cache_size = -{_SNAPSHOT_CACHE_KIB}")
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT count(*) FROM facts").fetchone()  # a transaction begins with its first look
        self.tables = {name: Table(shape, self._connection) for name, shape in shapes.items()}

    def lay_over(self, name: str) -> None:
        """From now on changes of a table are possible, for this snapshot alone."""
        self.tables[name] = _LaidOver(self.tables[name].shape, self._connection)

    def close(self) -> None:
        self._connection.close()


class _LaidOver(Table):
    """A table with changes that only its own connection sees: SQLite looks for a name among temporary ones first."""

    def __init__(self, shape: Shape, connection: sqlite3.Connection) -> None:
        super().__init__(shape, connection)
        self._written, self._gone = f"temp.{_quoted(f'{shape.name}/new')}", f"temp.{_quoted(f'{shape.name}/gone')}"
        connection.execute(f"CREATE TEMP TABLE {_quoted(f'{shape.name}/gone')} (k BLOB PRIMARY KEY) WITHOUT ROWID")
        connection.execute(f"CREATE TEMP TABLE {_quoted(f'{shape.name}/new')} ({_columns_of(shape)}) WITHOUT ROWID")
        for i in range(len(shape.indexes)):
            index = _quoted(f"{shape.name}/new.{i}")
            connection.execute(f"CREATE INDEX temp.{index} ON {_quoted(f'{shape.name}/new')} (x{i})")
        connection.execute(
            f"CREATE TEMP VIEW {self._name} AS SELECT * FROM main.{self._name} "
            f"WHERE k NOT IN (SELECT k FROM {self._gone}) UNION ALL SELECT * FROM {self._written}"
        )

    def _indexed_by(self, index: str) -> str:
        return ""  # a view has none

    def put(self, rows: HeldRows) -> None:
        self.remove(self.keys_of(rows.table))
        super().put(rows)

    def remove(self, keys: Iterable[bytes]) -> None:
        gone = list(keys)
        super().remove(gone)
        self._connection.executemany(f"INSERT OR IGNORE INTO {self._gone} VALUES (?)", ((key,) for key in gone))


def _columns_of(shape: Shape) -> str:
    cells = [f"c{i}" for i in range(sum(width(field.type) for field in shape.schema))]
    found = [f"x{i} BLOB" for i in range(len(shape.indexes))]
    return ", ".join(["k BLOB PRIMARY KEY", "t INTEGER", *found, *cells])


def _opened(path: Path) -> sqlite3.Connection:
    """A file that is no database, or a damaged one, is replaced by an empty one."""
    try:
        return _connected(path)
    except sqlite3.DatabaseError:
        discard(path)
        return _connected(path)


def discard(path: Path) -> None:
    """Remove the file; the next one to open it begins with nothing."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            path.with_name(name).unlink()


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")  # derived: what a power cut takes is filled again
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    connection.execute("CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value BLOB)")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS dirty (view TEXT, unit BLOB, PRIMARY KEY (view, unit)) WITHOUT ROWID"
    )
    return connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
