"""`GET /views/{view}`: the right rows, never too early, and errors that help."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from edge import Door, eventually, flows_and_edge
from fake_flows import topic

from penstock.config import Limits

TS = pa.timestamp("us", tz="UTC")
WINDOWS = pa.schema(
    [
        ("window", pa.struct([("start", TS), ("end", TS)])),
        ("topic", pa.string()),
        ("rsvps", pa.int64()),
        ("rate", pa.float64()),
    ]
)


async def test_rows_come_filtered_ordered_limited_and_projected(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1), topic("b", 3, "h"), topic("c", 2)])
        await running.at_offset(1)
        assert [row["topic"] for row in await running.rows()] == ["b", "c", "a"]
        assert await running.rows(where="rsvps < 3", select="rsvps", order_by="rsvps", limit=1) == [
            {"topic": "a", "rsvps": 1}
        ]
        assert await running.rows(key="c") == [topic("c", 2)]
        assert await running.rows(key="none") == []
        status, body = await running.get("/views/topics")
        assert (status, set(body)) == (200, {"view", "position", "frontier", "rows"})


async def test_a_key_of_several_columns_is_a_json_object_and_values_are_those_of_the_wire(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build("elsewhere", WINDOWS, ("window", "topic"))
        window = {"start": 0, "end": 60_000_000}
        flows.commit(stream, [{"window": window, "topic": "a", "rsvps": 2**60, "rate": float("nan")}])
        await running.at_offset(1, "elsewhere")
        shown = {"start": "1970-01-01T00:00:00.000Z", "end": "1970-01-01T00:01:00.000Z"}
        row = {"window": shown, "topic": "a", "rsvps": str(2**60), "rate": None}
        assert await running.rows("elsewhere") == [row]
        async with running.http.ws_connect("/views/elsewhere/socket") as ws:
            await ws.send_json({"type": "subscribe"})
            assert (await ws.receive_json())["rows"] == [row]
            flows.commit(stream, [], [{"window": window, "topic": "a"}])
            assert (await ws.receive_json())["deletes"] == [{"window": shown, "topic": "a"}]


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "bad where": ({"where": "rsvps >"}, "bad_query"),
    "function": ({"where": "sleep(5)"}, "bad_query"),
    "negative limit": ({"limit": "-1"}, "bad_query"),
    "unknown column": ({"where": "nope = 1"}, "bad_query"),
    "unknown select": ({"select": "nope"}, "bad_query"),
    "unknown order": ({"order_by": "-nope"}, "bad_query"),
    "bad wait": ({"wait": "soon"}, "bad_request"),
    "too long a wait": ({"wait": "1000"}, "bad_request"),
    "bad since": ({"since": "zz"}, "bad_position"),
    "bad after": ({"after": "zz"}, "bad_position"),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
async def test_what_is_wrong_is_a_400_with_a_hint(tmp_path: Path, what: str) -> None:
    params, code = BAD_REQUESTS[what]
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [topic("a", 1)])
        await running.at_offset(1)
        for path in ("/views/topics", "/views/topics/events"):
            if path.endswith("events") and code != "bad_query":
                continue
            status, body = await running.get(path, **params)
            assert status == 400, body
            assert body["error"]["code"] == code
            assert body["error"]["hint"]


async def test_everything_that_is_not_there_is_a_json_error(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (_, running):
        for path, status, code in (
            ("/nope", 404, "not_found"),
            ("/views/nope", 404, "unknown_view"),
            ("/views/nope/events", 404, "unknown_view"),
            ("/views/nope/socket", 404, "unknown_view"),
            ("/streams/nope", 404, "unknown_stream"),
            ("/streams/nope/events", 404, "unknown_stream"),
        ):
            answer = await running.get(path)
            assert (answer[0], answer[1]["error"]["code"]) == (status, code)
        async with running.http.post("/views/topics") as reply:
            assert reply.status == 405
            assert reply.headers["Allow"] == "GET, HEAD"
            assert (await reply.json())["error"]["code"] == "method_not_allowed"


async def test_an_unchanged_answer_is_a_304(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)

        async def ask(tag: str = "", **params: str) -> tuple[int, str]:
            async with running.http.get("/views/topics", params=params, headers={"If-None-Match": tag}) as reply:
                assert reply.headers["Cache-Control"] == "public, no-cache"
                return reply.status, reply.headers["ETag"]

        _, tag = await ask()
        assert await ask(tag) == (304, tag)
        assert (await ask(tag, where="rsvps > 5"))[0] == 200
        flows.commit(stream, [topic("a", 2)])
        await running.at_offset(2)
        assert (await ask(tag))[0] == 200


async def test_a_view_that_never_loads_is_a_503_after_the_wait(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (_, running):
        status, body = await running.get("/views/topics", wait=0.05)
        assert (status, body["error"]["code"]) == (503, "not_ready")


async def test_a_read_waits_for_a_view_that_is_loading(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        read = asyncio.create_task(running.rows())
        await asyncio.sleep(0.02)
        flows.commit(flows.build(), [])
        assert await read == []


# Reading one's own writes


async def test_after_answers_only_once_the_event_is_absorbed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        ack = door.post("a")
        read = asyncio.create_task(running.get("/views/topics", after=ack, wait=60))
        flows.commit(stream, [topic("z", 1)], end={"rsvps": [door.stream.epoch, [0]]})
        await running.at_offset(1)
        assert not read.done(), "answered too early"
        flows.commit(stream, [topic("a", 1)], end=door.end())
        status, body = await read
        assert status == 200
        assert {"topic": "a", "rsvps": 1, "group": "g"} in body["rows"]
        assert set(body["frontier"]) == {"rsvps"}
    door.log.close()


async def test_after_gives_up_with_the_current_frontier(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [], end=door.end())
        await running.at_offset(1)  # one that is still loading when time is up is a 503
        ack = door.post("a")
        status, body = await running.get("/views/topics", after=ack, wait=0.1)
        assert (status, body["error"]["code"]) == (504, "not_yet")
        assert "rsvps" in body["error"]["detail"]
    door.log.close()


async def test_after_another_epoch_of_the_stream_is_never_absorbed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build(), [], end={"rsvps": ["another", [99]]})
        await running.at_offset(1)
        status, _ = await running.get("/views/topics", after=door.post("a"), wait=0.1)
        assert status == 504
    door.log.close()


async def test_after_through_a_flow_that_left_the_event_out(tmp_path: Path) -> None:
    """rsvps -> yes -> countries: an event that `yes` filters out makes an empty commit there and none here."""
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        yes, stream = flows.flow("yes"), flows.build("countries")
        door.post("kept")
        flows.emit(yes, ["kept"], door.end())
        flows.commit(stream, [topic("kept", 1)], end={"yes": [yes.epoch, [1]]})
        await running.at_offset(1, "countries")
        ack = door.post("left out")
        read = asyncio.create_task(running.get("/views/countries", after=ack, wait=60))
        await asyncio.sleep(0.05)
        assert not read.done(), "answered too early"
        flows.emit(yes, [], door.end())
        status, body = await read
        assert (status, len(body["rows"])) == (200, 1)
    door.log.close()


async def test_after_through_a_flow_waits_for_the_view_too(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        yes, stream = flows.flow("yes"), flows.build("countries")
        flows.commit(stream, [], end={"yes": [yes.epoch, [0]]})
        ack = door.post("a")
        read = asyncio.create_task(running.get("/views/countries", after=ack, wait=60))
        flows.emit(yes, ["a"], door.end())
        await asyncio.sleep(0.05)
        assert not read.done(), "the flow has it, the view has not"
        flows.commit(stream, [topic("a", 1)], end={"yes": [yes.epoch, [1]]})
        assert (await read)[0] == 200
    door.log.close()


async def test_after_a_stream_that_the_view_does_not_read_is_a_400(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        flows.commit(flows.build("elsewhere"), [])
        status, body = await running.get("/views/elsewhere", after=door.post("a"))
        assert (status, body["error"]["code"]) == (400, "bad_request")
    door.log.close()


async def test_wait_absorbed_names_every_view_downstream(tmp_path: Path) -> None:
    door = Door(tmp_path)
    async with flows_and_edge(tmp_path) as (flows, running):
        topics, yes, countries = flows.build(), flows.flow("yes"), flows.build("countries")
        door.post("a")
        position = door.stream.position(door.log.bounds(door.stream).ends)
        flows.commit(topics, [topic("a", 1)], end=door.end())
        reached = await running.views.wait_absorbed(position, 0.2)
        assert {name: view["applied"] for name, view in reached.items()} == {"topics": True, "countries": False}
        flows.emit(yes, ["a"], door.end())
        flows.commit(countries, [topic("a", 1)], end={"yes": [yes.epoch, [1]]})
        reached = await running.views.wait_absorbed(position, 5)
        assert all(view["applied"] and view["position"] for view in reached.values())
    door.log.close()


async def test_at_least_waits_for_a_position(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 1)])
        await running.at_offset(1)
        ahead = stream.position((2,)).token()
        assert (await running.get("/views/topics", at_least=ahead, wait=0.05))[0] == 504
        read = asyncio.create_task(running.get("/views/topics", at_least=ahead))
        flows.commit(stream, [topic("a", 2)])
        assert (await read)[1]["rows"] == [topic("a", 2)]
        flows.build()
        view = running.views.view("topics")
        await eventually(lambda: view.content is not None and view.content.epoch != stream.epoch, "rebuilt")
        assert (await running.get("/views/topics", at_least=ahead, wait=0.05))[0] == 410


# Budget


async def test_a_view_above_its_memory_budget_answers_507_and_the_rest_lives_on(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path, Limits(view_bytes=100_000)) as (flows, running):
        large, small = flows.build(), flows.build("countries")
        flows.commit(small, [topic("a", 1)])
        flows.commit(large, [topic("a", 1)])
        await running.at_offset(1)
        flows.commit(large, [topic(f"t{i}", i) for i in range(2_000)])
        view = running.views.view("topics")
        await eventually(lambda: view.problem is not None, "over budget")
        status, body = await running.get("/views/topics")
        assert (status, body["error"]["code"]) == (507, "over_budget")
        assert body["error"]["hint"]
        assert (await running.get("/views/topics/events"))[0] == 507
        assert await running.rows("countries") == [topic("a", 1)]
        flows.commit(flows.build(), [topic("a", 1)])
        await eventually(lambda: view.content is not None, "a smaller build is served again")


async def test_rows_on_which_a_filter_fails_are_left_out_and_counted_by_view(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        stream = flows.build()
        flows.commit(stream, [topic("a", 0), topic("b", 0), topic("c", 2)])
        await running.at_offset(1)
        assert [row["topic"] for row in await running.rows(where="10 / rsvps > 1")] == ["c"]
        assert [row["topic"] for row in await running.rows(where="10 % rsvps = 0")] == ["c"]
        listed = {view["view"]: view["filter_errors"] for view in (await running.get("/views"))[1]["views"]}
        assert listed == {"topics": 4, "countries": 0, "elsewhere": 0}
        assert running.observer.value("penstock_views_filter_errors_total", view="topics") == 4
        assert b"# TYPE penstock_views_filter_errors_total counter" in running.observer.text()
