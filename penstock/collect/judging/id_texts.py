"""Makes the texts by which events are unique and by which they are spread over partitions, out of typed columns.

They come from the columns, not from what was sent, so that the same event has the same id and key whether it came as
JSON, as CSV or as Arrow. Several fields are a JSON array of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.declaration import StreamDef

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
