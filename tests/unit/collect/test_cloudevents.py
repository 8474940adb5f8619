from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import Any

import pytest
from readings_app import CE, CES, cloud, readings, send
from running_edge import Edge

from penstock import App


@pytest.fixture
def app() -> App:
    return readings()


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
