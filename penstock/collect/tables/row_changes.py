"""Turns what a request says of a table's rows into changes: rows to set and keys to delete, typed as the table is.

A row is judged as an event of a stream is, by the same judge. A key in an address is one segment of the path for each
of its columns; in JSON it is an object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
import msgspec.inspect as mi
import numpy as np
import pyarrow as pa

from penstock.change import DELETE, OP, UPSERT, Key, Row
from penstock.collect.judging.incoming_events import ArrivedEvents, DecodedEvents
from penstock.collect.judging.json_events import Form, deeper_than, split
from penstock.collect.judging.judge import Judge
from penstock.collect.judging.rejection import Rejection, refused
from penstock.config import Limits
from penstock.declaration import TableDef
from penstock.errors import BadRequestError
from penstock.schema import EventSchema
from penstock.views.unpack import rows_of, unpack

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_values = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class RowChanges:
    """In their order; of two of one key the last counts."""

    batch: pa.RecordBatch
    """As the table is stored."""
    rejections: list[Rejection] = field(default_factory=list)

    @property
    def received(self) -> int:
        rows: int = self.batch.num_rows
        return rows + len(self.rejections)


class RowJudge:
    """Knows one table's class and key. Stateless: any thread may ask."""

    def __init__(self, table: TableDef, limits: Limits) -> None:
        self.table = table
        self._limits = limits
        self.events = Judge(table.entry, limits)
        """Judges rows as events of the table's class."""
        declared = {each.name: each for each in msgspec.structs.fields(table.events.kind)}
        fields = [(name, declared[name].type, msgspec.field(name=declared[name].encode_name)) for name in table.key]
        self._kind = msgspec.defstruct("Key", fields, forbid_unknown_fields=True)
        self._called = [declared[name].encode_name for name in table.key]
        self._key = EventSchema(self._kind)
        self._in_row: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("RowKey", fields))
        delete: Any = [("op", Literal["delete"]), ("key", self._kind)]
        self._delete: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct("Delete", delete, forbid_unknown_fields=True)
        )

    # Keys

    def key_in(self, path: str) -> Key:
        """The key in the rest of an address, as it was sent. Raises `BadRequestError`."""
        segments = path.split("/")
        try:
            if len(segments) != len(self._called):
                raise ValueError(f"{len(segments)} segments")
            texts = [unquote(segment, errors="strict") for segment in segments]
            named = dict(zip(self._called, texts, strict=True))
            return self._typed(msgspec.convert(named, self._kind, strict=False))
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise BadRequestError(
                f"'{path[:80]}' is not a key of the table '{self.table.name}'",
                detail=str(error),
                hint=f"write /tables/{self.table.name}/{'/'.join(f'<{name}>' for name in self.table.key)}",
            ) from None

    def _typed(self, key: Any) -> Key:
        return tuple(unpack(column)[0] for column in self._key.columns([key]))

    def key_of(self, raw: bytes) -> Key | None:
        """The key in the JSON of a row that may be wrong in everything else; None where it cannot be read."""
        try:
            return self._typed(self._in_row.decode(raw))
        except (ValueError, OverflowError, RecursionError, pa.ArrowException):
            return None

    # RowChanges

    def deleted(self, keys: Sequence[Key]) -> RowChanges:
        """Deletes."""
        named = dict(zip(self.table.key, zip(*keys, strict=True), strict=False))
        nothing = [None] * len(keys)
        return RowChanges(self._stored([pa.array(named.get(n, nothing), t) for n, t in self._columns()], DELETE))

    def rows_read(self, decoded: DecodedEvents) -> RowChanges:
        """Rows that a source holds; those that do not fit are rejected."""
        arrived = ArrivedEvents(decoded.events, [0] * len(decoded.events), columns=decoded.columns)
        built = self.events.build(arrived) or self.events.build_apart(arrived)
        rejections = list(decoded.rejections)
        for number, why in built.faults:
            place = decoded.place(number)
            rejections.append(Rejection(place, why.reason, why.detail, decoded.raw(place)))
        batch = self._stored([built.batch.column(name) for name in self.table.events.names], UPSERT)
        return RowChanges(batch, sorted(rejections, key=lambda rejection: rejection.index))

    def one(self, raw: bytes, key: Key) -> RowChanges:
        """The row of this key; the key's own fields may be left out. Raises `BadRequestError` when they differ."""
        whole = self._with_key(raw, key)
        changes = self._rows([whole], [0], [whole])
        if changes.batch.num_rows and self.keys(changes.batch)[0] != key:
            raise BadRequestError(
                "the row has another key than the address",
                detail=f"{', '.join(self.table.key)}: {self.keys(changes.batch)[0]} in the body, {key} in the address",
                hint="leave the key out of the body, or let both say the same",
            )
        return changes

    def patched(self, patch: bytes, key: Key, row: Row) -> RowChanges:
        """This row, changed by a merge patch (RFC 7396). Raises `BadRequestError` for what is none."""
        try:
            if deeper_than(patch, self._limits.nesting):
                raise ValueError(f"it is nested deeper than {self._limits.nesting} levels")
            asked = _values.decode(patch)
        except (ValueError, RecursionError) as error:
            raise BadRequestError(
                "the body is no merge patch", detail=str(error), hint='send an object: {"field": value, "gone": null}'
            ) from None
        named = dict(zip(self.table.events.names, row, strict=True))
        now = _as_json(named, mi.type_info(self.table.events.kind))
        merged = msgspec.json.encode(_merged(now, asked))
        return self.one(merged, key)

    def many(self, body: bytes, form: Form) -> RowChanges:
        """Rows and deletes. Raises `BadBodyError` when the body as a whole cannot be read."""
        return self.each(split(body, form))

    def each(self, raws: Sequence[bytes]) -> RowChanges:
        """Rows and deletes that were cut apart already."""
        rows, deletes, rejections = [], [], []
        for place, raw in enumerate(raws):
            if b'"op"' not in raw or not _is_order(raw):
                rows.append(place)
                continue
            try:
                deletes.append((place, self._typed(self._delete.decode(raw).key)))
            except (msgspec.MsgspecError, ValueError, OverflowError, pa.ArrowException) as error:
                why = refused(error)
                rejections.append(Rejection(place, why.reason, why.detail, raw))
        return self._ordered(self._rows([raws[place] for place in rows], rows, raws), deletes, rejections, len(raws))

    # Columns

    def keys(self, batch: pa.RecordBatch) -> list[Key]:
        return list(rows_of(batch, self.table.key))

    def rows(self, batch: pa.RecordBatch) -> list[Row | None]:
        """As a view holds them; None for a delete."""
        rows = rows_of(batch, self.table.events.names)
        return [None if op == DELETE else row for op, row in zip(batch.column(OP).to_pylist(), rows, strict=True)]

    def _rows(self, raws: Sequence[bytes], places: Sequence[int], sent: Sequence[bytes]) -> RowChanges:
        """Rows that stood at these places of what was sent; one that does not fit is rejected there."""
        read = self.rows_read(self.events.decode_each(raws))
        rejected = [Rejection(places[r.index], r.reason, r.detail, sent[places[r.index]]) for r in read.rejections]
        return RowChanges(read.batch, rejected)

    def _ordered(
        self, rows: RowChanges, deletes: list[tuple[int, Key]], rejections: list[Rejection], received: int
    ) -> RowChanges:
        if not deletes and not rejections:
            return rows
        lost = {r.index for r in (*rows.rejections, *rejections)}
        gone = [place for place, _ in deletes]
        kept = [place for place in range(received) if place not in lost and place not in set(gone)]
        delete = self.deleted([key for _, key in deletes]).batch
        order = np.argsort([*kept, *gone], kind="stable")
        joined = pa.concat_batches([rows.batch, delete]).take(pa.array(order))
        return RowChanges(joined, sorted([*rows.rejections, *rejections], key=lambda rejection: rejection.index))

    def _columns(self) -> list[tuple[str, pa.DataType]]:
        return [(f.name, f.type) for f in self.table.events.fields]

    def _stored(self, columns: Sequence[pa.Array], op: int) -> pa.RecordBatch:
        length = len(columns[0])
        return pa.RecordBatch.from_arrays([*columns, pa.array([op] * length, pa.int8())], schema=self.table.stored)

    def _with_key(self, raw: bytes, key: Key) -> bytes:
        """The object with the fields of the key that it leaves out; what is no object stays what it is."""
        try:
            members = _members.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return raw
        missing = {n: value for n, value in zip(self._called, key, strict=True) if n not in members}
        return msgspec.json.encode(members | missing) if missing else raw


def _is_order(raw: bytes) -> bool:
    """Whether it is no row but says what to do: no table's class has both of these fields."""
    try:
        return {"op", "key"} <= _members.decode(raw).keys()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _as_json(value: Any, info: mi.Type) -> Any:
    """A stored value under the names that JSON has for its fields."""
    if value is None:
        return None
    if isinstance(info, mi.Metadata):
        return _as_json(value, info.type)
    if isinstance(info, mi.UnionType):
        return _as_json(value, next(kind for kind in info.types if not isinstance(kind, mi.NoneType)))
    if isinstance(info, mi.StructType):
        return {f.encode_name: _as_json(value[f.name], f.type) for f in info.fields}
    if isinstance(info, mi.CollectionType):
        return [_as_json(item, info.item_type) for item in value]
    if isinstance(info, mi.DictType):
        return {name: _as_json(item, info.value_type) for name, item in value.items()}
    return value
