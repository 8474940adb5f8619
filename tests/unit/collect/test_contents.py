from __future__ import annotations

import asyncio
import datetime as dt
import enum
import gzip
import io
import json
import uuid
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio
from running_edge import Edge, Reply, running

from penstock import App, Event, Struct
from penstock.collect.contents import arrow as arrow_body
from penstock.collect.contents import arrow_stream
from penstock.collect.contents.choice import decoded_as
from penstock.collect.judging.admit import Judge
from penstock.collect.judging.typed_texts import TypedTexts
from penstock.collect.reception import _weight
from penstock.config import Limits
from penstock.errors import BadBodyError, TooLargeError

ARROW = "application/vnd.apache.arrow.stream"
CE = "application/cloudevents+json"
CES = "application/cloudevents-batch+json"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(Struct):
    city: str
    lat: float | None = None


class Reading(Event):
    n: int
    at: int | None = None
    name: str = "none"
    value: float | None = None
    good: bool = False
    colour: Colour | None = None
    price: Annotated[Decimal, msgspec.Meta(extra={"precision": 8, "scale": 2})] | None = None
    when: dt.datetime | None = None
    day: dt.date | None = None
    level: Annotated[int, msgspec.Meta(ge=0, le=9)] = 1
    place: Place | None = None
    tags: list[str] = []
    counts: dict[str, int] = {}


def app() -> App:
    made = App("contents")
    made.stream("plain", Reading, key="name", time="at", partitions=2)
    made.stream("pair", Reading, id=["name", "n"], key="n")
    made.stream("kept", Reading, unknown="keep")
    made.stream("strict", Reading, unknown="reject")
    made.stream("cloud", Reading, id="cloudevent")
    return made


@pytest_asyncio.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running(app(), tmp_path / "edge.db") as made:
        yield made


async def send(edge: Edge, stream: str, body: bytes, kind: str, **headers: str) -> Reply:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await edge.post(stream, body, headers={"Content-Type": kind} | sent)


# CSV


async def test_a_csv_is_typed_by_the_class(edge: Edge) -> None:
    body = (
        b"n,name,value,good,colour,price,when,day,place.city,place.lat,tags\r\n"
        b'1,"a, ""b""\nc",1.5,true,red,12.30,2024-05-01T10:00:00+02:00,2024-05-01,Berlin,52.5,x\r\n'
        b"2,,,,,,,,,,\n"
    )
    reply = await send(edge, "plain", body, "text/csv; charset=utf-8")
    assert (reply.status, reply.body["accepted"], reply.body["rejected"]) == (200, 2, [])
    first, second = sorted(edge.events("plain"), key=lambda row: row["n"])
    assert (first["name"], first["value"], first["good"], first["colour"]) == ('a, "b"\nc', 1.5, True, "red")
    assert (first["price"], first["day"]) == (Decimal("12.30"), dt.date(2024, 5, 1))
    assert first["when"] == dt.datetime(2024, 5, 1, 8, tzinfo=dt.UTC)
    assert (first["place"], first["tags"]) == ({"city": "Berlin", "lat": 52.5}, ["x"])
    assert (second["name"], second["good"], second["place"], second["tags"]) == ("none", False, None, [])


def test_many_small_events_count_for_more_than_their_bytes_when_accounts_take_turns() -> None:
    event = b'{"n": 1, "at": 1700000000000, "name": "somebody", "value": 1.5, "good": true}'
    assert _weight(event) == len(event)
    assert _weight((event + b"\n") * 100) == 100 * (len(event) + 1)
    assert _weight(b"x\n" * 4_000) == 256_000
    assert _weight(b"[" + b"1," * 4_000 + b"1]") == 64_000


@pytest.mark.parametrize(
    ("kind", "body", "in_a_thread"),
    [
        ("text/csv", b"n\n" + b"1\n" * 500, False),
        ("text/csv", b"n\n" + b"1,b\n" * 500, True),
        ("text/csv", b"n\r" + b"1\r" * 4_000, True),
        ("application/x-ndjson", b"x\n" * 4_000, True),
        ("application/json", b"[" + b"1," * 4_000 + b"1]", True),
        ("application/x-ndjson", b"x\n" * 20, False),
    ],
    ids=["rows", "bad-rows", "many-rows", "bad-lines", "bad-elements", "few"],
)
async def test_garbage_that_takes_long_to_judge_does_not_hold_up_the_loop(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, kind: str, body: bytes, in_a_thread: bool
) -> None:
    given, threads = asyncio.to_thread, list[str]()

    async def to_thread(work: Callable[..., Any], *words: Any) -> Any:
        threads.append(work.__name__)
        return await given(work, *words)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    assert (await send(edge, "plain", body, kind)).status in (200, 400, 422)
    assert ("decoded_as" in threads) == in_a_thread


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ("x,a,1", "wrong_type", "'n': expected int, found 'x'"),
        (",a,1", "missing_field", "'n': expected a value, found nothing"),
        ("1,a,10", "out_of_range", "'level': expected int <= 9, found '10'"),
        ("1,a", "malformed", "the row: expected 3 columns, found 2"),
        ("99999999999999999999,a,1", "out_of_range", "'n': expected what fits bigint, found 99999999999999999999"),
    ],
)
async def test_a_bad_row_is_rejected_alone_with_its_column(edge: Edge, row: str, reason: str, detail: str) -> None:
    reply = await send(edge, "plain", f"n,name,level\n7,a,1\n{row}\n8,b,2\n".encode(), "text/csv")
    assert (reply.status, reply.body["accepted"]) == (200, 2)
    assert reply.body["rejected"] == [{"index": 1, "reason": reason, "detail": detail}]
    assert sorted(row["n"] for row in edge.events("plain")) == [7, 8]
    assert json.loads(edge.dead()[0]["raw"])


@pytest.mark.parametrize("text", ["1700000000", "1700000000000", "1.7e9", "123e-5", "-5", "noon"])
async def test_a_number_is_no_time_in_a_csv_as_in_json(edge: Edge, text: str) -> None:
    reply = await send(edge, "plain", f"n,when\n1,2024-05-01T08:00:00Z\n2,{text}\n3,\n".encode(), "text/csv")
    detail = f"'when': expected an RFC 3339 time, found '{text}'"
    assert reply.body["rejected"] == [{"index": 1, "reason": "wrong_type", "detail": detail}]
    assert sorted(row["n"] for row in edge.events("plain")) == [1, 3]
    assert json.loads(edge.dead()[0]["raw"]) == {"n": 2, "when": text}


def test_neither_is_one_among_several_times_but_null_is_none() -> None:
    class Seen(msgspec.Struct):
        at: dt.datetime | None = None
        others: list[dt.datetime] = []

    texts = TypedTexts(Seen)
    assert texts.event({"at": "null"}).at is None
    with pytest.raises(msgspec.ValidationError, match="others"):
        texts.event({"others": ["2024-05-01T08:00:00Z", "1700000000"]})


async def test_what_dead_keeps_of_a_row_needs_only_the_wrong_field_mended(edge: Edge) -> None:
    await send(edge, "plain", b"n,good,place.lat,place.city\nx,true,1.5,Rome\n", "text/csv")
    raw = json.loads(edge.dead()[0]["raw"])
    assert raw == {"n": "x", "good": True, "place": {"lat": 1.5, "city": "Rome"}}
    raw["n"] = 1
    assert (await edge.post("plain", json.dumps(raw).encode())).body["accepted"] == 1


@pytest.mark.parametrize("body", [b"", b"a,b\n1,2\n", b"n,n\n1,2\n", b'n\n"1', b"n\n\xff\n"])
async def test_a_csv_that_cannot_be_read_is_kept_whole(edge: Edge, body: bytes) -> None:
    reply = await send(edge, "plain", body, "text/csv")
    assert (reply.status, reply.code) == (400, "bad_body")
    assert edge.dead()[0]["raw"] == body


async def test_a_row_of_a_csv_may_be_as_large_as_any_event(edge: Edge) -> None:
    body = b"n,name\n1," + b"x" * 900_000 + b"\n2," + b"y" * 1_100_000 + b"\n3,z\n"
    reply = await send(edge, "plain", body, "text/csv")
    assert (reply.body["accepted"], reply.reasons) == (2, [(1, "too_large")])


async def test_undeclared_columns_of_a_csv(edge: Edge) -> None:
    body = b"n,more\n1,x\n2,\n"
    assert (await send(edge, "plain", body, "text/csv")).body["accepted"] == 2
    assert (await send(edge, "kept", body, "text/csv")).body["accepted"] == 2
    assert [row["_unknown"] for row in edge.events("kept")] == ['{"more":"x"}', None]
    assert "'more': not declared" in (await send(edge, "strict", body, "text/csv")).body["error"]["detail"]


async def test_a_long_csv_is_the_same_as_its_json(edge: Edge) -> None:
    rows = [{"n": n, "name": f"name {n}", "value": n / 4} for n in range(5000)]
    text = "n,name,value\n" + "".join(f"{r['n']},{r['name']},{r['value']}\n" for r in rows)
    packed = gzip.compress(text.encode())
    assert (await send(edge, "pair", packed, "text/csv", Content_Encoding="gzip")).body["accepted"] == 5000
    again = await edge.post("pair", json.dumps(rows).encode())
    assert (again.body["accepted"], again.body["duplicates"]) == (0, 5000)


# Arrow


def stream_of(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=1000)
    return sink.getvalue()


async def arrow(edge: Edge, stream: str, columns: Any, **headers: str) -> Reply:
    return await send(edge, stream, stream_of(pa.table(columns)), ARROW, **headers)


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

    made = Judge(app().declared().streams[0], Limits())
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

    made = Judge(app().declared().streams[0], Limits())
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


# CloudEvents


def cloud(data: Any = None, **more: Any) -> dict[str, Any]:
    made = {"specversion": "1.0", "id": "1", "source": "/tests", "type": "reading"} | more
    return made if data is None else made | {"data": data}


async def test_a_structured_cloudevent(edge: Edge) -> None:
    sent = cloud({"n": 1}, time="2024-05-01T10:00:00+02:00", subject="s", traceparent="x")
    reply = await send(edge, "cloud", json.dumps(sent).encode(), f"{CE}; charset=UTF-8")
    assert (reply.status, reply.body["accepted"]) == (200, 1), reply.body
    (row,) = edge.events("cloud")
    assert (row["n"], row["_id"], row["_time"]) == (1, '["/tests","1"]', dt.datetime(2024, 5, 1, 8, tzinfo=dt.UTC))


async def test_source_and_id_make_a_cloudevent_unique(edge: Edge) -> None:
    batch = [cloud({"n": 1}), cloud({"n": 2}), cloud({"n": 3}, id="2"), cloud({"n": 4}, source="/other")]
    reply = await send(edge, "cloud", json.dumps(batch).encode(), CES)
    assert (reply.body["accepted"], reply.body["duplicates"]) == (3, 1)
    assert [row["n"] for row in edge.events("cloud")] == [1, 3, 4]
    again = await send(edge, "cloud", json.dumps(batch).encode(), CES)
    assert (again.body["accepted"], again.body["duplicates"]) == (0, 4)
    plain = await edge.post("cloud", b'[{"n": 9}, {"n": 9}]')
    assert plain.body["accepted"] == 2


async def test_a_streams_own_id_and_time_go_before_those_of_the_envelope(edge: Edge) -> None:
    sent = cloud({"n": 1, "name": "a", "at": 1000}, time="2024-05-01T10:00:00Z")
    await send(edge, "pair", json.dumps(sent).encode(), CE)
    await send(edge, "plain", json.dumps(sent).encode(), CE)
    assert edge.events("pair")[0]["_id"] == '["a",1]'
    assert edge.events("plain")[0]["_time"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)


async def test_a_binary_cloudevent(edge: Edge) -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "a%20b",
        "ce-source": '"/t%C3%A9st"',
        "ce-type": "reading",
        "ce-time": "2024-05-01T08:00:00Z",
    }
    reply = await edge.post("cloud", b'{"n": 5}', headers=headers)
    assert (reply.status, reply.body["accepted"]) == (200, 1), reply.body
    assert (edge.events("cloud")[0]["n"], edge.events("cloud")[0]["_id"]) == (5, '["/tést","a b"]')


async def test_a_quoted_header_of_a_binary_cloudevent_is_read_as_the_binding_says(edge: Edge) -> None:
    """First the quotes and their escapes, then the percent signs: CloudEvents HTTP binding, 3.1.3.2."""
    headers = {"ce-specversion": "1.0", "ce-id": '"a\\"b\\\\c%22"', "ce-source": "/t%25", "ce-type": "%F0%9F%98%80"}
    reply = await edge.post("cloud", b'{"n": 5}', headers=headers)
    assert reply.body["accepted"] == 1, reply.body
    assert json.loads(edge.events("cloud")[0]["_id"]) == ["/t%", 'a"b\\c"']


@pytest.mark.parametrize(
    ("name", "value"), [(b"ce-id", b"%FF"), (b"ce-id", b"\xff"), (b"ce-subject", b"%C3"), (b"Content-Type", b"a/\xfe")]
)
async def test_a_header_of_a_cloudevent_that_is_no_text_is_refused_and_never_made_the_same_as_another(
    edge: Edge, name: bytes, value: bytes
) -> None:
    headers = {b"Content-Type": b"application/json", b"ce-specversion": b"1.0", b"ce-id": b"1", b"ce-source": b"/s"}
    lines = b"".join(b"%s: %s\r\n" % line for line in {**headers, b"ce-type": b"t", name: value}.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", int(edge.url.rpartition(":")[2]))
    writer.write(b"POST /streams/cloud HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\nConnection: close\r\n%s\r\n" % lines)
    writer.write(b'{"n":5}')
    reply = await reader.read()
    writer.close()
    assert b" 400 " in reply.split(b"\r\n")[0]
    assert b'"bad_body"' in reply
    assert name in reply
    assert edge.events("cloud") == []
    assert edge.dead()[0]["raw"] == b'{"n":5}'


async def test_the_time_of_a_cloudevent_may_have_small_letters(edge: Edge) -> None:
    await send(edge, "cloud", json.dumps(cloud({"n": 1}, time="2024-05-01t08:00:00z")).encode(), CE)
    assert edge.events("cloud")[0]["_time"] == dt.datetime(2024, 5, 1, 8, tzinfo=dt.UTC)


async def test_an_attribute_that_is_null_is_not_there(edge: Edge) -> None:
    """CloudEvents JSON format, 2.2: null is the same as unset."""
    nulls = dict.fromkeys(("time", "datacontenttype", "subject", "data_base64", "dataschema"))
    reply = await send(edge, "kept", json.dumps(cloud({"n": 1}) | nulls).encode(), CE)
    assert reply.body["accepted"] == 1, reply.body
    assert json.loads(edge.events("kept")[0]["_unknown"]) == {"ce-type": "reading"}


async def test_attributes_are_kept_where_unknown_fields_are(edge: Edge) -> None:
    sent = cloud({"n": 1, "more": 2}, subject="s", traceparent="x")
    await send(edge, "kept", json.dumps(sent).encode(), CE)
    kept = json.loads(edge.events("kept")[0]["_unknown"])
    assert kept == {"ce-type": "reading", "ce-subject": "s", "ce-traceparent": "x", "more": 2}


@pytest.mark.parametrize(
    ("sent", "reason", "detail"),
    [
        (cloud({"n": 1}, specversion="0.3"), "bad_cloudevent", "'specversion': expected 1.0, found '0.3'"),
        (
            {"specversion": "1.0", "id": "1", "type": "t", "data": {}},
            "bad_cloudevent",
            "'source': expected a value, found nothing",
        ),
        (cloud({"n": 1}, id=5), "bad_cloudevent", "'id': expected a string, found '5'"),
        (cloud({"n": 1}, id=""), "bad_cloudevent", "'id': expected 1 to 1000 characters, found ''"),
        (cloud({"n": 1}, time="soon"), "bad_cloudevent", "'time': expected an RFC 3339 time, found 'soon'"),
        (cloud(), "bad_cloudevent", "'data': expected a value, found nothing"),
        (
            cloud({"n": 1}, data_base64="eyJuIjogOH0="),
            "bad_cloudevent",
            "'data_base64': expected nothing beside 'data'",
        ),
        (cloud(data_base64="*"), "bad_cloudevent", "'data_base64': expected base64, found '*'"),
        (
            cloud({"n": 1}, datacontenttype="text/xml"),
            "bad_cloudevent",
            "'datacontenttype': expected application/json, found 'text/xml'",
        ),
        (cloud({"n": "x"}), "wrong_type", "'n': expected int, found str"),
        (cloud({"n": 1}, time="2999-01-01T00:00:00Z"), "from_the_future", "'time': expected at most"),
    ],
)
async def test_a_bad_cloudevent_is_rejected_alone(edge: Edge, sent: Any, reason: str, detail: str) -> None:
    batch = [cloud({"n": 7}, id="a"), sent, cloud(None, id="b", data_base64="eyJuIjogOH0=")]
    reply = await send(edge, "cloud", json.dumps(batch).encode(), CES)
    assert (reply.status, reply.body["accepted"]) == (200, 2), reply.body
    ((index, found, told),) = [tuple(r.values()) for r in reply.body["rejected"]]
    assert (index, found, told[: len(detail)]) == (1, reason, detail)
    assert [row["n"] for row in edge.events("cloud")] == [7, 8]
    assert json.loads(edge.dead()[0]["raw"]) == sent


# Packed


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip,zstd", "compress"])
async def test_other_encodings_are_refused(edge: Edge, encoding: str) -> None:
    reply = await edge.post("plain", b"{}", headers={"Content-Encoding": encoding})
    assert (reply.status, reply.code) == (415, "unsupported_content")


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "ZSTD"])
@pytest.mark.parametrize("kind", ["text/csv", ARROW, CE])
async def test_every_content_may_be_packed(edge: Edge, kind: str, encoding: str) -> None:
    bodies = {"text/csv": b"n\n1\n", ARROW: stream_of(pa.table({"n": [1]})), CE: json.dumps(cloud({"n": 1})).encode()}
    sent = pa.Codec(encoding.lower()).compress(bodies[kind], asbytes=True)
    reply = await send(edge, "plain", sent, kind, Content_Encoding=encoding)
    assert (reply.status, reply.body["accepted"]) == (200, 1)


# Bodies for others to mutate

GOOD: list[tuple[Any, bytes]] = [
    (
        "csv",
        b"n,name,value,good,colour,price,when,day,place.city,place.lat,tags,counts\r\n"
        b'1,"a, ""b""\nc",1.5,true,red,12.30,2024-05-01T10:00:00+02:00,2024-05-01,Berlin,52.5,x,\r\n2,,,,,,,,,,,\n',
    ),
    (
        "cloudevents",
        json.dumps([cloud({"n": 1}, time="2024-05-01T10:00:00Z"), cloud(data_base64="eyJuIjo4fQ==")]).encode(),
    ),
    ("cloudevent", json.dumps(cloud({"n": 1, "tags": ["a"]}, time="2024-05-01T10:00:00Z")).encode()),
    ("text", b'{"n": 1}\n{"n": 2, "place": {"city": "x"}}\n'),
    (
        "json",
        b'[{"n":1,"colour":"red","price":"1.5","when":"2024-05-01T10:00:00Z","level":3,'
        b'"place":{"city":"a","lat":1.5},"tags":["x"],"counts":{"a":1}}]',
    ),
    (
        "arrow",
        stream_of(
            pa.table(
                {
                    "n": range(20),
                    "name": ["ab"] * 20,
                    "tags": [["x"]] * 20,
                    "place": [{"city": "c"}] * 20,
                    "when": pa.array([1] * 20, pa.timestamp("s")),
                    "colour": pa.array(["red"] * 20).dictionary_encode(),
                }
            )
        ),
    ),
    ("arrow", stream_of(pa.table({"n": range(20)}), options=pa.ipc.IpcWriteOptions(compression="lz4"))),
    (
        "arrow",
        stream_of(
            pa.table(
                {
                    "n": pa.array([1, 2**63, 3], pa.uint64()),
                    "at": [2**62, 0, -(2**63)],
                    "when": pa.array([2**62, 1, -(2**63)], pa.timestamp("s")),
                    "level": [11, 2, None],
                    "price": [Decimal("1.234"), None, Decimal(12345678)],
                }
            )
        ),
    ),
]
