from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from readings_app import Reading, stream_of
from running_edge import Edge, running

from penstock import App, Event, Private


def app() -> App:
    made = App("pixels")
    made.stream("seen", Reading, key="name")
    made.stream("kept", Reading, unknown="keep")
    made.stream("strict", Reading, unknown="reject")
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path


async def pixel(edge: Edge, query: str, stream: str = "seen") -> tuple[int, bytes, Any]:
    async with edge.session.get(f"{edge.url}/streams/{stream}/pixel.gif?{query}") as reply:
        return reply.status, await reply.read(), reply.headers


def by_way(edge: Edge, what: str, stream: str, way: str) -> float:
    return edge.observer.value(f"penstock_collect_events_{what}_total", stream=stream, way=way)


async def test_a_pixel_is_an_event_typed_by_the_class(path: Path) -> None:
    async with running(app(), path) as edge:
        query = (
            "n=5&value=1.5&good=true&colour=red&price=1.25&when=2024-05-01T10:00:00Z&day=2024-05-01&name=a%20b"
            "&place.city=Rome&place.lat=41.9&tags=x&tags=y&key=secret&_=123&other=1"
        )
        status, body, headers = await pixel(edge, query)
        assert (status, len(body), body[:6]) == (200, 43, b"GIF89a")
        assert headers["Content-Type"] == "image/gif"
        assert "no-store" in headers["Cache-Control"]
        assert "Penstock-Rejected" not in headers
        (row,) = edge.events("seen")
        assert (row["n"], row["value"], row["good"], row["colour"], row["name"]) == (5, 1.5, True, "red", "a b")
        assert row["when"] == dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)
        assert (row["place"], row["tags"]) == ({"city": "Rome", "lat": 41.9}, ["x", "y"])
        assert by_way(edge, "accepted", "seen", "pixel") == by_way(edge, "received", "seen", "pixel") == 1


@pytest.mark.parametrize(
    ("query", "reason", "detail"),
    [
        ("n=x", "wrong_type", "'n': expected int, found 'x'"),
        ("", "missing_field", "'n': expected a value, found nothing"),
        ("n=1&colour=green", "wrong_type", "'colour': expected one of red, blue, found 'green'"),
        ("n=99999999999999999999", "out_of_range", "'n': expected what fits bigint, found 99999999999999999999"),
        ("n=1&n=2", "wrong_type", '\'n\': expected int, found ["1", "2"]'),
    ],
)
async def test_a_rejected_pixel_is_an_image_too_and_kept(path: Path, query: str, reason: str, detail: str) -> None:
    async with running(app(), path) as edge:
        status, body, headers = await pixel(edge, query)
        assert (status, len(body), headers["Penstock-Rejected"]) == (200, 43, reason)
        (letter,) = edge.dead()
        assert (letter["reason"], letter["detail"]) == (reason, detail)
        assert json.loads(letter["raw"]) is not None
        assert by_way(edge, "dead", "seen", "pixel") == by_way(edge, "received", "seen", "pixel") == 1


async def test_undeclared_parameters_follow_the_streams_choice(path: Path) -> None:
    async with running(app(), path) as edge:
        await pixel(edge, "n=1&more=2&key=secret&_=9", "kept")
        assert edge.events("kept")[0]["_unknown"] == '{"more":"2"}'
        _, _, headers = await pixel(edge, "n=1&more=2&key=secret", "strict")
        assert headers["Penstock-Rejected"] == "unknown_field"
        assert b"secret" not in edge.dead()[0]["raw"]
        assert "Penstock-Rejected" not in (await pixel(edge, "n=1&key=secret&_=9", "strict"))[2]


async def test_where_nothing_is_kept_the_status_says_so(path: Path) -> None:
    async with running(app(), path) as edge:
        assert [(await pixel(edge, "n=1", name))[0] for name in ("nope", "dead")] == [404, 404]
        with edge.full():
            status, body, headers = await pixel(edge, "n=1")
        assert (status, len(body), headers["Penstock-Rejected"]) == (507, 43, "disk_full")
        assert edge.refused("seen", "disk_full") == 1


# Beacons


@pytest.mark.parametrize(
    ("body", "accepted", "rejected"),
    [
        (b'{"n": 1}', 1, 0),
        (b'{\n "n": 1\n}\n', 1, 0),
        (b'[{"n": 1},\n{"n": 2}]', 2, 0),
        (b'{"n": 1}\n{"n": 2}\n', 2, 0),
        (b'{"n": 1}\nnope\n{"n": 3}', 2, 1),
    ],
)
async def test_a_beacon_is_json_or_lines_of_it(path: Path, body: bytes, accepted: int, rejected: int) -> None:
    async with running(app(), path) as edge:
        reply = await edge.post("seen", body, headers={"Content-Type": "text/plain;charset=UTF-8"})
        assert (reply.status, reply.body["accepted"], len(reply.body["rejected"])) == (200, accepted, rejected)
        assert by_way(edge, "accepted", "seen", "beacon") == accepted
        assert by_way(edge, "dead", "seen", "beacon") == rejected


@pytest.mark.parametrize(("body", "status"), [(b"", 400), (b"[{", 400), (b"nope", 422)])
async def test_a_beacon_that_cannot_be_read_is_kept(path: Path, body: bytes, status: int) -> None:
    async with running(app(), path) as edge:
        reply = await edge.post("seen", body, headers={"Content-Type": "text/plain"})
        assert (reply.status, edge.dead()[0]["raw"]) == (status, body)


# Without waiting


async def test_prefer_respond_async_is_ack_none(path: Path) -> None:
    async with running(app(), path) as edge:
        reply = await edge.post("seen", b'{"n": 1}', headers={"Prefer": "wait=10, respond-async"})
        assert (reply.status, reply.body["level"]) == (202, "pending")
        assert reply.headers["Preference-Applied"] == "respond-async"
        assert (await edge.ack(reply.body["ack"], "?wait=60")).body["accepted"] == 1
        stated = await edge.post("seen", b'{"n": 1}', headers={"Prefer": "respond-async"}, query="?ack=logged")
        assert (stated.status, "Preference-Applied" in stated.headers) == (200, False)
        other = await edge.post("seen", b'{"n": 1}', headers={"Prefer": "return=minimal"})
        assert other.status == 200


# Personal fields


class Person(Event):
    age: Private[Annotated[int, msgspec.Meta(le=150)]]
    kind: Private[Literal["a", "b"]] = "a"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/csv", b"age,kind\n7777,a\nsecret,a\n1,secret\n"),
        ("application/json", b'[{"age": 7777}, {"age": "secret"}, {"age": 1, "kind": "secret"}]'),
        ("application/vnd.apache.arrow.stream", stream_of(pa.table({"age": [7777, 1], "kind": ["a", "secret"]}))),
        ("pixel", b"age=7777"),
        ("pixel", b"age=secret"),
        ("pixel", b"age=1&kind=secret"),
    ],
)
async def test_no_reason_tells_the_value_of_a_personal_field(path: Path, kind: str, body: bytes) -> None:
    made = App("people")
    made.stream("people", Person)
    async with running(made, path) as edge:
        if kind == "pixel":
            await pixel(edge, body.decode(), "people")
        else:
            reply = await edge.post("people", body, headers={"Content-Type": kind})
            assert reply.status == 422
        told = " ".join(letter["detail"] for letter in edge.dead())
        assert "expected" in told
        assert "secret" not in told
        assert "7777" not in told


class Door(Event):
    key: str = ""


def test_check_warns_of_a_field_with_the_name_of_the_secret() -> None:
    made = App("doors")
    made.stream("doors", Door)
    assert [(p.level, p.code) for p in made.declared().problems()] == [("warning", "secret_name")]


async def test_what_looks_like_a_key_is_never_stored_and_other_values_are_data(path: Path) -> None:
    made = App("doors")
    made.stream("doors", Door)
    async with running(made, path) as edge:
        for query in ("key=psk_0a1b_77ff", "key=brass", "key=a&key=psk_0a1b_77ff"):
            assert (await pixel(edge, query, "doors"))[0] == 200
        assert [row["key"] for row in edge.events("doors")] == ["", "brass", ""]
        assert edge.dead() == []
