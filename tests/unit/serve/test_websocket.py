"""A socket answers what it cannot do with an error and stays open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from edge import DEADLINE_S, Door, Replica, eventually, flows_and_edge
from fake_flows import topic

BAD: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "bad_request"),
    "no object": ("[1]", "bad_request"),
    "too deep": ('{"type": "subscribe", "view": ' + "[" * 2_000 + "]" * 2_000 + "}", "bad_request"),
    "no type": ("{}", "bad_request"),
    "unknown type": ('{"type": "dance", "id": "s"}', "bad_request"),
    "unknown view": ('{"type": "subscribe", "id": "s", "view": "nope"}', "unknown_view"),
    "unknown stream": ('{"type": "subscribe", "id": "s", "stream": "nope"}', "unknown_stream"),
    "neither": ('{"type": "subscribe", "id": "s"}', "bad_request"),
    "bad where": ('{"type": "subscribe", "id": "s", "view": "topics", "where": "drop table"}', "bad_query"),
    "bad limit": ('{"type": "subscribe", "id": "s", "view": "topics", "limit": -1}', "bad_query"),
    "bad select": ('{"type": "subscribe", "id": "s", "view": "topics", "select": {"a": 1}}', "bad_query"),
    "unknown column": ('{"type": "subscribe", "id": "s", "view": "topics", "order_by": "nope"}', "bad_query"),
    "bad since": ('{"type": "subscribe", "id": "s", "view": "topics", "since": "zz"}', "bad_position"),
    "since of a stream": ('{"type": "subscribe", "id": "s", "view": "topics", "since": 5}', "bad_request"),
    "bad after": ('{"type": "subscribe", "id": "s", "view": "topics", "after": 5}', "bad_request"),
    "bad wait": ('{"type": "subscribe", "id": "s", "view": "topics", "wait": []}', "bad_request"),
    "ack without a name": ('{"type": "ack", "id": "s", "position": "zz"}', "bad_request"),
    "a name that is none": ('{"type": "subscribe", "id": "s", "view": "topics", "name": "a/b"}', "bad_request"),
    "bad id": ('{"type": "subscribe", "id": 7, "view": "topics"}', "bad_request"),
    "not subscribed": ('{"type": "unsubscribe", "id": "s"}', "bad_request"),
}


@pytest.mark.parametrize("what", BAD)
async def test_bad_input_is_an_error_and_the_socket_stays_open(tmp_path: Path, what: str) -> None:
    text, code = BAD[what]
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        async with running.http.ws_connect("/socket") as ws:
            await ws.send_str(text)
            answer = await ws.receive_json(timeout=DEADLINE_S)
            assert answer["type"] == "error"
            assert answer["error"]["code"] == code
            assert set(answer["error"]) == {"code", "message", "detail", "hint"}
            await ws.send_json({"type": "subscribe", "id": "good", "view": "topics"})
            assert (await ws.receive_json(timeout=DEADLINE_S))["rows"] == [topic("a", 1)]


async def test_many_subscriptions_share_a_socket_and_end_alone(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 2)])
        async with running.http.ws_connect("/socket") as ws:
            for name in ("a", "b"):
                await ws.send_json(
                    {"type": "subscribe", "id": name, "view": "topics", "where": f"topic = '{name}'", "limit": None}
                )
            seen: dict[str, Any] = {}
            for _ in range(2):
                message = await ws.receive_json(timeout=DEADLINE_S)
                seen[message["id"]] = message["rows"]
            assert seen == {"a": [topic("a", 1)], "b": [topic("b", 2)]}
            await ws.send_json({"type": "unsubscribe", "id": "a"})
            await ws.send_json({"type": "ping", "id": "p"})
            assert await ws.receive_json(timeout=DEADLINE_S) == {"type": "pong", "id": "p"}
            flows.commit(stream, [topic("a", 5), topic("b", 6)])
            message = await ws.receive_json(timeout=DEADLINE_S)
            assert (message["id"], message["upserts"]) == ("b", [topic("b", 6)])
            await ws.send_json({"type": "subscribe", "id": "a", "view": "topics", "limit": 1})
            assert (await ws.receive_json(timeout=DEADLINE_S))["rows"] == [topic("b", 6)]


async def test_a_subscribe_with_an_id_in_use_changes_the_filter_and_nothing_of_the_old_one_follows(
    tmp_path: Path,
) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 1)])
        stop = asyncio.Event()

        async def change() -> None:
            n = 1
            while not stop.is_set():
                n += 1
                await asyncio.to_thread(flows.commit, stream, [topic("a", n), topic("b", n)])

        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "where": "topic = 'a'"})
            changing = asyncio.create_task(change())
            wanted = "a"
            for round in range(40):
                wanted = "ab"[round % 2]
                await ws.send_json({"type": "subscribe", "id": "s", "where": f"topic = '{wanted}'"})
                while (message := await ws.receive_json(timeout=DEADLINE_S))["type"] != "snapshot" or [
                    row["topic"] for row in message["rows"]
                ] != [wanted]:
                    assert message["type"] in ("snapshot", "changes", "position"), message
                seen = {row["topic"] for row in message["rows"]}
                for _ in range(3):
                    message = await ws.receive_json(timeout=DEADLINE_S)
                    seen |= {row["topic"] for row in (*message.get("upserts", ()), *message.get("rows", ()))}
                assert seen == {wanted}, "a message of the old filter came after the new snapshot"
            stop.set()
            await changing
            await eventually(lambda: running.serving.hub._subscribers_by_view() == {("topics",): 1.0}, "one is left")


async def test_the_filter_of_a_stream_changes_on_the_open_socket_and_goes_on_at_the_same_position(
    tmp_path: Path,
) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (_, running):
        door.post("a", "b", "c")
        async with running.http.ws_connect("/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "stream": "rsvps", "where": "topic <> 'b'"})
            first = await ws.receive_json(timeout=DEADLINE_S)
            assert [event["topic"] for event in first["events"]] == ["a", "c"]
            await ws.send_json({"type": "subscribe", "id": "s", "stream": "rsvps", "where": "topic = 'b'"})
            assert await ws.receive_json(timeout=DEADLINE_S) == {
                "id": "s",
                "type": "subscribed",
                "position": first["position"],
            }
            door.post("a", "b")
            then = await ws.receive_json(timeout=DEADLINE_S)
            assert [(event["topic"], event["n"]) for event in then["events"]] == [("b", 1)], (
                "once, and not from the start"
            )
            await ws.send_json({"type": "subscribe", "id": "s", "stream": "rsvps", "since": first["position"]})
            assert (await ws.receive_json(timeout=DEADLINE_S))["type"] == "subscribed"
            again = await ws.receive_json(timeout=DEADLINE_S)
            assert [event["topic"] for event in again["events"]] == ["a", "b"]
    door.log.close()


async def test_a_filter_that_cannot_be_read_ends_the_old_one_with_an_error(tmp_path: Path) -> None:
    """Silence would look like a filter that nothing passes."""
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s"})
            await ws.receive_json(timeout=DEADLINE_S)
            await ws.send_json({"type": "subscribe", "id": "s", "where": "nope = 1"})
            answer = await ws.receive_json(timeout=DEADLINE_S)
            assert (answer["id"], answer["error"]["code"]) == ("s", "bad_query")
            await ws.send_json({"type": "unsubscribe", "id": "s"})
            assert "no subscription" in (await ws.receive_json(timeout=DEADLINE_S))["error"]["message"]


async def test_a_paced_subscription_gets_few_messages_and_always_a_state_that_was(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 50), topic("b", 50)])
        replicas = {"top": Replica(), "all": Replica()}
        async with running.http.ws_connect("/views/topics/socket") as ws:
            for id, limit in (("top", 2), ("all", None)):
                await ws.send_json({"type": "subscribe", "id": id, "limit": limit})
                await ws.send_json({"type": "pace", "id": id, "per_s": 5})
            offset = 1
            for i in range(60):
                offset = await asyncio.to_thread(flows.commit, stream, [topic("a", i), topic("b", 100 - i)])
            end = stream.position((offset,)).token()
            began = asyncio.get_running_loop().time()
            while any(replica.position != end for replica in replicas.values()):
                message = await ws.receive_json(timeout=DEADLINE_S)
                replica = replicas[message.pop("id")]
                replica.take(message)
                assert sum(row["rsvps"] for row in replica.rows.values()) == 100
            seconds = asyncio.get_running_loop().time() - began
        for replica in replicas.values():
            assert len(replica.messages) <= 3 + 5 * (seconds + 3), "more than five a second"
            assert len(replica.messages) < 40
        assert running.observer.value("penstock_serve_batches_conflated_total", view="topics", policy="pace") > 60


async def test_a_pace_is_changed_and_taken_back(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s"})
            await ws.receive_json(timeout=DEADLINE_S)
            await ws.send_json({"type": "pace", "id": "s", "per_s": 2})
            flows.commit(stream, [topic("a", 2)])
            assert (await ws.receive_json(timeout=DEADLINE_S))["upserts"] == [topic("a", 2)]
            await ws.send_json({"type": "pace", "id": "s", "per_s": None})
            await ws.send_json({"type": "ping"})
            assert (await ws.receive_json(timeout=DEADLINE_S))["type"] == "pong"
            for i in range(3, 8):
                flows.commit(stream, [topic("a", i)])
                assert (await ws.receive_json(timeout=DEADLINE_S))["upserts"] == [topic("a", i)]


async def test_a_slow_pace_holds_up_neither_another_pace_nor_a_reset(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s"})
            await ws.receive_json(timeout=DEADLINE_S)
            await ws.send_json({"type": "pace", "id": "s", "per_s": 0.01})
            flows.commit(stream, [topic("a", 2)])
            await running.at_offset(2)
            await ws.send_json({"type": "pace", "id": "s", "per_s": 100})
            assert (await ws.receive_json(timeout=DEADLINE_S))["upserts"] == [topic("a", 2)]
            await ws.send_json({"type": "pace", "id": "s", "per_s": 0.01})
            flows.commit(stream, [topic("a", 3)])
            await running.at_offset(3)
            flows.commit(flows.build(), [topic("b", 1)])
            kinds = [(await ws.receive_json(timeout=DEADLINE_S))["type"] for _ in range(2)]
            assert kinds == ["reset", "snapshot"]


PACES: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"id": "s", "per_s": 0}, "bad_request"),
    "a text": ({"id": "s", "per_s": "2"}, "bad_request"),
    "true": ({"id": "s", "per_s": True}, "bad_request"),
    "unknown": ({"id": "t", "per_s": 2}, "bad_request"),
    "a stream": ({"id": "e", "per_s": 2}, "every_change"),
}


@pytest.mark.parametrize("what", PACES)
async def test_a_pace_that_cannot_be_kept_is_an_error(tmp_path: Path, what: str) -> None:
    fields, code = PACES[what]
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        async with running.http.ws_connect("/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "view": "topics"})
            await ws.receive_json(timeout=DEADLINE_S)
            await ws.send_json({"type": "subscribe", "id": "e", "stream": "rsvps"})
            await eventually(lambda: len(running.serving._streams._waiting) == 1, "the stream is followed")
            await ws.send_json({"type": "pace", **fields})
            assert (await ws.receive_json(timeout=DEADLINE_S))["error"]["code"] == code


async def test_a_pace_that_comes_together_with_its_subscription_is_refused_too(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (_, running), running.http.ws_connect("/socket") as ws:
        await ws.send_json({"type": "subscribe", "id": "e", "stream": "rsvps"})
        await ws.send_json({"type": "pace", "id": "e", "per_s": 2})
        assert (await ws.receive_json(timeout=DEADLINE_S))["error"]["code"] == "every_change"


async def test_a_subscription_begins_when_the_view_has_what_the_client_wrote_or_saw(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        ack, seen = door.post("a"), stream.position((2,)).token()
        for fields in ({"after": ack}, {"at_least": seen}):
            async with running.http.ws_connect("/views/topics/socket") as ws:
                await ws.send_json({"type": "subscribe", "wait": 0.05, **fields})
                assert (await ws.receive_json(timeout=DEADLINE_S))["error"]["code"] == "not_yet"
            assert (await running.get("/views/topics/events", wait=0.05, **fields))[0] == 504
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "after": ack, "at_least": seen})
            await asyncio.sleep(0.05)
            flows.commit(stream, [topic("a", 2)], end=door.end())
            assert (await ws.receive_json(timeout=DEADLINE_S))["rows"] == [topic("a", 2)]
    door.log.close()


async def test_a_row_that_leaves_the_top_is_a_delete_with_its_key(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1), topic("b", 2), topic("c", 3)])
        async with running.http.ws_connect("/views/topics/socket") as ws:
            await ws.send_json({"type": "subscribe", "limit": 2})
            assert [row["topic"] for row in (await ws.receive_json(timeout=DEADLINE_S))["rows"]] == ["c", "b"]
            flows.commit(stream, [topic("a", 9)])
            message = await ws.receive_json(timeout=DEADLINE_S)
            assert message["upserts"] == [topic("a", 9)]
            assert message["deletes"] == [{"topic": "b"}]


async def test_a_stopping_edge_says_goodbye(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.build()
        ws = await running.http.ws_connect("/views/topics/socket")
        await ws.send_json({"type": "subscribe"})
        await ws.receive_json(timeout=DEADLINE_S)
        last = asyncio.create_task(ws.receive(timeout=DEADLINE_S))
        await running.server.close()
        await last
        assert ws.close_code == 1012
