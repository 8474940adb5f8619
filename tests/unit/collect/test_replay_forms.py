"""A dead letter is read again as it was read when it came: an envelope is opened, a pulled record is mapped."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from feed_server import until
from running_edge import running

from penstock import App, Event

CLOUD = {"Content-Type": "application/cloudevents+json"}


class Old(Event):
    n: int


class Named(Event):
    n: int
    specversion: str
    id: str = ""
    source: str = ""
    type: str = ""


def clouds(kind: type[Event]) -> App:
    made = App("forms")
    made.stream("clouds", kind, id="cloudevent")
    return made


def cloud(n: Any, id: str, **more: Any) -> dict[str, Any]:
    envelope = {"specversion": "1.0", "id": id, "source": "/s", "type": "t", "time": "2020-01-02T03:04:05Z"}
    return envelope | {"data": {"n": n}} | more


async def test_cloudevents_are_replayed_as_they_are_and_mended_with_their_ids_and_times(tmp_path: Path) -> None:
    async with running(clouds(Old), tmp_path) as edge:
        for n, id in (("one", "a"), ("two", "b")):
            assert (await edge.post("clouds", json.dumps(cloud(n, id)).encode(), headers=CLOUD)).status == 422
        again = await edge.replay("0-0")
        assert [x["reason"] for x in again.body["letters"]] == ["wrong_type"], "the data is judged, not the envelope"
        mended = {"letter": "0-1", "events": [cloud(2, "b")]}
        assert (await edge.replay(mended)).body["accepted"] == 1
        assert (await edge.post("clouds", json.dumps(cloud(2, "b")).encode(), headers=CLOUD)).body["duplicates"] == 1
        for id in ("c", "d"):
            wrong = cloud(3, id, specversion="0.3")
            assert (await edge.post("clouds", json.dumps(wrong).encode(), headers=CLOUD)).status == 422
        told = (await edge.replay("0-2")).body["letters"][0]
        assert (told["result"], told["reason"]) == ("rejected", "bad_cloudevent")
        both = [{"letter": f"0-{at}", "events": [cloud(at, id)]} for at, id in ((2, "c"), (3, "d"))]
        assert (await edge.replay(*both)).body["accepted"] == 2
        rows = edge.events("clouds")
        assert [(row["n"], row["_id"]) for row in rows] == [(2, '["/s","b"]'), (2, '["/s","c"]'), (3, '["/s","d"]')]
        assert {row["_time"] for row in rows} == {dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)}


async def test_a_cloudevent_is_taken_as_it_is_once_the_class_allows_it(tmp_path: Path) -> None:
    class Strict(Event):
        n: int
        name: str

    class Lenient(Event):
        n: int
        name: str = ""

    async with running(clouds(Strict), tmp_path) as edge:
        assert (await edge.post("clouds", json.dumps(cloud(1, "a")).encode(), headers=CLOUD)).status == 422
    async with running(clouds(Lenient), tmp_path) as edge:
        assert (await edge.replay("0-0")).body["letters"][0]["result"] == "replayed"
        (row,) = edge.events("clouds")
        assert (row["n"], row["_id"]) == (1, '["/s","a"]')


async def test_an_event_whose_class_has_the_attributes_for_fields_is_no_envelope(tmp_path: Path) -> None:
    app = App("forms")
    app.stream("named", Named)
    async with running(app, tmp_path) as edge:
        event = {"n": "1", "specversion": "1.0", "id": "i", "source": "s", "type": "t"}
        assert (await edge.post("named", json.dumps(event).encode())).status == 422
        assert (await edge.replay({"letter": "0-0", "events": [event | {"n": 1}]})).body["accepted"] == 1


def pulled(path: Path, map: Any) -> App:
    made = App("forms")
    made.pull(made.stream("ticks", Old), path.as_uri(), map=map)
    return made


async def test_what_a_pull_brought_is_mapped_again(tmp_path: Path) -> None:
    feed = tmp_path / "feed.ndjson"
    feed.write_text('{"tick": {"n": "1"}}\n{"tock": {"n": 2}}\n{"tick": {"n": "3"}}\n')
    async with running(pulled(feed, lambda sent: sent["tick"]), tmp_path) as edge:
        await until(lambda: len(edge.dead()) == 3)
        assert {letter["reason"] for letter in edge.dead()} == {"wrong_type", "map_failed"}
        names = [x["letter"] for x in (await edge.get("/dead?reason=wrong_type")).body["letters"]]

    def mended(sent: Any) -> Any:
        return {"n": int(sent["tick"]["n"])} if "tick" in sent else None

    async with running(pulled(feed, mended), tmp_path) as edge:
        letters = (await edge.get("/dead")).body["letters"]
        (left_out,) = [x["letter"] for x in letters if x["reason"] == "map_failed"]
        assert (await edge.replay(*names)).body["accepted"] == 2
        assert sorted(row["n"] for row in edge.events("ticks")) == [1, 3]
        told = (await edge.replay(left_out)).body["letters"][0]
        assert (told["result"], told["detail"]) == ("rejected", "it holds no event")
        assert (await edge.replay({"letter": left_out, "events": [{"n": 2}]})).body["accepted"] == 1
