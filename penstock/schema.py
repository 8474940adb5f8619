"""One class gives validation, JSON Schema and the typed columns that the log stores and Spark reads.

A class becomes an Arrow schema once, when it is declared. Every column may be null, because whether a field is
required is settled at the door and Spark wants it so. A field's default travels in the field's metadata, so that
whoever reads an older event, in any process, can fill in what the event did not have.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import msgspec.inspect as mi
import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.private import private_fields

Values = list[Any]
Builder = Callable[[Values], pa.Array]

TIMESTAMP = pa.timestamp("us", tz="UTC")
DECIMAL = pa.decimal128(38, 18)
DEFAULT = b"default"
"""Metadata of a field: its default as JSON. A field without it is required."""

TIME = "_time"
RECEIVED = "_received"
ID = "_id"
KEY = "_key"
UNKNOWN = "_unknown"
SENT = "_sent"
PARTITION = "_partition"
OFFSET = "_offset"

SYSTEM = (
    pa.field(TIME, TIMESTAMP),
    pa.field(RECEIVED, TIMESTAMP),
    pa.field(ID, pa.string()),
    pa.field(KEY, pa.string()),
)
"""Stored with every event beside its fields."""

PLACE = (pa.field(PARTITION, pa.int32()), pa.field(OFFSET, pa.int64()))
"""Where an event stands in the log: not stored, but computed by whoever reads it."""


class EventSchema:
    """The columns of a class of events, and how to build them from decoded events without touching a row twice."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        info = mi.type_info(kind)
        if not isinstance(info, mi.StructType):
            raise DeclarationError(f"'{kind.__name__}' is not an Event class", hint="write class X(Event): ...")
        self.kind = kind
        try:
            self.fields, builders = _struct(info, kind.__name__)
        except RecursionError:
            raise DeclarationError(
                f"'{kind.__name__}' holds a Struct that holds itself, which cannot be a column",
                hint="give it as many levels as there are, or send the tree as a list of its nodes",
            ) from None
        self._columns = [(attrgetter(name), build) for name, build in builders]
        self.arrow = pa.schema(self.fields)
        self.names = [field.name for field in self.fields]
        self.private = private_fields(kind)
        """Paths of the personal fields, as `private.py` names them."""

    def columns(self, events: Sequence[Any]) -> list[pa.Array]:
        """The events' fields as Arrow arrays, in the order of `arrow`."""
        return [build(list(map(get, events))) for get, build in self._columns]

    def json_schema(self) -> dict[str, Any]:
        return msgspec.json.schema(self.kind)


def stored_schema(fields: Sequence[pa.Field], *, keep_unknown: bool = False, clocks: bool = False) -> pa.Schema:
    """What the log stores for a stream: the event's fields, then the system's."""
    unknown = [pa.field(UNKNOWN, pa.string())] if keep_unknown else []
    sent = [pa.field(SENT, TIMESTAMP, metadata={DEFAULT: b"null"})] if clocks else []
    return pa.schema([*fields, *unknown, *sent, *SYSTEM])


def read_schema(stored: pa.Schema) -> pa.Schema:
    """What a flow sees of a stream: what is stored, then where it stands."""
    return pa.schema([*stored, *PLACE])


def simple_type(kind: pa.DataType) -> str:
    """Spark's short name of an Arrow type.

    >>> simple_type(pa.list_(pa.int64()))
    'array<bigint>'
    """
    if pa.types.is_struct(kind):
        return "struct<" + ",".join(f"{f.name}:{simple_type(f.type)}" for f in kind) + ">"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{simple_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{simple_type(kind.key_type)},{simple_type(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _SIMPLE.get(str(kind), str(kind))


_SIMPLE = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
}


# From a class to columns


def _struct(info: mi.StructType, path: str) -> tuple[list[pa.Field], list[tuple[str, Builder]]]:
    fields: list[pa.Field] = []
    builders: list[tuple[str, Builder]] = []
    _check_defaults(info.cls, path)
    for field in info.fields:
        kind, build, nullable = _column(field.type, f"{path}.{field.name}")
        fields.append(pa.field(field.name, kind, metadata=_default(field, nullable)))
        builders.append((field.name, build))
    for field_ in fields:
        if field_.name.startswith("_"):
            raise DeclarationError(
                f"'{path}.{field_.name}': names that begin with '_' belong to Penstock",
                hint=f"call it '{field_.name.lstrip('_')}'",
            )
    names = [field_.name.lower() for field_ in fields]
    twice = next((field_.name for field_ in fields if names.count(field_.name.lower()) > 1), None)
    if twice is not None:
        raise DeclarationError(
            f"'{path}.{twice}': another field has the same name but for its case, and Spark cannot tell them apart",
            hint="give one another name; the name in JSON can stay: other = msgspec.field(name=...)",
        )
    return fields, builders


def _check_defaults(kind: type[msgspec.Struct], path: str) -> None:
    """Python takes any default for any annotation; one that does not fit would be found in events that leave it out."""
    for field in msgspec.structs.fields(kind):
        if field.default is msgspec.NODEFAULT or field.default is None:
            continue
        try:
            msgspec.json.decode(msgspec.json.encode(field.default), type=field.type)
        except msgspec.ValidationError as error:
            raise DeclarationError(
                f"'{path}.{field.encode_name}' cannot be {field.default!r}, its default: {error}",
                hint="write a default that fits the annotation, or none",
            ) from None


def _default(field: mi.Field, nullable: bool) -> dict[bytes, bytes] | None:
    if field.default is not msgspec.NODEFAULT:
        return {DEFAULT: msgspec.json.encode(field.default)}
    if field.default_factory is not msgspec.NODEFAULT:
        return {DEFAULT: msgspec.json.encode(field.default_factory())}
    return {DEFAULT: b"null"} if nullable else None


def _column(info: mi.Type, path: str) -> tuple[pa.DataType, Builder, bool]:
    """The Arrow type of a field's annotation, how to build a column of it, and whether it may be null."""
    if isinstance(info, mi.Metadata):
        return _decimal(info.extra, path) if _sized(info) else _column(info.type, path)
    if isinstance(info, mi.UnionType):
        rest = [t for t in info.types if not isinstance(t, mi.NoneType)]
        if len(rest) != 1:
            raise _unsupported(path, "a union of several types")
        kind, build, _ = _column(rest[0], path)
        return kind, build, len(rest) != len(info.types)
    if isinstance(info, mi.StructType):
        return (*_struct_column(info, path), False)
    if isinstance(info, mi.ListType | mi.SetType | mi.FrozenSetType | mi.VarTupleType):
        return (*_list_column(info.item_type, path, ordered=not isinstance(info, mi.SetType | mi.FrozenSetType)), False)
    if isinstance(info, mi.DictType):
        return (*_map_column(info, path), False)
    if isinstance(info, mi.EnumType | mi.LiteralType):
        return (*_enum_column(info, path), False)
    for type_info, kind in _PLAIN:
        if isinstance(info, type_info):
            return kind, _plain(kind), False
    if isinstance(info, mi.UUIDType):
        return pa.string(), lambda values: pa.array([_text(v) for v in values], pa.string()), False
    raise _unsupported(path, type(info).__name__.removesuffix("Type").lower())


_PLAIN: tuple[tuple[type, pa.DataType], ...] = (
    (mi.BoolType, pa.bool_()),
    (mi.IntType, pa.int64()),
    (mi.FloatType, pa.float64()),
    (mi.StrType, pa.string()),
    (mi.BytesType, pa.binary()),
    (mi.DateTimeType, TIMESTAMP),
    (mi.DateType, pa.date32()),
    (mi.DecimalType, DECIMAL),
)


def _unsupported(path: str, what: str) -> DeclarationError:
    return DeclarationError(
        f"'{path}': {what} cannot be a column",
        hint="use str, int, float, bool, bytes, datetime, date, Decimal, an Enum, a Struct, "
        "list[...], dict[str, ...], or one of them | None",
    )


def _plain(kind: pa.DataType) -> Builder:
    return lambda values: pa.array(values, kind)


def _text(value: uuid.UUID | None) -> str | None:
    return None if value is None else str(value)


def _sized(info: mi.Metadata) -> bool:
    """Whether this is `Annotated[Decimal, Meta(extra={"precision": 10, "scale": 2})]`."""
    return isinstance(info.type, mi.DecimalType) and bool({"precision", "scale"} & set(info.extra or {}))


def _decimal(extra: dict[str, Any] | None, path: str) -> tuple[pa.DataType, Builder, bool]:
    sizes = extra or {}
    precision, scale = int(sizes.get("precision", 38)), int(sizes.get("scale", 18))
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise DeclarationError(
            f"'{path}': decimal({precision},{scale}) cannot be a column",
            hint="use a precision of 1 to 38 digits, of which scale stand behind the point",
        )
    kind = pa.decimal128(precision, scale)
    return kind, _plain(kind), False


def _enum_column(info: mi.EnumType | mi.LiteralType, path: str) -> tuple[pa.DataType, Builder]:
    values = [member.value for member in info.cls] if isinstance(info, mi.EnumType) else list(info.values)
    kind = pa.int64() if all(isinstance(value, int) for value in values) else pa.string()
    return kind, lambda column: pa.array([getattr(v, "value", v) for v in column], kind)


def _struct_column(info: mi.StructType, path: str) -> tuple[pa.DataType, Builder]:
    fields, builders = _struct(info, path)
    kind = pa.struct(fields)

    def build(values: Values) -> pa.Array:
        children = [b([None if v is None else getattr(v, name) for v in values]) for name, b in builders]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=fields, mask=missing)

    return kind, build


def _list_column(item: mi.Type, path: str, *, ordered: bool) -> tuple[pa.DataType, Builder]:
    """A set has another order in each process; it is stored in one."""
    kind, build_item, _ = _column(item, f"{path}[]")
    list_kind = pa.list_(pa.field("element", kind))

    def build(values: Values) -> pa.Array:
        offsets: list[int | None] = []
        flat: Values = []
        for value in values:
            offsets.append(None if value is None else len(flat))
            if value is not None:
                flat.extend(value if ordered else sorted(value, key=str))
        offsets.append(len(flat))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), build_item(flat), type=list_kind)

    return list_kind, build


def _map_column(info: mi.DictType, path: str) -> tuple[pa.DataType, Builder]:
    if not isinstance(info.key_type, mi.StrType):
        raise _unsupported(path, "a dict whose keys are not str")
    kind, build_item, _ = _column(info.value_type, f"{path}{{}}")
    map_kind = pa.map_(pa.string(), kind)

    def build(values: Values) -> pa.Array:
        offsets: list[int | None] = []
        keys: list[str] = []
        items: Values = []
        for value in values:
            offsets.append(None if value is None else len(keys))
            if value is not None:
                keys.extend(value.keys())
                items.extend(value.values())
        offsets.append(len(keys))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), build_item(items))

    return map_kind, build
