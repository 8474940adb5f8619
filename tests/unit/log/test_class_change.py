"""A class may change where old events and old producers can live with it, and is refused, with a way out, where not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from penstock import App, Event, Struct
from penstock.declaration import StreamDef
from penstock.errors import SchemaChangeError
from penstock.evolution import adapt
from penstock.log.class_change import class_of, judged, versioned
from penstock.log.log import Append, Log, StreamSpec
from penstock.log.opening import open_reader

Fine = Annotated[Decimal, msgspec.Meta(extra={"precision": 20, "scale": 4})]
Coarse = Annotated[Decimal, msgspec.Meta(extra={"precision": 10, "scale": 2})]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class MoreColours(Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Plain(Struct):
    x: int


class Grown(Struct):
    x: float
    y: str = "new"


def declared(kind: Any = None, /, unknown: Any = "ignore", options: Any = None, **fields: Any) -> StreamDef:
    """A stream whose class has these fields: a type, or a type and a default."""
    annotations = {name: value[0] if isinstance(value, tuple) else value for name, value in fields.items()}
    defaults = {name: value[1] for name, value in fields.items() if isinstance(value, tuple)}
    made = kind or type(Event)("Order", (Event,), {"__annotations__": annotations, **defaults})
    app = App("shop")
    app.stream("orders", made, unknown=unknown, **options or {})
    (stream,) = app.declared().streams
    return stream


def stored(log: Log, stream: StreamDef, *events: bytes) -> None:
    """Declare the stream, and store events of it."""
    spec = StreamSpec(stream.name, versioned(stream), unique=bool(stream.id))
    made = log.create(spec)
    decoded = [msgspec.json.decode(event, type=stream.events.kind) for event in events]
    if decoded:
        columns = stream.events.columns(decoded)
        system = [pa.nulls(len(decoded), field.type) for field in stream.stored if field.name.startswith("_")]
        log.append([Append(made, pa.RecordBatch.from_arrays([*columns, *system], schema=stream.stored))])


def judgement(log: Log, stream: StreamDef) -> Any:
    there = log.find("orders")
    assert there is not None
    return judged(stream, log.versions(there))


def read(log: Log) -> list[dict[str, Any]]:
    stream = log.find("orders")
    assert stream is not None
    rows = [row for block in log.read(stream, 0, 0) for row in block.batch.to_pylist(maps_as_pydicts="lossy")]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


COMPATIBLE = {
    "a new field with a default": ({"a": int}, {"a": int, "b": (str, "x")}, {"a": 1}, {"a": 1, "b": "x"}),
    "a new field that may be null": ({"a": int}, {"a": int, "b": (int | None, None)}, {"a": 1}, {"a": 1, "b": None}),
    "a new struct": (
        {"a": int},
        {"a": int, "b": (Grown, Grown(x=1.5))},
        {"a": 1},
        {"a": 1, "b": {"x": 1.5, "y": "new"}},
    ),
    "a removed field": ({"a": int, "b": str}, {"a": int}, {"a": 1, "b": "x"}, {"a": 1}),
    "int to float": ({"a": int}, {"a": float}, {"a": 2**60 + 1}, {"a": float(2**60)}),
    "int to Decimal": ({"a": int}, {"a": Decimal}, {"a": 2**63 - 1}, {"a": Decimal(2**63 - 1)}),
    "more digits": ({"a": Coarse}, {"a": Fine}, {"a": "12345678.90"}, {"a": Decimal("12345678.9000")}),
    "all digits": ({"a": Coarse}, {"a": Decimal}, {"a": "12345678.90"}, {"a": Decimal("12345678.9")}),
    "enum to str": ({"a": Colour}, {"a": str}, {"a": "red"}, {"a": "red"}),
    "enum with more values": ({"a": Colour}, {"a": MoreColours}, {"a": "blue"}, {"a": "blue"}),
    "literal with more values": ({"a": Literal["x"]}, {"a": Literal["x", "y"]}, {"a": "x"}, {"a": "x"}),
    "required to optional": ({"a": int}, {"a": (int | None, None)}, {"a": 1}, {"a": 1}),
    "UUID to str": ({"a": UUID}, {"a": str}, {"a": f"{UUID(int=7)}"}, {"a": f"{UUID(int=7)}"}),
    "within a struct": ({"a": Plain}, {"a": Grown}, {"a": {"x": 3}}, {"a": {"x": 3.0, "y": "new"}}),
    "within a list": (
        {"a": list[Plain]},
        {"a": list[Grown]},
        {"a": [{"x": 3}, {"x": 4}]},
        {"a": [{"x": 3.0, "y": "new"}, {"x": 4.0, "y": "new"}]},
    ),
    "within a map": (
        {"a": dict[str, Plain]},
        {"a": dict[str, Grown]},
        {"a": {"k": {"x": 3}, "l": {"x": 4}}},
        {"a": {"k": {"x": 3.0, "y": "new"}, "l": {"x": 4.0, "y": "new"}}},
    ),
    "in the middle of nowhere": (
        {"a": dict[str, list[Plain]]},
        {"a": dict[str, list[Grown]]},
        {"a": {"k": [{"x": 3}], "l": []}},
        {"a": {"k": [{"x": 3.0, "y": "new"}], "l": []}},
    ),
}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_old_events_are_read_and_old_producers_taken(log: Log, name: str) -> None:
    before, after, sent, expected = COMPATIBLE[name]
    raw = msgspec.json.encode(sent)
    old, new = declared(**before), declared(**after)
    stored(log, old, raw)
    found = judgement(log, new)
    assert found.refused == ()
    assert found.warnings == ()
    stored(log, new, raw)  # what an old producer sends is valid under the new class
    first, second = read(log)
    assert first == expected
    assert second == expected


REFUSED = {
    "a new field without a default": ({"a": int}, {"a": int, "b": str}, "'b' is new and has no default"),
    "int to str": ({"a": int}, {"a": str}, "'a' was bigint and is now string"),
    "float to int": ({"a": float}, {"a": int}, "'a' was double and is now bigint"),
    "fewer digits": ({"a": Fine}, {"a": Coarse}, "'a' was decimal(20,4) and is now decimal(10,2)"),
    "more digits behind the point, fewer before it": (
        {"a": Annotated[Decimal, msgspec.Meta(extra={"precision": 10, "scale": 0})]},
        {"a": Annotated[Decimal, msgspec.Meta(extra={"precision": 10, "scale": 4})]},
        "'a' was decimal(10,0)",
    ),
    "int to a Decimal that is too small": ({"a": int}, {"a": Coarse}, "'a' was bigint and is now decimal(10,2)"),
    "date to datetime": ({"a": dt.date}, {"a": dt.datetime}, "'a' was date and is now timestamp"),
    "optional to required": ({"a": (int | None, None)}, {"a": int}, "'a' could be left out and is now required"),
    "a default that goes": ({"a": (str, "x")}, {"a": str}, "'a' could be left out and is now required"),
    "one to many": ({"a": int}, {"a": list[int]}, "'a' was bigint and is now array<bigint>"),
    "within a list": ({"a": list[Grown]}, {"a": list[Plain]}, "'a[].x' was double and is now bigint"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_check_and_at_the_start(log: Log, name: str) -> None:
    before, after, why = REFUSED[name]
    old, new = declared(**before), declared(**after)
    stored(log, old)
    assert judgement(log, new).refused == (), "a stream without events takes any class"
    empty = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in old.stored], schema=old.stored)
    log.append([Append(log.find("orders"), empty)])  # type: ignore[arg-type]
    (said,) = judgement(log, new).refused
    assert said.startswith(why)
    with pytest.raises(SchemaChangeError) as raised:
        log.create(StreamSpec("orders", versioned(new)))
    assert why in str(raised.value.detail)


def test_a_field_that_was_removed_does_not_come_back_as_something_else(log: Log) -> None:
    stored(log, declared(a=int, b=int), b'{"a": 1, "b": 2}')
    stored(log, declared(a=int), b'{"a": 1}')
    back = declared(a=int, b=(str, "x"))
    assert judgement(log, back).refused == ("'b' was bigint and is now string",)
    assert judgement(log, declared(a=int, b=(float, 0.0))).refused == ()


@pytest.mark.parametrize("role", ["id", "key"])
def test_an_id_or_key_keeps_its_type(log: Log, role: str) -> None:
    options = {role: "a"}
    stored(log, declared(a=int, b=int, options=options), b'{"a": 1, "b": 1}')
    (said,) = judgement(log, declared(a=float, b=float, options=options)).refused
    assert said.startswith(f"'a' is the {role} and was bigint")


def test_undeclared_fields_may_be_kept_from_some_day_on(log: Log) -> None:
    stored(log, declared(a=int), b'{"a": 1}')
    kept = declared(a=int, unknown="keep")
    assert judgement(log, kept).refused == ()
    log.create(StreamSpec("orders", versioned(kept)))
    assert read(log) == [{"a": 1}]


WARNED = {
    "fewer values": ({"a": MoreColours}, {"a": Colour}, "'a' no longer takes 'green'"),
    "values at all": ({"a": str}, {"a": Literal["x", "y"]}, "'a' is now one of 'x', 'y'"),
    "a bound": ({"a": int}, {"a": Annotated[int, msgspec.Meta(ge=0)]}, "'a' now has minimum 0"),
    "a format": ({"a": str}, {"a": UUID}, "'a' now has format uuid"),
    "no null": ({"a": (int | None, None)}, {"a": (int, 0)}, "'a' could be null and cannot be now"),
    "within": ({"a": list[Colour]}, {"a": list[Literal["red"]]}, "'a[]' no longer takes 'blue'"),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_a_narrower_class_rejects_is_warned_of(log: Log, name: str) -> None:
    before, after, why = WARNED[name]
    stored(log, declared(**before))
    found = judgement(log, declared(**after))
    assert found.refused == ()
    assert found.warnings == (why,)


def test_a_removed_field_is_warned_of_where_undeclared_ones_are_rejected(log: Log) -> None:
    stored(log, declared(a=int, b=int, unknown="reject"))
    assert judgement(log, declared(a=int)).warnings == ()
    (said,) = judgement(log, declared(a=int, unknown="reject")).warnings
    assert said == "'b': removed, and the stream rejects what is not declared"


def test_versions_have_a_number_a_time_and_their_class(log: Log) -> None:
    stored(log, declared(a=int), b'{"a": 1}')
    stored(log, declared(a=int))
    stored(log, declared(a=float))
    stream = log.find("orders")
    assert stream is not None
    one, two = open_reader(log.place).versions(stream)
    assert (one.number, one.held, two.number, two.held) == (1, True, 2, True)
    assert one.made_us is not None
    assert two.made_us is not None
    assert one.made_us <= two.made_us
    assert class_of(one.schema)["$defs"]["Order"]["properties"]["a"] == {"type": "integer"}  # type: ignore[index]
    assert class_of(two.schema)["$defs"]["Order"]["properties"]["a"] == {"type": "number"}  # type: ignore[index]


def test_other_words_are_no_other_version(log: Log) -> None:
    class Order(Event):
        """One."""

        description: int

    first = declared(Order)
    Order.__doc__ = "Two."
    assert versioned(first).equals(versioned(declared(Order)), check_metadata=True)
    assert "description" in class_of(versioned(first))["$defs"]["Order"]["properties"]  # type: ignore[index]


def test_a_reader_with_the_older_class_reads_what_fits_it_and_says_what_does_not(log: Log) -> None:
    stored(log, declared(a=int, b=int), b'{"a": 1, "b": 1}')
    old = log.find("orders")
    assert old is not None
    stored(log, declared(a=float), b'{"a": 2}')
    assert [(row["a"], row["b"]) for block in log.read(old, 0, 0) for row in block.batch.to_pylist()] == [
        (1, 1),
        (2, None),
    ]
    stored(log, declared(a=float), b'{"a": 2.5}')
    with pytest.raises(SchemaChangeError, match="'a' was written as double") as raised:
        list(log.read(old, 0, 0))
    assert "start it again" in str(raised.value.hint)


def test_slices_and_nulls_are_adapted_in_their_place() -> None:
    def column(inner: pa.DataType) -> pa.Schema:
        shape = pa.list_(pa.field("element", pa.struct([("m", pa.map_(pa.string(), inner))])))
        return pa.schema([pa.field("c", shape)])

    values = [None, [], [{"m": [("k", 1)]}, None, {"m": None}], [{"m": [("k", None), ("l", 2)]}]]
    whole = pa.RecordBatch.from_pylist([{"c": value} for value in values], schema=column(pa.int64()))
    for start in range(len(values)):
        found = adapt(whole.slice(start), column(pa.float64()))
        found.validate(full=True)
        assert [row["c"] for row in found.to_pylist()] == values[start:]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "at", "its time was the time of arrival and would be 'at'"),
        ("at", "", "its time was 'at' and would be the time of arrival"),
        ("at", "sold", "its time was 'at' and would be 'sold'"),
    ],
)
def test_another_time_is_refused_where_events_have_the_old_one(log: Log, before: str, after: str, said: str) -> None:
    def timed(name: str) -> StreamDef:
        return declared(at=int, sold=int, options={"time": name or None})

    stored(log, timed(before))
    assert judgement(log, timed(after)).refused == ()
    stored(log, timed(before), b'{"at": 1, "sold": 2}')
    assert judgement(log, timed(before)).refused == ()
    (why,) = judgement(log, timed(after)).refused
    assert why.startswith(said)
