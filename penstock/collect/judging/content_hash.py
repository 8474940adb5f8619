"""Makes an id of what an event says (`id="fingerprint"`), for sources without ids: BLAKE2b-128 of the content.

The content is the declared fields as typed columns: not the text that was sent. So the order of fields, white space,
`1` or `1.0` in a float, one moment in two time zones, and a default that is sent or left out make no difference. A
field that holds its default does not count, so that adding a field with a default leaves old fingerprints as they
are. With `unknown="keep"` the undeclared fields count too, as their JSON was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from penstock.declaration import StreamDef
from penstock.evolution import filled
from penstock.schema import UNKNOWN

_encode_lines = msgspec.json.Encoder(order="deterministic").encode_lines
_DEFAULT = b"default"


def content_hashes(stream: StreamDef) -> Callable[[Sequence[Any], Sequence[pa.Array]], pa.Array]:
    """From events and their columns (and that of undeclared fields, if it is kept) to a column of fingerprints.

    Columns become plain values column by column, and rows become JSON all at once; only the hash is made row by row.
    """
    fields = [*stream.events.fields, *([pa.field(UNKNOWN, pa.string())] if stream.unknown == "keep" else [])]
    names = [field.name for field in fields]
    plain = [_plain(field.type) for field in fields]
    defaults = [_default(field, kind) for field, kind in zip(fields, plain, strict=True)]

    def hashes(events: Sequence[Any], columns: Sequence[pa.Array]) -> pa.Array:
        values = [_values(column, kind) for column, kind in zip(columns, plain, strict=True)]
        rows = [
            {name: value for name, value, default in zip(names, row, defaults, strict=True) if value != default}
            for row in zip(*values, strict=True)
        ]
        lines = _encode_lines(rows).split(b"\n")[:-1]
        return pa.array([blake2b(line, digest_size=16).hexdigest() for line in lines], pa.string())

    return hashes


def _values(column: pa.Array, kind: pa.DataType) -> list[Any]:
    values: list[Any] = (column if column.type.equals(kind) else column.cast(kind)).to_pylist(maps_as_pydicts="lossy")
    return values


def _default(field: pa.Field, kind: pa.DataType) -> Any:
    """The declared default as the same plain value; None where there is none, since null says nothing either."""
    text = (field.metadata or {}).get(_DEFAULT)
    if text is None:
        return None
    return _values(filled(field, 1), kind)[0]


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type whose values are JSON in one way only."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain(kind.item_type))
    return kind
