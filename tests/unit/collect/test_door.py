from __future__ import annotations

import asyncio
import gzip
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from running_edge import Absorbing, Edge, Reply, running
from shop_app import shop

from penstock.config import Limits
from penstock.errors import DiskFullError, StaleTermError
from penstock.position import Position

ENCODINGS = ("gzip", "zstd")


def order(n: int, **fields: Any) -> bytes:
    return msgspec.json.encode({"order_id": n, **fields})


# What is taken


async def test_an_object_is_taken_and_acknowledged(edge: Edge) -> None:
    reply = await edge.post("orders", order(1, country="nl"))
    assert reply.status == 200
    assert reply.body["accepted"] == 1
    assert (reply.body["duplicates"], reply.body["rejected"], reply.body["level"]) == (0, [], "logged")
    assert reply.headers["Penstock-Ack"] == reply.body["ack"]
    assert Position.parse(reply.body["ack"], "stream", "orders").offsets == (1,)
    (event,) = edge.events("orders")
    assert (event["order_id"], event["country"], event["_key"]) == (1, "nl", "nl")
    assert event["_time"] == event["_received"]


async def test_an_array_and_lines_are_taken(edge: Edge) -> None:
    array = await edge.post("orders", b"[" + order(1) + b"," + order(2) + b"]")
    lines = await edge.lines("orders", order(3) + b"\n\n" + order(4) + b"\n")
    assert (array.body["accepted"], lines.body["accepted"]) == (2, 2)
    assert [event["order_id"] for event in edge.events("orders")] == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["application/ndjson", "application/jsonl", "application/x-ndjson; charset=utf-8"])
async def test_lines_go_by_several_names(edge: Edge, kind: str) -> None:
    reply = await edge.post("orders", order(1) + b"\n" + order(2), headers={"Content-Type": kind})
    assert reply.body["accepted"] == 2


async def test_a_body_without_a_content_type_is_json(edge: Edge) -> None:
    url = f"{edge.url}/streams/orders"
    async with edge.session.post(url, data=order(1), skip_auto_headers=["Content-Type"]) as reply:
        assert reply.status == 200


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_packed_bodies_are_unpacked(tmp_path: Path, encoding: str) -> None:
    body = b"\n".join(order(n) for n in range(10_000))
    parts = gzip.compress(body[: len(body) // 2]) + gzip.compress(body[len(body) // 2 :])
    packed = parts if encoding == "gzip" else pa.compress(body, "zstd", asbytes=True)
    async with running(shop(), tmp_path) as edge:
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": encoding}
        reply = await edge.post("orders", packed, headers=headers)
        assert reply.body["accepted"] == 10_000


async def test_an_empty_batch_is_a_success_of_nothing(edge: Edge) -> None:
    await edge.post("orders", order(1))
    for reply in [
        await edge.post("orders", b"[]"),
        await edge.lines("orders", b"\n\n"),
        await edge.lines("orders", b""),
    ]:
        assert (reply.status, reply.body["accepted"], reply.body["rejected"]) == (200, 0, [])
        assert Position.parse(reply.body["ack"]).offsets == (1,)


async def test_many_single_posts_at_once_are_each_answered_for_themselves(edge: Edge) -> None:
    bodies = [order(n // 2) if n % 5 else b'{"order_id": 99999999999999999999}' for n in range(100)]
    replies = await asyncio.gather(*(edge.post("once", body) for body in bodies))
    assert [reply.status for reply in replies] == [200 if n % 5 else 422 for n in range(100)]
    taken = sum(reply.body["accepted"] for reply in replies)
    known = sum(reply.body["duplicates"] for reply in replies)
    assert taken == len({n // 2 for n in range(100) if n % 5})
    assert taken + known + 20 == 100
    assert sorted(event["order_id"] for event in edge.events("once")) == sorted({n // 2 for n in range(100) if n % 5})
    assert len(edge.dead()) == 20


# What is not taken


async def test_the_good_events_of_a_batch_are_taken_and_the_others_are_dead_letters(edge: Edge) -> None:
    reply = await edge.lines("orders", order(1) + b'\nnope\n{"order_id": "x"}\n' + order(4))
    assert reply.status == 200
    assert reply.body["accepted"] == 2
    assert reply.body["rejected"][1] == {
        "index": 2,
        "reason": "wrong_type",
        "detail": "'order_id': expected int, found str",
    }
    letters = edge.dead()
    assert [(letter["reason"], letter["raw"]) for letter in letters] == [
        ("malformed", b"nope"),
        ("wrong_type", b'{"order_id": "x"}'),
    ]
    assert {(letter["stream"], letter["sender"], letter["flow"]) for letter in letters} == {
        ("orders", "127.0.0.1", None)
    }
    assert letters[0]["_time"] == letters[0]["_received"]


async def test_when_every_event_is_rejected_the_reply_says_so(edge: Edge) -> None:
    reply = await edge.post("orders", b'{"order_id": "x"}')
    assert reply.status == 422
    assert reply.code == "events_rejected"
    assert reply.reasons == [(0, "wrong_type")]
    assert (reply.body["accepted"], reply.body["duplicates"], reply.body["level"]) == (0, 0, "logged")
    assert len(edge.dead()) == 1


@pytest.mark.parametrize(
    "body", [b'{"order_id": 1', b"", b"nope", b'{"order_id": NaN}', b"[" * 100_000, b'[{"order_id": 1}']
)
async def test_a_body_that_cannot_be_read_is_kept_whole(edge: Edge, body: bytes) -> None:
    reply = await edge.post("orders", body)
    assert (reply.status, reply.code) == (400, "bad_body")
    assert reply.body["error"]["hint"]
    (letter,) = edge.dead()
    assert (letter["reason"], letter["raw"], letter["stream"]) == ("bad_body", body, "orders")
    assert edge.events("orders") == []
    assert edge.collect.counts.of("orders") == {"duplicates": 0, "dead": 1, "shed": 0}


async def test_a_huge_unreadable_body_is_kept_in_part(edge: Edge) -> None:
    await edge.post("orders", b"[" + b"x" * 2_000_000)
    assert len(edge.dead()[0]["raw"]) == 1024**2


async def test_unknown_streams_are_named_with_those_there_are(edge: Edge) -> None:
    reply = await edge.post("ordrs", order(1))
    assert (reply.status, reply.code) == (404, "unknown_stream")
    assert "orders, once, kept" in reply.body["error"]["hint"]


@pytest.mark.parametrize("name", ["large", "dead", "late"])
async def test_flows_and_ledgers_cannot_be_posted_to(edge: Edge, name: str) -> None:
    reply = await edge.post(name, order(1))
    assert (reply.status, reply.code) == (409, "read_only_stream")


async def test_unknown_fields_are_ignored_kept_or_rejected_as_declared(edge: Edge) -> None:
    extra = order(1, note="x", place={"city": "a", "zip": 1})
    assert (await edge.post("orders", extra)).status == 200
    assert (await edge.post("kept", extra)).status == 200
    strict = await edge.post("strict", extra)
    assert (strict.status, strict.reasons) == (422, [(0, "unknown_field")])
    assert edge.events("kept")[0]["_unknown"] == '{"note":"x","place.zip":1}'
    assert edge.dead()[0]["raw"] == extra


async def test_a_body_of_50_mb_is_refused_before_it_is_read(edge: Edge) -> None:
    reply = await edge.post("orders", b" " * 50_000_000)
    assert (reply.status, reply.code, reply.headers["Connection"]) == (413, "too_large", "close")
    assert (await edge.post("orders", order(1))).status == 200


async def test_a_chunked_body_is_refused_when_it_grows_too_large(edge: Edge) -> None:
    async def chunks() -> Any:
        for _ in range(50):
            yield b" " * 1_000_000

    headers = {"Content-Type": "application/json"}
    async with edge.session.post(f"{edge.url}/streams/orders", data=chunks(), headers=headers) as reply:
        assert reply.status == 413


@cache
def bomb_of(encoding: str) -> bytes:
    zeros = b" " * 200_000_000
    return gzip.compress(zeros, 6) if encoding == "gzip" else pa.compress(zeros, "zstd", asbytes=True)


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_bomb_is_refused_within_the_limit(tmp_path: Path, encoding: str) -> None:
    bomb = bomb_of(encoding)
    assert len(bomb) < 300_000
    async with running(shop(), tmp_path) as edge:
        before = pa.total_allocated_bytes()
        reply = await edge.post("orders", bomb, headers={"Content-Encoding": encoding})
        assert (reply.status, reply.code) == (413, "too_large")
        assert pa.total_allocated_bytes() - before < 64 * 1024**2
        assert (await edge.post("orders", order(1))).status == 200


@pytest.mark.parametrize("packed", [gzip.compress(order(1), mtime=0)[:-9], b"\x1f\x8b nonsense"])
async def test_packed_data_that_breaks_off_is_a_bad_body(edge: Edge, packed: bytes) -> None:
    reply = await edge.post("orders", packed, headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.code) == (400, "bad_body")
    assert edge.dead()[0]["raw"] == packed


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("watched", [False, True], ids=["by aiohttp", "by the short way"])
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "text/csv"])
async def test_a_body_that_is_not_packed_as_it_says_is_a_bad_one(
    tmp_path: Path, encoding: str, watched: bool, kind: str
) -> None:
    body = b"order_id\n1\n" if kind == "text/csv" else order(1)
    async with running(shop(), tmp_path, watched=watched) as edge:
        headers = {"Content-Type": kind, "Content-Encoding": encoding}
        reply = await edge.post("orders", body, headers=headers)
        assert (reply.status, reply.code) == (400, "bad_body")
        assert (edge.events("orders"), edge.dead()[0]["raw"]) == ([], body)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/octet-stream"},
        {"Content-Type": "text/html"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Encoding": "br"},
        {"Content-Encoding": "gzip, gzip"},
    ],
)
async def test_content_that_the_door_does_not_take_is_named(edge: Edge, headers: dict[str, str]) -> None:
    reply = await edge.post("orders", order(1), headers=headers)
    assert (reply.status, reply.code) == (415, "unsupported_content")
    assert reply.body["error"]["hint"]


async def test_what_curl_sends_without_being_told_is_taken_as_json(edge: Edge) -> None:
    reply = await edge.post("orders", order(1), headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert (reply.status, reply.body["accepted"]) == (200, 1)


async def test_a_large_event_is_rejected_alone(edge: Edge) -> None:
    reply = await edge.lines("orders", order(1) + b"\n" + order(2, country="x" * 1_100_000) + b"\n" + order(3))
    assert (reply.body["accepted"], reply.reasons) == (2, [(1, "too_large")])


async def test_an_event_of_the_year_9999_is_from_the_future(edge: Edge) -> None:
    reply = await edge.post("orders", b"[" + order(1, at=253_370_764_800_000) + b"," + order(2, at=1) + b"]")
    assert (reply.body["accepted"], reply.reasons) == (1, [(0, "from_the_future")])
    assert edge.dead()[0]["raw"] == order(1, at=253_370_764_800_000)


async def test_a_batch_with_many_misfits_keeps_every_place(edge: Edge) -> None:
    bodies = [order(n) if n % 3 else b'{"order_id": 99999999999999999999}' for n in range(1000)]
    reply = await edge.lines("orders", b"\n".join(bodies))
    assert reply.reasons == [(n, "out_of_range") for n in range(0, 1000, 3)]
    assert [event["order_id"] for event in edge.events("orders")] == [n for n in range(1000) if n % 3]


@pytest.mark.parametrize(
    "query", ["?ack=maybe", "?ack=replicated", "?ack=applied&wait=soon", "?wait=-1", "?wait=nan", "?wait=61"]
)
async def test_options_that_mean_nothing_are_refused(edge: Edge, query: str) -> None:
    reply = await edge.post("orders", order(1), query=query)
    assert (reply.status, reply.code) == (400, "bad_request")
    assert reply.body["error"]["hint"]
    assert edge.events("orders") == []


async def test_replicated_is_told_where_the_log_replicates(edge: Edge) -> None:
    edge.collect._door.replicates = True
    reply = await edge.post("orders", order(1), query="?ack=replicated")
    assert (reply.status, reply.body["level"]) == (200, "replicated")


# Duplicates and counts


async def test_an_event_id_is_taken_once(edge: Edge) -> None:
    first = await edge.post("visits", b'{"visit": "a"}')
    again = await edge.post("visits", b'[{"visit": "a"}, {"visit": "b"}, {"visit": "b"}]')
    assert (first.body["accepted"], again.body["accepted"], again.body["duplicates"]) == (1, 1, 2)
    only_known = await edge.post("visits", b'{"visit": "a"}')
    assert (only_known.status, only_known.body["accepted"], only_known.body["duplicates"]) == (200, 0, 1)
    assert [event["_id"] for event in edge.events("visits")] == ["a", "b"]


async def test_a_request_of_known_and_bad_events_is_no_failure(edge: Edge) -> None:
    await edge.post("visits", b'{"visit": "a"}')
    reply = await edge.post("visits", b'[{"visit": "a"}, 5]')
    assert (reply.status, reply.body["duplicates"], reply.reasons) == (200, 1, [(1, "wrong_type")])


async def test_what_was_received_is_accounted_for_and_totals_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path
    async with running(shop(), path) as edge:
        await edge.post("visits", b'[{"visit": "a"}, {"visit": "a"}, {"visit": 5}]')
        await edge.post("visits", b"nope")
        counts = {what: edge.metric(what, "visits") for what in ("received", "accepted", "duplicate", "dead", "shed")}
        assert counts == {"received": 4, "accepted": 1, "duplicate": 1, "dead": 2, "shed": 0}
        assert edge.collect.counts.of("visits") == {"duplicates": 1, "dead": 2, "shed": 0}
    async with running(shop(), path) as edge:
        assert edge.collect.counts.of("visits") == {"duplicates": 1, "dead": 2, "shed": 0}
        assert (await edge.post("visits", b'{"visit": "a"}')).body["duplicates"] == 1
        assert edge.collect.counts.of("visits") == {"duplicates": 2, "dead": 2, "shed": 0}
        assert edge.metric("received", "visits") == 1


# When the log cannot


async def test_a_full_disk_is_said_with_when_to_retry_and_counts_nothing(edge: Edge, monkeypatch: Any) -> None:
    def full(*_: Any) -> Any:
        raise DiskFullError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(edge.log, "_write", full)
        replies = [await edge.post("visits", b'{"visit": "a"}'), await edge.post("visits", b"nope")]
    assert [(r.status, r.code, r.headers["Retry-After"]) for r in replies] == [(507, "disk_full", "10")] * 2
    assert edge.collect.counts.of("visits") == {"duplicates": 0, "dead": 0, "shed": 0}
    assert (edge.refused("visits", "disk_full"), edge.metric("received", "visits")) == (2, 0)
    assert (await edge.post("visits", b'{"visit": "a"}')).body["accepted"] == 1


async def test_a_log_that_another_process_took_over_is_unavailable(edge: Edge, monkeypatch: Any) -> None:
    def stale(*_: Any) -> Any:
        raise StaleTermError("another writer has taken over")

    monkeypatch.setattr(edge.log, "_write", stale)
    reply = await edge.post("orders", order(1))
    assert (reply.status, reply.code, reply.headers["Retry-After"]) == (503, "log_unavailable", "1")


async def test_more_than_may_wait_is_refused(tmp_path: Path) -> None:
    async with running(shop(), tmp_path, limits=Limits(unwritten_bytes=100)) as edge:
        reply = await edge.post("orders", order(1, country="x" * 200))
        assert (reply.status, reply.code, reply.headers["Retry-After"]) == (503, "overloaded", "1")
        assert (edge.refused("orders", "overloaded"), edge.metric("received", "orders")) == (1, 0)
        replies: list[Reply] = [await edge.post("orders", order(n)) for n in range(20)]
        assert {reply.status for reply in replies} == {200}


# Read your writes


async def test_applied_means_that_all_views_have_absorbed(tmp_path: Path) -> None:
    absorbing = Absorbing()
    async with running(shop(), tmp_path, absorbing=absorbing) as edge:
        absorbing.views = {"a": True, "b": True}
        applied = await edge.post("orders", order(1), query="?ack=applied")
        absorbing.views = {"a": True, "b": False}
        logged = await edge.post("orders", order(2), query="?ack=applied&wait=0.5")
    assert (applied.status, logged.status) == (200, 200)
    assert (applied.body["level"], logged.body["level"]) == ("applied", "logged")
    assert [wait_s for _, wait_s in absorbing.asked] == [5.0, 0.5]
    assert absorbing.asked[0][0].token() == applied.body["ack"]
