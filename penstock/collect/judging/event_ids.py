"""Makes the texts by which events are unique and by which they are spread over partitions, out of typed columns.

They come from the columns, not from what was sent, so that the same event has the same id and key whether it came as
JSON, as CSV or as Arrow. Several fields are a JSON array of them.

`id="fingerprint"`, for sources without ids, is BLAKE2b-128 of the declared fields. So the order of fields, white space,
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
import pyarrow.compute as pc

from penstock.declaration import StreamDef
from penstock.evolution import filled
from penstock.schema import UNKNOWN

Texts = Callable[[Sequence[pa.Array], int], pa.Array]
"""From the columns of an event's fields and their length."""

_encode_lines = msgspec.json.Encoder().encode_lines
_FEW = 64
"""Below it Python is faster than a dozen calls of Arrow."""
_ESCAPED = r'["\\\x00-\x1f]'


def id_texts(stream: StreamDef, names: Sequence[str]) -> Texts:
    return _texts(stream, names, _json_texts)


def key_texts(stream: StreamDef, names: Sequence[str]) -> Texts:
    return _texts(stream, names, _plain_texts)


def _texts(stream: StreamDef, names: Sequence[str], texts: Callable[[list[Any]], Sequence[str | None]]) -> Texts:
    """How to build a column of texts from the fields `names`."""
    indices = [stream.events.names.index(name) for name in names]
    if not indices:
        return lambda _, rows: pa.nulls(rows, pa.string())
    if len(indices) > 1:
        return lambda columns, _: _arrays([columns[index] for index in indices])
    index = indices[0]
    kind = stream.events.arrow.types[index]
    if pa.types.is_string(kind):
        return lambda columns, _: columns[index]
    if pa.types.is_integer(kind):
        return lambda columns, _: columns[index].cast(pa.string())
    return lambda columns, _: pa.array(texts(_values(columns[index])), pa.string())


def _arrays(columns: list[pa.Array]) -> pa.Array:
    """Each row as a JSON array."""
    if len(columns[0]) > _FEW and all(map(_is_plain, columns)):
        joined = pc.binary_join_element_wise(*map(_plain_json, columns), ",")
        return pc.binary_join_element_wise("[", joined, "]", "")
    return pa.array(_encoded(list(zip(*map(_values, columns), strict=True))), pa.string())


def _values(column: pa.Array) -> list[Any]:
    """1.50 and 1.5 are the same number, and so the same text."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(column.type):
        return [None if value is None else format(value.normalize(), "f") for value in values]
    return values


def _is_plain(column: pa.Array) -> bool:
    """Whether its values are their own JSON, but for quotes around them."""
    if pa.types.is_integer(column.type):
        return True
    return pa.types.is_string(column.type) and not pc.any(pc.match_substring_regex(column, _ESCAPED)).as_py()


def _plain_json(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        texts = column.cast(pa.string())
    else:
        texts = pc.binary_join_element_wise('"', column, '"', "")
    return texts.fill_null("null") if texts.null_count else texts


def _encoded(values: list[Any]) -> list[str]:
    """JSON has no bare line ends, so that all of them can be encoded at once and cut apart."""
    return _encode_lines(values).decode().split("\n")[:-1]


def _json_texts(values: list[Any]) -> list[str | None]:
    return [None if value is None else text for value, text in zip(values, _encoded(values), strict=True)]


def _plain_texts(values: list[Any]) -> list[str | None]:
    return [None if value is None else str(value) for value in values]


_encode_sorted = msgspec.json.Encoder(order="deterministic").encode_lines
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
        values = [_plain_values(column, kind) for column, kind in zip(columns, plain, strict=True)]
        rows = [
            {name: value for name, value, default in zip(names, row, defaults, strict=True) if value != default}
            for row in zip(*values, strict=True)
        ]
        lines = _encode_sorted(rows).split(b"\n")[:-1]
        return pa.array([blake2b(line, digest_size=16).hexdigest() for line in lines], pa.string())

    return hashes


def _plain_values(column: pa.Array, kind: pa.DataType) -> list[Any]:
    values: list[Any] = (column if column.type.equals(kind) else column.cast(kind)).to_pylist(maps_as_pydicts="lossy")
    return values


def _default(field: pa.Field, kind: pa.DataType) -> Any:
    """The declared default as the same plain value; None where there is none, since null says nothing either."""
    text = (field.metadata or {}).get(_DEFAULT)
    if text is None:
        return None
    return _plain_values(filled(field, 1), kind)[0]


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
