"""A filter with parameters is the same over every transport, on views and on streams, nested fields and places too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from edge import DEADLINE_S, TRANSPORTS, Edge, Replica, edge, flows_and_edge
from fake_flows import topic

from penstock.app import App
from penstock.event import Event, Struct
from penstock.log.log import Append, StreamSpec
from penstock.log.opening import open_log
from tests.memory_folder import memory_folder


class Topic(Struct):
    topic_name: str


class Venue(Struct):
    lat: float
    lon: float


class Group(Struct):
    group_city: str
    group_topics: list[Topic]


class Rsvp(Event):
    guests: int
    group: Group
    venue: Venue | None = None


def meetup() -> App:
    app = App("small")
    app.stream("rsvps", Rsvp)
    return app


def rsvp(
    id: str, city: str, topics: list[str], place: tuple[float, float] | None = None, guests: int = 0
) -> dict[str, Any]:
    return {
        "_id": id,
        "guests": guests,
        "group": {"group_city": city, "group_topics": [{"topic_name": name} for name in topics]},
        "venue": None if place is None else {"lat": place[0], "lon": place[1]},
    }


OSLO, BERGEN = (59.9139, 10.7522), (60.3913, 5.3221)
EVENTS = [
    rsvp("a", "Oslo", ["Jazz", "Blues"], OSLO, 1),
    rsvp("b", "Bergen", ["Golf"], BERGEN, 0),
    rsvp("c", "Oslo", [], None, 3),
    rsvp("d", "Oslo", ["Jazz"], (95.0, 0.0), 2),
]

FILTERS: list[tuple[str, dict[str, Any], list[str]]] = [
    (":topic = ANY(group.group_topics.topic_name)", {"topic": "Jazz"}, ["a", "d"]),
    ("group.group_city = ANY(:cities)", {"cities": ["Bergen", "Voss"]}, ["b"]),
    ("distance(venue.lat, venue.lon, :lat, :lon) < :km", {"lat": 59.91, "lon": 10.75, "km": 25}, ["a"]),
    ("size(group.group_topics) = 0 OR 6 / guests = 3", {}, ["c", "d"]),
]


class Stream:
    def __init__(self, path: Path) -> None:
        self.log = open_log(memory_folder(path).edge_log, app="small")
        definition = meetup().declared().stream("rsvps")
        assert definition is not None
        self.stream = self.log.create(StreamSpec("rsvps", definition.stored))

    def post(self, *events: dict[str, Any]) -> None:
        batch = pa.RecordBatch.from_pylist(list(events), schema=self.stream.schema)
        self.log.append([Append(self.stream, batch)])


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    made = Stream(tmp_path)
    made.post(*EVENTS)
    yield made
    made.log.close()


def ids(events: list[dict[str, Any]]) -> list[str]:
    return [event["_id"] for event in events]


@pytest.mark.parametrize(("where", "params", "wanted"), FILTERS, ids=[where for where, _, _ in FILTERS])
async def test_a_stream_is_filtered_alike_as_a_page_as_events_and_on_a_socket(
    tmp_path: Path, stream: Stream, where: str, params: dict[str, Any], wanted: list[str]
) -> None:
    async with edge(memory_folder(tmp_path), app=meetup()) as running:
        asked = {"where": where, "params": json.dumps(params), "select": "_id"}
        status, body = await running.get("/streams/rsvps", **asked)
        assert (status, ids(body["events"])) == (200, wanted), body
        assert ids((await _first_event(running, asked))["events"]) == wanted
        async with running.http.ws_connect("/streams/rsvps/socket") as ws:
            await ws.send_json({"type": "subscribe", "id": "s", "where": where, "params": params, "select": ["_id"]})
            message = await _next(ws, "events")
            assert [set(event) for event in message["events"]] == [{"_position", "_id"}] * len(wanted)
            assert ids(message["events"]) == wanted


async def _first_event(running: Edge, asked: dict[str, str]) -> dict[str, Any]:
    async with running.http.get("/streams/rsvps/events", params=asked) as reply:
        assert reply.status == 200, await reply.text()
        while not (line := (await reply.content.readline()).decode()).startswith("data: "):
            assert line
        return json.loads(line.removeprefix("data: "))


async def _next(ws: Any, kind: str) -> dict[str, Any]:
    while (message := await ws.receive_json(timeout=DEADLINE_S))["type"] != kind:
        assert message["type"] != "error", message
    return message


async def test_a_streams_filter_is_changed_on_the_open_socket(tmp_path: Path, stream: Stream) -> None:
    where = ":topic = ANY(group.group_topics.topic_name)"
    async with edge(memory_folder(tmp_path), app=meetup()) as running, running.http.ws_connect("/socket") as ws:
        for topic_name, wanted in (("Jazz", ["a", "d"]), ("Golf", ["b"])):
            await ws.send_json(
                {
                    "type": "subscribe",
                    "id": "s",
                    "stream": "rsvps",
                    "where": where,
                    "params": {"topic": topic_name},
                    "since": "start",
                }
            )
            assert ids((await _next(ws, "events"))["events"]) == wanted


async def test_an_event_on_which_a_filter_fails_is_left_out_and_counted(tmp_path: Path, stream: Stream) -> None:
    async with edge(memory_folder(tmp_path), app=meetup()) as running:
        _, body = await running.get("/streams/rsvps", where="6 / guests > 0")
        assert ids(body["events"]) == ["a", "c", "d"]
        assert running.observer.value("penstock_serve_filter_errors_total", stream="rsvps") == 1


WRONG = [
    ({"where": "guests = :n"}, "no value for the parameter"),
    ({"where": "guests = :n", "params": '{"n": "many"}'}, "cannot be read as"),
    ({"where": "guests = 1", "params": "[1]"}, "must be an object"),
    ({"where": "guests = 1", "params": "{"}, "must be an object"),
    ({"where": "group.nothing = 1"}, "no field"),
    ({"where": "distance(1, 2, 3) < 4"}, "takes 4 arguments"),
]


@pytest.mark.parametrize(("asked", "message"), WRONG, ids=[message for _, message in WRONG])
@pytest.mark.parametrize("path", ["/streams/rsvps", "/streams/rsvps/events"])
async def test_what_is_wrong_with_a_streams_filter_is_a_400(
    tmp_path: Path, stream: Stream, path: str, asked: dict[str, str], message: str
) -> None:
    async with edge(memory_folder(tmp_path), app=meetup()) as running:
        status, body = await running.get(path, **asked)
        assert (status, body["error"]["code"]) == (400, "bad_query")
        assert message in body["error"]["message"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_views_filter_takes_parameters_over_every_transport(tmp_path: Path, transport: str) -> None:
    async with flows_and_edge(tmp_path, position_s=0.1) as (flows, running):
        made = flows.build()
        flows.commit(made, [topic("a", 1), topic("b", 5)])
        await running.at_offset(1)
        params: dict[str, Any] = {"where": "rsvps > :least AND topic = ANY(:topics)", "limit": "9"}
        bound = {"least": 2, "topics": ["a", "b", "' OR 1=1 --"]}
        params["params"] = bound if transport == "socket" else json.dumps(bound)
        replica = Replica()
        flows.commit(made, [topic("a", 3), topic("c", 9)])
        await running.at_offset(2)
        await TRANSPORTS[transport](running, replica, lambda: len(replica.rows) == 2, params)
        assert sorted(row["topic"] for row in replica.rows.values()) == ["a", "b"]
        flows.commit(made, [topic("a", 1), topic("b", 7)])
        await TRANSPORTS[transport](running, replica, lambda: len(replica.rows) == 1, params)
        assert [row["rsvps"] for row in replica.rows.values()] == [7]
