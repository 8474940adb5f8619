from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from readings_app import ARROW, arrow, readings, send, stream_of
from running_edge import Edge

from penstock import App, Event
from penstock.collect.contents import arrow as arrow_body
from penstock.collect.contents import arrow_stream
from penstock.collect.judging.judge import Judge
from penstock.collect.reception import decoded_as
from penstock.config import Limits
from penstock.errors import BadBodyError, TooLargeError


@pytest.fixture
def app() -> App:
    return readings()


async def test_columns_are_brought_under_the_stored_types(edge: Edge) -> None:
    columns = {
        "n": pa.array([1, 2], pa.int32()),
        "name": pa.array(["a", None]).dictionary_encode(),
        "value": pa.array([1, 2], pa.int16()),
        "colour": pa.array(["red", None], pa.large_string()),
        "price": pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)),
        "when": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns")),
        "place": pa.array([{"city": "a"}, None], pa.struct([("city", pa.string())])),
        "tags": pa.array([["x", "y"], []], pa.large_list(pa.string())),
        "counts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "more": pa.array([1, 2]),
    }
    reply = await arrow(edge, "plain", columns)
    assert (reply.status, reply.body["accepted"], reply.body["rejected"]) == (200, 2, []), reply.body
    first, second = sorted(edge.events("plain"), key=lambda row: row["n"])
    assert (first["name"], first["value"], first["colour"], first["price"]) == ("a", 1.0, "red", Decimal("1.50"))
    assert first["when"] == dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC)
    assert (first["place"], first["tags"], first["counts"]) == ({"city": "a", "lat": None}, ["x", "y"], [("a", 1)])
    assert (second["name"], second["level"], second["place"], second["counts"]) == ("none", 1, None, [])


async def test_arrow_and_json_store_the_same(edge: Edge) -> None:
    rows = [
        {
            "n": n,
            "at": 1_700_000_000_000 + n,
            "name": f'n"{n % 7}',
            "value": n / 8,
            "tags": ["t"] * (n % 3),
            "level": n % 9,
        }
        for n in range(3000)
    ]
    table = pa.Table.from_pylist(rows)
    assert (await arrow(edge, "pair", table)).body["accepted"] == 3000
    by_arrow = edge.events("pair")
    again = await edge.post("pair", json.dumps(rows).encode())
    assert (again.body["accepted"], again.body["duplicates"]) == (0, 3000)
    await edge.post("kept", json.dumps(rows).encode())
    by_json = edge.events("kept")
    names = [field for field in by_arrow[0] if not field.startswith("_")]
    assert [[row[name] for name in names] for row in by_arrow] == [[row[name] for name in names] for row in by_json]
    assert by_arrow[8]["_id"] == '["n\\"1",8]'
    assert by_arrow[8]["_key"] == "8"


@pytest.mark.parametrize(
    ("columns", "reason", "detail"),
    [
        ({"n": [1, None, 3]}, "missing_field", "'n': expected a value, found nothing"),
        ({"n": [1.0, 1.5, 3.0]}, "wrong_type", "'n': expected int, found float"),
        (
            {"n": pa.array([1, 2**63 + 5, 3], pa.uint64())},
            "out_of_range",
            f"'n': expected what fits bigint, found {2**63 + 5}",
        ),
        (
            {"n": [1, 2, 3], "colour": ["red", "green", None]},
            "wrong_type",
            "'colour': expected one of red, blue, found 'green'",
        ),
        ({"n": [1, 2, 3], "level": [1, 10, 9]}, "out_of_range", "'level': expected int <= 9, found 10"),
        (
            {"n": [1, 2, 3], "price": [Decimal("1.5"), Decimal("1.555"), None]},
            "out_of_range",
            "'price': expected what fits decimal(8,2), found Decimal('1.555')",
        ),
        (
            {"n": [1, 2, 3], "at": [0, 2**60, 0]},
            "out_of_range",
            "'at': expected a time in the years 0001 to 9999, found",
        ),
        ({"n": [1, 2, 3], "at": [0, 4_000_000_000_000, 0]}, "from_the_future", "'at': expected at most"),
        (
            {"n": [1, 2, 3], "place": [{"city": "a", "lat": 1.0}, {"city": None, "lat": 1.0}, None]},
            "missing_field",
            "'place.city': expected a value, found nothing",
        ),
        ({"n": [1, 2, 3], "tags": [["a"], ["b", None], []]}, "wrong_type", "'tags[1]': expected str, found null"),
    ],
)
async def test_a_bad_row_of_arrow_is_rejected_alone(edge: Edge, columns: Any, reason: str, detail: str) -> None:
    reply = await arrow(edge, "plain", columns)
    assert (reply.status, reply.body["accepted"]) == (200, 2), reply.body
    ((index, found, told),) = [tuple(r.values()) for r in reply.body["rejected"]]
    assert (index, found) == (1, reason)
    assert told.startswith(detail)
    assert sorted(row["n"] for row in edge.events("plain")) == [1, 3]
    assert json.loads(edge.dead()[0]["raw"]) is not None


@pytest.mark.parametrize(
    ("columns", "detail"),
    [
        ({"name": ["a"]}, "'n': expected a column, found none"),
        ({"n": ["1"]}, "'n': expected bigint, found string"),
        ({"n": [1], "place": [{"lat": 1.0}]}, "'place.city': expected a column, found none"),
        ({"n": [1], "tags": [[1]]}, "'tags[]': expected string, found bigint"),
        ({"n": pa.array([1], pa.duration("s"))}, "'n': expected a type that streams have, found duration[s]"),
    ],
)
async def test_columns_of_another_kind_are_refused_by_name(edge: Edge, columns: Any, detail: str) -> None:
    reply = await arrow(edge, "plain", columns)
    assert (reply.status, reply.code, reply.body["error"]["detail"]) == (400, "bad_body", detail)


async def test_undeclared_columns_of_arrow(edge: Edge) -> None:
    columns = {"n": [1, 2], "more": [5, None]}
    assert (await arrow(edge, "kept", columns)).body["accepted"] == 2
    assert [row["_unknown"] for row in edge.events("kept")] == ['{"more":5}', None]
    assert "'more': not declared" in (await arrow(edge, "strict", columns)).body["error"]["detail"]


class Odd(Event):
    code: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
    ref: uuid.UUID | None = None
    size: Literal["s", "m"] = "s"


@pytest.mark.parametrize(
    ("column", "values", "good"),
    [
        ("code", ["a", "A", "b"], 2),
        ("ref", [str(uuid.UUID(int=1)), str(uuid.UUID(int=10)).upper(), "x"], 2),
        ("size", ["s", "m", "l"], 2),
    ],
)
def test_what_columns_cannot_tell_is_judged_event_by_event(column: str, values: list[str], good: int) -> None:
    made = Judge(App("odd").stream("odd", Odd), Limits())
    decoded = decoded_as(made, stream_of(pa.table({"code": ["a"] * 3} | {column: values})), "arrow")
    assert (len(decoded.events), len(decoded.rejections)) == (good, 1)


def test_the_lane_judges_no_good_event_alone(monkeypatch: Any) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("an event was touched")

    made = Judge(readings().declared().streams[0], Limits())
    monkeypatch.setattr(Judge, "decode_each", lambda self, raws: never())
    monkeypatch.setattr(arrow_body._Lane, "_judged", lambda self, rows: [] if not rows else never())
    table = pa.table(
        {"n": range(2000), "colour": ["red"] * 2000, "tags": [["a"]] * 2000, "place": [{"city": "a"}] * 2000}
    )
    decoded = decoded_as(made, stream_of(table), "arrow")
    assert decoded.columns is not None
    assert decoded.columns.num_rows == 2000


def packed(rows: int) -> bytes:
    table = pa.table({"n": pa.array([0] * rows)})
    return stream_of(table, options=pa.ipc.IpcWriteOptions(compression="zstd"))


def test_arrow_that_is_packed_inside_is_bounded_before_it_is_unpacked() -> None:
    body = packed(100_000)
    assert len(body) < 80_000
    assert arrow_stream.read_stream(body, 1_000_000).num_rows == 100_000
    with pytest.raises(TooLargeError):
        arrow_stream.read_stream(body, 700_000)


def _repeated() -> list[pa.Array]:
    """2,000 times the same 1,000 bytes, which stand in the body once."""
    folded = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["x" * 1000])
    view = np.tile(np.array([1000, 0x78787878, 0, 0], np.int32), 2000)
    buffers = [None, pa.py_buffer(view), pa.py_buffer(b"x" * 1000)]
    viewed = pa.Array.from_buffers(pa.string_view(), 2000, buffers)
    viewed.validate(full=True)
    offsets = pa.array(range(2001), pa.int32())
    return [
        folded,
        viewed,
        pa.ListArray.from_arrays(offsets, folded),
        pa.ListArray.from_arrays(offsets, viewed),
        pa.StructArray.from_arrays([folded], ["a"]),
        pa.MapArray.from_arrays(offsets, folded, pa.array(range(2000))),
    ]


@pytest.mark.parametrize("column", _repeated(), ids=lambda column: str(column.type))
def test_what_stands_in_a_body_once_is_bounded_before_it_is_unfolded(column: pa.Array) -> None:
    body = stream_of(pa.table({"column": column}))
    assert len(body) < 100_000
    with pytest.raises(TooLargeError):
        arrow_stream.read_stream(body, 1_900_000)
    table = arrow_stream.read_stream(body, 2_000_000)
    assert table["column"].to_pylist() == column.to_pylist()


async def test_the_strings_of_polars_are_taken_at_any_depth(edge: Edge) -> None:
    """Polars writes views unless it is told otherwise."""
    columns = {
        "n": pa.array([1, 2]),
        "name": pa.array(["a longer text than twelve", None], pa.string_view()),
        "place": pa.array([{"city": "a"}, None], pa.struct([("city", pa.string_view())])),
        "tags": pa.array([["x", "y"], []], pa.large_list(pa.string_view())),
    }
    reply = await arrow(edge, "plain", columns)
    assert (reply.status, reply.body["accepted"]) == (200, 2), reply.body
    first, second = sorted(edge.events("plain"), key=lambda row: row["n"])
    assert (first["name"], first["place"]["city"], first["tags"]) == ("a longer text than twelve", "a", ["x", "y"])
    assert (second["name"], second["place"], second["tags"]) == ("none", None, [])


@pytest.mark.parametrize("stream", ["plain", "kept"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "+02:00", "Nowhere/Land"])
async def test_a_zone_changes_no_time_also_one_that_nobody_knows(edge: Edge, stream: str, zone: str) -> None:
    times = pa.array([1_700_000_000_000_000], pa.timestamp("us", zone))
    columns = {"n": [1], "when": times, "more": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), times)}
    reply = await arrow(edge, stream, columns)
    assert (reply.status, reply.body["accepted"]) == (200, 1), reply.body
    assert edge.events(stream)[0]["when"] == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)


@pytest.mark.parametrize("behind", [stream_of(pa.table({"n": [2]})), b"noise"], ids=["a stream", "noise"])
async def test_what_stands_behind_the_end_of_an_arrow_stream_is_not_lost_without_a_word(
    edge: Edge, behind: bytes
) -> None:
    reply = await send(edge, "plain", stream_of(pa.table({"n": [1]})) + behind, ARROW)
    assert (reply.status, reply.code) == (400, "bad_body")
    assert f"{len(behind)} bytes stand behind the end" in reply.body["error"]["detail"]
    assert edge.events("plain") == []


def test_bytes_that_were_tampered_with_are_refused_or_read_but_never_trusted() -> None:
    import random

    made = Judge(readings().declared().streams[0], Limits())
    body = stream_of(
        pa.table({"n": range(50), "name": ["ab"] * 50, "tags": [["x"]] * 50, "place": [{"city": "c"}] * 50})
    )
    seeded = random.Random(5)
    refused = 0
    for _ in range(400):
        wrong = bytearray(body)
        for _ in range(seeded.randint(1, 4)):
            wrong[seeded.randrange(len(wrong))] = seeded.randrange(256)
        try:
            decoded_as(made, bytes(wrong[: seeded.randint(1, len(wrong))] if seeded.random() < 0.2 else wrong), "arrow")
        except (BadBodyError, TooLargeError):
            refused += 1
    assert refused > 50


async def test_too_many_rejected_rows_refuse_the_body(edge: Edge, monkeypatch: Any) -> None:
    monkeypatch.setattr(arrow_body, "MOST_REJECTED", 10)
    reply = await arrow(edge, "plain", {"n": pa.array([None] * 50, pa.int64())})
    assert (reply.status, reply.code) == (400, "bad_body")
    assert reply.body["error"]["detail"] == "one of them: missing_field: 'n': expected a value, found nothing"
