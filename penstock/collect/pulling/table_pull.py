"""Reads a source outside into a table: all of it again and again, so that the table's rows become those of the source.

1. What differs is one commit: rows that are new or changed, and deletes of rows that are gone. A source that is as it
   was changes nothing, after a restart too.
2. What is not certain changes nothing: a source that is away, that has lost a column, or of which no row fits.
3. A row that does not fit is a dead letter, once, and the table keeps the row that it has of that key. Where the key
   itself cannot be read, nothing is deleted at all until it can: any row might be the one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
import pyarrow as pa

from penstock.change import Key, Row
from penstock.clock import Clock, rfc3339
from penstock.collect.intake import Keys, Note
from penstock.collect.judging.rejection import Rejection
from penstock.collect.pulling.lease import Leases
from penstock.collect.pulling.pull_loop import PullLoop, Sleep
from penstock.collect.pulling.pull_source import NotNow
from penstock.collect.pulling.table_source import TableReading, TableSource
from penstock.collect.sender import Sender
from penstock.collect.tables.row_changes import RowChanges, RowJudge
from penstock.collect.tables.table_writer import CurrentRows, TableWriter
from penstock.declaration import PullDef
from penstock.errors import ConditionError, OverBudgetError
from penstock.log import control_keys
from penstock.log.control import ControlMap
from penstock.observe.signals import Signals

EVERY_US = 60_000_000
"""How often a source is read, unless `every=` says otherwise."""
SOON_S = 5.0
"""When a source is looked at again that could not be read, if that is sooner."""
NAMED_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """What makes a table's rows those of a source."""

    changes: RowChanges
    held_back: int
    """Rows that are gone from the source and stay, since a row's key could not be read."""


class TablePull(PullLoop):
    """One source into one table; lives on the edge's loop."""

    def __init__(
        self,
        declared: PullDef,
        writer: TableWriter,
        source: TableSource,
        memory: ControlMap,
        leases: Leases,
        clock: Clock,
        signals: Signals,
        random: Random,
        sleep: Sleep,
    ) -> None:
        key = control_keys.pull(declared.stream, declared.url)
        super().__init__(declared, key, leases, clock, signals, random, sleep)
        self._writer, self._source, self._memory = writer, source, memory
        self._every_s = (declared.origin.every_us or EVERY_US) / 1e6
        self._stored: dict[str, Any] = {}
        self._level: tuple[Any, Any] | None = None
        """The mark of the source and the end of the table when the two were last the same."""
        self._letters: frozenset[bytes] = frozenset()
        """Of rows that did not fit when the source was last read, by their content."""
        self._remark: str | None = None
        self._rows: int | None = None
        self._read_us: int | None = None

    def lag(self) -> Mapping[str, float]:
        """How long ago the table was last what the source is."""
        if self._read_us is None:
            return {}
        return {"seconds": round((self._clock.now_us() - self._read_us) / 1e6, 3)}

    def _progress(self) -> tuple[Any, int]:
        read = None if self._read_us is None else {"read": rfc3339(self._read_us), "rows": self._rows}
        return read, int(self._stored.get("events", 0))

    def _load(self) -> None:
        self._stored = dict(self._memory.get(self.key) or {})

    async def _connection(self) -> None:
        while True:
            await self._open.wait()
            await self._refresh()
            self._failures = 0
            await self._sleep(self._every_s)

    async def _refresh(self) -> None:
        """Make the table what the source is."""
        try:
            mark = await self._source.mark()
            if mark is None or self._level != (mark, self._writer.end):
                await self._compare(await self._source.read(self._writer.judge.events))
        except NotNow as later:
            raise NotNow(str(later), min(SOON_S, self._every_s) if later.after_s is None else later.after_s) from None
        self._read_us = self._clock.now_us()
        self._enter("connected", self._remark)

    async def _compare(self, reading: TableReading) -> None:
        judge = self._writer.judge
        columns = _columns(judge, reading)
        self._check(columns)
        read = await asyncio.to_thread(judge.rows_read, reading.decoded)
        if read.rejections and not read.batch.num_rows:
            first = read.rejections[0]
            raise NotNow(f"none of its {len(read.rejections)} rows fits: {first.reason}: {first.detail}")
        prints = [_print(rejection) for rejection in read.rejections]
        try:
            rows, offset = await self._writer.rows()
        except OverBudgetError as error:
            raise NotNow(f"{error.message}: what has changed cannot be told", self._every_s) from None
        found = await asyncio.to_thread(difference, judge, read, dict(rows.items()))
        fresh = [r for r, print_ in zip(read.rejections, prints, strict=True) if print_ not in self._letters]
        await self._write(RowChanges(found.changes.batch, fresh), offset, columns)
        self._letters, self._rows = frozenset(prints), read.batch.num_rows
        self._remark = _remark(read.rejections, found.held_back)
        self._level = (reading.mark, self._writer.end)

    def _check(self, columns: Sequence[str] | None) -> None:
        """Raises `NotNow` where a column is missing that a row needs, or that was there before."""
        if columns is None:
            return
        fields = self._writer.judge.table.events.kind.__struct_fields__
        before = self._stored.get("columns") or () if self._stored.get("query") == _query(self.declared) else ()
        needed = {*_required(self._writer.judge), *(name for name in before if name in fields)}
        missing = [name for name in fields if name in needed and name not in columns]
        if missing:
            raise NotNow(f"it has other columns: {', '.join(missing[:NAMED_COLUMNS])} is missing; nothing was changed")

    async def _write(self, changes: RowChanges, offset: int, columns: Sequence[str] | None) -> None:
        stored = {"columns": columns, "query": _query(self.declared)}
        count = changes.batch.num_rows
        if not changes.received and stored.items() <= self._stored.items():
            return

        def edit(rows: CurrentRows | None) -> RowChanges:
            if rows is None or rows.offset != offset:
                raise NotNow("the table was changed while it was compared", 0.0)
            return changes

        keys = {self.key: {**stored, "events": self._stored.get("events", 0) + count}}
        note = Note(lambda rejections, shed: Keys(keys), (self._leases.held(self.key),))
        try:
            await self._writer.write(edit, Sender("pull", self.declared.url), note=note)
        except ConditionError:
            self._leases.check(self.key)
            raise
        self._stored = keys[self.key]


def difference(judge: RowJudge, read: RowChanges, rows: Mapping[Key, Row]) -> Difference:
    """From the rows of a table to those of its source; of two of one key the last counts. In a thread."""
    new = dict(zip(judge.keys(read.batch), judge.rows(read.batch), strict=True))
    last = {key: number for number, key in enumerate(judge.keys(read.batch))}
    changed = [number for key, number in last.items() if not _same(rows.get(key), new[key])]
    broken = [judge.key_of(rejection.raw) for rejection in read.rejections]
    gone = [key for key in rows if key not in new and key not in set(broken)]
    held_back = len(gone) if None in broken else 0
    deletes = judge.deleted([] if held_back else gone).batch
    batch = pa.concat_batches([read.batch.take(pa.array(sorted(changed), pa.int64())), deletes])
    return Difference(RowChanges(batch), held_back)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal; NaN is itself."""
    if one == other:
        return True
    if isinstance(one, tuple | list) and type(one) is type(other):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one != one and other != other)


def _columns(judge: RowJudge, reading: TableReading) -> list[str] | None:
    """The fields of the class that the source has columns for, in the class's order."""
    if reading.columns is None:
        return None
    fields = msgspec.structs.fields(judge.table.events.kind)
    return [field.name for field in fields if {field.name, field.encode_name} & reading.columns]


def _required(judge: RowJudge) -> list[str]:
    return [field.name for field in msgspec.structs.fields(judge.table.events.kind) if field.required]


def _query(declared: PullDef) -> str | None:
    """By which a query is known: another one may well have other columns."""
    query = declared.origin.query
    return None if query is None else hashlib.blake2b(query.encode(), digest_size=8).hexdigest()


def _print(rejection: Rejection) -> bytes:
    return hashlib.blake2b(rejection.reason.encode() + b" " + rejection.raw, digest_size=16).digest()


def _remark(rejections: Sequence[Rejection], held_back: int) -> str | None:
    """What people should know of a source of which not every row was taken."""
    if not rejections:
        return None
    first = rejections[0]
    fits = f"{len(rejections)} of its rows do not fit ({first.reason}: {first.detail}); see `penstock dead`"
    return f"{fits}; {held_back} rows that are gone stay, because a key cannot be read" if held_back else fits
