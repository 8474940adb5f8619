"""A dead letter can be seen, mended and sent again, once, whatever is killed in between."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from running_edge import Edge, running
from shop_app import shop

from penstock import App, Event
from penstock.clock import SystemClock
from penstock.collect.letters import stored_letters
from penstock.collect.letters.replayer import Replayer, Wish
from penstock.collect.letters.stored_letters import BLOCK_LETTERS, LetterQuery, StoredLetters
from penstock.collect.sender import Sender
from penstock.log.folder_log import DEAD, FolderLog
from penstock.log.log import Append, StreamSpec
from penstock.log.logs.memory import forget
from penstock.log.opening import open_log
from penstock.private import Private
from tests.memory_folder import memory_folder

BAD = b'{"order_id": "two"}'
MENDED = {"order_id": 2}


def results(reply: Any) -> list[tuple[str, str]]:
    assert reply.status == 200, reply.raw
    return [(result["letter"], result["result"]) for result in reply.body["letters"]]


async def test_letters_are_listed_with_what_was_sent_and_by_filter(edge: Edge) -> None:
    await edge.post("orders", BAD)
    await edge.post("visits", b'{"when": "2000-01-01T00:00:00Z"}')
    await edge.post("orders", b"[1, 2")
    listed = (await edge.get("/dead")).body
    assert [(x["letter"], x["stream"], x["reason"]) for x in listed["letters"]] == [
        ("0-0", "orders", "wrong_type"),
        ("0-1", "visits", "missing_field"),
        ("0-2", "orders", "bad_body"),
    ]
    assert base64.b64decode(listed["letters"][0]["raw"]) == BAD
    assert not listed["more"]
    for query, names in {
        "stream=orders": ["0-0", "0-2"],
        "reason=missing_field": ["0-1"],
        "stream=orders&reason=missing_field": [],
        "since=2000-01-01T00:00:00Z": ["0-0", "0-1", "0-2"],
        "since=2999-01-01": [],
        "replayed=true": [],
        "limit=2": ["0-0", "0-1"],
    }.items():
        assert [x["letter"] for x in (await edge.get(f"/dead?{query}")).body["letters"]] == names, query
    page = (await edge.get("/dead?limit=2")).body
    assert page["more"]
    rest = (await edge.get(f"/dead?after={page['next']}")).body["letters"]
    assert [x["letter"] for x in rest] == ["0-2"]


@pytest.mark.parametrize(
    "query", ["since=yesterday", "limit=0", "limit=1e3", "limit=9999999", "replayed=maybe", "after=x"]
)
async def test_what_cannot_be_asked_is_said(edge: Edge, query: str) -> None:
    assert (await edge.get(f"/dead?{query}")).status == 400


async def test_one_letter_is_shown_whole(edge: Edge) -> None:
    await edge.post("orders", BAD)
    letter = (await edge.get("/dead/0-0")).body
    assert letter["detail"] == "'order_id': expected int, found str"
    assert letter["sender"] == "127.0.0.1"
    assert letter["replayed"] is False
    assert (await edge.get("/dead/0-7")).code == "unknown_letter"
    assert (await edge.get("/dead/1-0")).code == "unknown_letter"
    assert (await edge.get("/dead/seven-up")).code == "bad_request"


async def test_a_mended_letter_is_taken_once(edge: Edge) -> None:
    await edge.post("orders", BAD)
    mended = {"letter": "0-0", "events": [MENDED]}
    reply = await edge.replay(mended)
    assert results(reply) == [("0-0", "replayed")]
    assert reply.body["accepted"] == 1
    assert (await edge.ack(reply.body["acks"]["orders"])).status == 200
    assert results(await edge.replay(mended)) == [("0-0", "already_replayed")]
    assert [event["order_id"] for event in edge.events("orders")] == [2]
    assert (await edge.get("/dead/0-0")).body["replayed"] is True
    assert (await edge.get("/dead?replayed=false")).body["letters"] == []


async def test_a_dry_run_says_what_would_happen_and_does_nothing(edge: Edge) -> None:
    await edge.post("orders", BAD)
    for _ in range(2):
        assert results(await edge.replay({"letter": "0-0", "events": [MENDED]}, dry_run=True)) == [
            ("0-0", "acceptable")
        ]
    assert results(await edge.replay("0-0", dry_run=True)) == [("0-0", "rejected")]
    assert edge.events("orders") == []
    assert len(edge.dead()) == 1


async def test_what_is_rejected_again_is_told_and_leaves_no_second_letter(edge: Edge) -> None:
    await edge.post("orders", BAD)
    reply = await edge.replay("0-0")
    assert reply.body["letters"] == [
        {
            "letter": "0-0",
            "result": "rejected",
            "stream": "orders",
            "reason": "wrong_type",
            "detail": "'order_id': expected int, found str",
        }
    ]
    too_far = {"letter": "0-0", "events": [{"order_id": 1}, {"order_id": 1, "at": 99999999999999}]}
    assert (await edge.replay(too_far)).body["letters"][0]["reason"] == "from_the_future"
    assert len(edge.dead()) == 1
    assert edge.events("orders") == []
    assert edge.collect.counts.of("orders")["dead"] == 1
    assert edge.metric("received", "orders") == 1


async def test_a_letter_is_taken_as_it_is_once_the_class_allows_it(tmp_path: Path) -> None:
    class Narrow(Event):
        order_id: int

    class Wide(Event):
        order_id: str

    async def with_class(kind: type[Event], *letters: str) -> Any:
        app = App("shop")
        app.stream("orders", kind)
        async with running(app, tmp_path) as edge:
            await edge.post("orders", BAD)
            return await edge.replay(*letters) if letters else None, len(edge.events("orders"))

    await with_class(Narrow)
    reply, events = await with_class(Wide, "0-0")
    assert results(reply) == [("0-0", "replayed")]
    assert events == 2


async def test_letters_of_several_streams_and_kinds_go_in_one_request(edge: Edge) -> None:
    await edge.post("orders", BAD)
    await edge.post("visits", b"{}")
    await edge.lines("strict", b'{"order_id": 1, "x": 1}\n{"order_id": 2, "x": 1}', query="?ack=none")
    await edge.collect._unanswered.drain()
    await edge.post("orders", BAD, headers={"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"})
    reply = await edge.replay(
        {"letter": "0-0", "events": [MENDED]},
        {"letter": "0-1", "events": [{"visit": "v"}]},
        {"letter": "0-2", "events": [{"order_id": 1}]},
        {"letter": "0-3", "events": [{"order_id": 2}, {"order_id": 3}]},
        {"letter": "0-4", "events": [MENDED]},
        "0-9",
    )
    assert [result for _, result in results(reply)] == ["replayed"] * 5 + ["unknown_letter"]
    assert reply.body["accepted"] == 6
    assert set(reply.body["acks"]) == {"orders", "visits", "strict"}
    assert [event["order_id"] for event in edge.events("strict")] == [1, 2, 3]
    assert [x["replayed"] for x in (await edge.get("/dead")).body["letters"]] == [True] * 5


async def test_a_body_that_could_not_be_read_may_become_many_events_all_or_none(edge: Edge) -> None:
    await edge.post("orders", b'[{"order_id": 1}, {"order_id": 2}')
    assert results(await edge.replay("0-0")) == [("0-0", "rejected")]
    both = {"letter": "0-0", "events": [{"order_id": 1}, {"order_id": "x"}]}
    assert results(await edge.replay(both)) == [("0-0", "rejected")]
    assert edge.events("orders") == []
    assert results(await edge.replay({"letter": "0-0", "events": [{"order_id": 1}, MENDED]})) == [("0-0", "replayed")]
    assert len(edge.events("orders")) == 2


async def test_a_known_id_is_a_duplicate_and_settles_the_letter(edge: Edge) -> None:
    await edge.post("once", b'[{"order_id": 2}, {"order_id": "two"}]')
    reply = await edge.replay({"letter": "0-0", "events": [MENDED]})
    assert results(reply) == [("0-0", "replayed")]
    assert (reply.body["accepted"], reply.body["duplicates"]) == (0, 1)
    assert results(await edge.replay({"letter": "0-0", "events": [MENDED]})) == [("0-0", "already_replayed")]


async def test_many_at_once_take_each_letter_once(edge: Edge) -> None:
    await edge.lines("orders", b"\n".join([BAD] * 40))
    letters = [{"letter": f"0-{n}", "events": [MENDED]} for n in range(40)]
    replies = await asyncio.gather(*(edge.replay(*letters[n % 7 :]) for n in range(10)))
    assert sum(reply.body["accepted"] for reply in replies) == 40
    assert len(edge.events("orders")) == 40


async def test_what_was_replayed_is_known_after_a_restart(tmp_path: Path) -> None:
    async with running(shop(), tmp_path) as edge:
        await edge.post("orders", BAD)
        await edge.replay({"letter": "0-0", "events": [MENDED]})
    async with running(shop(), tmp_path) as edge:
        assert results(await edge.replay({"letter": "0-0", "events": [MENDED]})) == [("0-0", "already_replayed")]
        assert len(edge.events("orders")) == 1


def poison(path: Path, stream: str, raw: bytes) -> None:
    """A letter of a flow, as the runner writes it into its own file."""
    log = open_log(memory_folder(path).flows_log, app="shop")
    now = SystemClock().now_us()
    row = {"stream": stream, "reason": "poison", "detail": "CAST", "raw": raw, "flow": "large"}
    row |= {"_time": now, "_received": now, "_id": f"large/{stream}/0/0"}
    log.append(
        [Append(log.create(StreamSpec("dead", DEAD, unique=True)), pa.RecordBatch.from_pylist([row], schema=DEAD))]
    )
    log.close()


async def test_letters_of_flows_are_on_side_1(edge: Edge, tmp_path: Path) -> None:
    await edge.post("orders", BAD)
    poison(tmp_path, "orders", b'{"order_id": 7, "country": "x"}')
    assert [x["letter"] for x in (await edge.get("/dead")).body["letters"]] == ["0-0", "1-0"]
    assert (await edge.get("/dead/1-0")).body["flow"] == "large"
    assert results(await edge.replay("1-0")) == [("1-0", "replayed")]
    assert results(await edge.replay("1-0")) == [("1-0", "already_replayed")]
    assert results(await edge.replay("0-0")) == [("0-0", "rejected")]
    assert [event["order_id"] for event in edge.events("orders")] == [7]


async def test_a_letter_of_a_new_flows_file_is_another_letter(tmp_path: Path) -> None:
    for _ in range(2):
        async with running(shop(), tmp_path) as edge:
            poison(tmp_path, "orders", b'{"order_id": 7}')
            assert results(await edge.replay("1-0")) == [("1-0", "replayed")]
        forget(memory_folder(tmp_path).flows_log)


async def test_a_letter_whose_stream_is_made_by_a_flow_cannot_be_replayed(edge: Edge, tmp_path: Path) -> None:
    poison(tmp_path, "large", b'{"order_id": 7}')
    assert (await edge.replay("1-0")).body["letters"][0]["reason"] == "read_only_stream"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"letters": [{"letter": 1}]}',
        b'{"letters": [{"letter": "0-0"}, {"letter": "0-0"}]}',
        b"[" * 9999,
        b'{"l\xffters": []}',
    ],
)
async def test_what_is_no_request_to_replay_is_refused(edge: Edge, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with edge.session.post(f"{edge.url}/dead/replay", data=body, headers=headers) as reply:
        assert reply.status == 400
        assert msgspec.json.decode(await reply.read())["error"]["code"] == "bad_request"


async def test_a_page_that_finds_little_ends_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_letters, "SCAN_LETTERS", 2 * BLOCK_LETTERS)
    async with running(shop(), tmp_path) as edge:
        for _ in range(5):
            await edge.post("orders", b"{}")
        await edge.post("visits", b"{}")
        reader = FolderLog(memory_folder(tmp_path))
        letters = StoredLetters(reader, edge_replayed(edge))
        pages = [letters.page(LetterQuery(stream="visits"), None, 10)]
        while pages[-1].more:
            pages.append(letters.page(LetterQuery(stream="visits"), pages[-1].next, 10))
        assert [letter.name for page in pages for letter in page.letters] == ["0-5"]
        assert len(pages) in (3, 4)  # of two blocks each
        reader.close()


def edge_replayed(edge: Edge) -> Any:
    from penstock.collect.letters.stored_letters import Replayed

    return Replayed(edge.log.memory())


async def test_whoever_may_not_write_to_the_stream_may_not_replay_into_it(edge: Edge, tmp_path: Path) -> None:
    await edge.post("orders", BAD)
    await edge.post("visits", b"{}")
    reader = FolderLog(memory_folder(tmp_path))
    replayed = edge_replayed(edge)
    replayer = Replayer(StoredLetters(reader, replayed), replayed, edge.collect.intakes, SystemClock())
    wishes = [Wish("0-0", [b'{"order_id": 2}']), Wish("0-1", [b'{"visit": "v"}'])]
    done = await replayer.replay(wishes, Sender("replay"), lambda stream: stream == "visits")
    assert [result.verdict for result in done.results] == ["unknown_letter", "replayed"]
    assert edge.events("orders") == []
    reader.close()


async def test_private_fields_are_masked_in_listings_and_shown_on_demand(tmp_path: Path) -> None:
    class Person(Event):
        email: Private[str]
        age: int

    app = App("shop")
    app.stream("people", Person)
    async with running(app, tmp_path) as edge:
        await edge.post("people", b'{"email": "ann@example.org", "age": "old"}')
        (listed,) = (await edge.get("/dead")).body["letters"]
        assert b"ann@" not in base64.b64decode(listed["raw"])
        assert "ann@" not in listed["detail"]
        (whole,) = (await edge.get("/dead?masked=false")).body["letters"]
        assert b"ann@example.org" in base64.b64decode(whole["raw"])
        assert b"ann@example.org" in base64.b64decode((await edge.get("/dead/0-0")).body["raw"])
