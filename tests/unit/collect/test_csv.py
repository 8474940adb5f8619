from __future__ import annotations

import datetime as dt
import gzip
import json
from decimal import Decimal

import msgspec
import pytest
from readings_app import readings, send
from running_edge import Edge

from penstock import App
from penstock.collect.judging.typed_texts import TypedTexts


@pytest.fixture
def app() -> App:
    return readings()


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
