"""Reads an Arrow IPC stream that a stranger sent: bounded before it is unpacked, and checked before it is touched.

1. Buffers that are packed inside the stream say how large they become; together they may not exceed what a body may.
2. Every offset and every string is validated: Arrow's own code trusts them afterwards.
3. Only types that a stream's class can have are let in. What says the same text many times in one place (dictionaries,
   views), at any depth, is unfolded here, and bounded before it is.
4. What stands behind the end of the stream would be lost without a word, so it refuses the body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.collect.judging.rejection import short
from penstock.errors import BadBodyError, TooLargeError

MOST_ROWS = 1_000_000
"""In one body."""
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_i64 = struct.Struct("<q").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u32 = struct.Struct("<I").unpack_from
_u16 = struct.Struct("<H").unpack_from


def read_stream(body: bytes, most_bytes: int) -> pa.Table:
    """The rows, in one chunk per column. Raises `BadBodyError` and `TooLargeError`."""
    try:
        _check_size(body, most_bytes)
        source = pa.BufferReader(body)
        with pa.ipc.open_stream(source) as reader:
            _check_types(reader.schema)
            table = reader.read_all()
            behind = len(body) - source.tell()
        if behind:
            raise _bad(f"{behind} bytes stand behind the end of the stream; send each stream in a request of its own")
        if table.num_rows > MOST_ROWS:
            raise TooLargeError(f"the body holds more than {MOST_ROWS} events", hint="send several bodies")
        table.validate(full=True)
        return _unfolded(table, most_bytes)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error, KeyError) as error:
        raise _bad(str(error)) from None


def _check_size(body: bytes, most_bytes: int) -> None:
    total = 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
        metadata, content = bytes(message.metadata), message.body
        for batch in _batches(metadata):
            total += _unpacked_bytes(metadata, batch, content)
            if total > most_bytes:
                raise TooLargeError(f"the body unpacks to more than {most_bytes} bytes", hint="send several bodies")


# Where in a message's flatbuffer things stand


def _field(data: bytes, table: int, number: int) -> int | None:
    """The place of a table's field."""
    vtable = table - _i32(data, table)[0]
    if 4 + 2 * number >= _u16(data, vtable)[0]:
        return None
    offset = _u16(data, vtable + 4 + 2 * number)[0]
    return table + int(offset) if offset else None


def _followed(data: bytes, place: int) -> int:
    return place + int(_u32(data, place)[0])


def _batches(data: bytes) -> Iterator[int]:
    """The record batch of a message, also the one inside a dictionary batch."""
    root = _followed(data, 0)
    kind, header = _field(data, root, 1), _field(data, root, 2)
    if kind is None or header is None:
        return
    if data[kind] == _RECORD_BATCH:
        yield _followed(data, header)
    elif data[kind] == _DICTIONARY_BATCH and (inner := _field(data, _followed(data, header), 1)) is not None:
        yield _followed(data, inner)


def _unpacked_bytes(data: bytes, batch: int, content: pa.Buffer) -> int:
    """How large a record batch becomes."""
    buffers = _field(data, batch, 2)
    if _field(data, batch, 3) is None or buffers is None:
        return content.size if content is not None else 0
    vector = _followed(data, buffers)
    total = 0
    for at in range(vector + 4, vector + 4 + 16 * int(_u32(data, vector)[0]), 16):
        start, length = int(_i64(data, at)[0]), int(_i64(data, at + 8)[0])
        if length:
            if not 0 <= start <= content.size - 8:
                raise ValueError("a buffer lies outside of its message")
            unpacked = int(_i64(content.slice(start, 8).to_pybytes())[0])
            total += max(unpacked, length)
    return total


# What a column may be


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        if not _is_known(field.type):
            raise _bad(f"'{short(field.name)}': expected a type that streams have, found {short(str(field.type))}")
    if len(set(schema.names)) < len(schema.names):
        raise _bad("it has two columns of one name")


def _is_known(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(kind):
        return all(_is_known(field.type) for field in kind) and len({f.name for f in kind}) == kind.num_fields
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_known(kind.value_type)
    if types.is_map(kind):
        return _is_known(kind.key_type) and _is_known(kind.item_type)
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    plain = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp, types.is_date)
    return _is_text(kind) or types.is_null(kind) or any(is_kind(kind) for is_kind in plain)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return _is_view(kind) or any(is_kind(kind) for is_kind in texts)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


# Unfolding


def _unfolded(table: pa.Table, most_bytes: int) -> pa.Table:
    """Without dictionaries, views, nanoseconds and zones, and in one chunk."""
    unfolding = _Unfolding(most_bytes)
    columns = []
    for column in table.columns:
        whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(whole, pa.ChunkedArray):
            whole = pa.concat_arrays(whole.chunks)
        columns.append(unfolding.unfolded(whole))
    return pa.table(columns, names=table.column_names)


class _Unfolding:
    """Of all columns of one body."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._left = most_bytes, most_bytes

    def unfolded(self, array: pa.Array) -> pa.Array:
        """Raises `TooLargeError` before it takes the memory."""
        kind, types = array.type, pa.types
        if types.is_dictionary(kind):
            words = self.unfolded(array.dictionary)
            self._take(pc.sum(pc.binary_length(words).take(array.indices)).as_py() or 0)
            return words.take(array.indices)
        if _is_view(kind):
            self._take(_viewed_bytes(array))
            return array.cast(pa.large_string() if types.is_string_view(kind) else pa.large_binary())
        if not _must_change(kind):
            return array
        if types.is_timestamp(kind):
            return array.cast(_in_utc(kind), safe=False)
        missing = pc.is_null(array) if array.null_count else None
        if types.is_struct(kind):
            fields = [self.unfolded(array.field(index)) for index in range(kind.num_fields)]
            return pa.StructArray.from_arrays(fields, names=[field.name for field in kind], mask=missing)
        if types.is_map(kind):
            keys, items = self.unfolded(array.keys), self.unfolded(array.items)
            return pa.MapArray.from_arrays(array.offsets, keys, items, mask=missing)
        lists = pa.ListArray if types.is_list(kind) else pa.LargeListArray
        return lists.from_arrays(array.offsets, self.unfolded(array.values), mask=missing)

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLargeError(f"the body unfolds to more than {self._most_bytes} bytes", hint="send several bodies")


def _must_change(kind: pa.DataType) -> bool:
    """Whether it is folded, or a time of nanoseconds or of a zone, or holds one."""
    if pa.types.is_timestamp(kind):
        return bool(kind != _in_utc(kind))
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or _is_view(kind) or any(map(_must_change, inner))


def _in_utc(kind: pa.TimestampType) -> pa.TimestampType:
    """A zone says how a time is shown, not which one it is; and the sender may name one that nobody knows."""
    return pa.timestamp("us" if kind.unit == "ns" else kind.unit, kind.tz and "UTC")


def _viewed_bytes(array: pa.Array) -> int:
    """Each view is 16 bytes that begin with the length of its text."""
    views = array.buffers()[1]
    if not len(array) or views is None:
        return 0
    lengths = np.frombuffer(views, np.int32)[4 * array.offset : 4 * (array.offset + len(array)) : 4]
    there = array.is_valid().to_numpy(zero_copy_only=False)
    return int(lengths[there].sum(dtype=np.int64))


def _bad(detail: str) -> BadBodyError:
    return BadBodyError(
        "the body is not an Arrow stream of this stream",
        detail=short(detail) if len(detail) > 300 else detail,
        hint="send one Arrow IPC stream (not a file) with a column for each field, typed as the stream's class",
    )
