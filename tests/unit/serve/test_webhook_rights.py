"""A webhook reads as its owner may and no further: its rows, its columns, its channels, whatever it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_flows import Rsvp, topic
from hooked import PlayedClock, flowing, hooked, taking

from penstock import App


def owned() -> App:
    """Each reader sees the topics of its own group; everybody may have the loud ones through a channel."""
    app = App("small")
    app.stream("rsvps", Rsvp, key="topic", visible_where="topic = :sub")

    @app.view(key="topic", visible_where="group = :sub")
    def topics(rsvps: Any) -> Any: ...

    @app.view(key="topic")
    def countries(rsvps: Any) -> Any: ...

    app.channel("loud", "countries", where="rsvps > 5", select=["rsvps"])
    return app


def rows(taker: Any) -> list[tuple[str, Any]]:
    return [(b["type"], (b.get("row") or b.get("key"))["topic"]) for b in taker.bodies]


@pytest.mark.parametrize("where", [None, "1 = 1", "true OR group = 'bob'", "group = 'bob' OR rsvps > 0"])
async def test_a_webhook_gets_its_owners_rows_only_and_no_where_widens_that(tmp_path: Path, where: str | None) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, secured=True, app=owned()) as edge:
        build = flows.build()
        edge.key = await edge.new_key("read:topics", sub="ann")
        await edge.hook(taker, where=where, since="start")
        flows.commit(build, [topic("hers", 1, "ann"), topic("his", 1, "bob")])
        flows.commit(build, [topic("his", 2, "bob")])
        flows.commit(build, [topic("hers", 2, "bob"), topic("his", 3, "ann")])
        flows.commit(build, [], [{"topic": "hers"}, {"topic": "his"}])
        await taker.has(4)
        assert rows(taker) == [("upsert", "hers"), ("delete", "hers"), ("upsert", "his"), ("delete", "his")]


async def test_a_digest_and_a_stream_hold_the_owners_own_only(tmp_path: Path) -> None:
    clock = PlayedClock()
    running = hooked(tmp_path, secured=True, app=owned(), clock=clock)
    async with flowing(tmp_path) as flows, taking() as digests, taking() as events, running as edge:
        build = flows.build()
        edge.key = await edge.new_key("read:*", sub="ann")
        await edge.hook(digests, shape="digest", digest_s=10)
        await edge.hook(events, stream="rsvps", shape="batch")
        flows.commit(build, [topic("hers", 1, "ann"), topic("his", 1, "bob"), topic("lost", 1, "ann")])
        flows.commit(build, [topic("lost", 1, "bob")])
        edge.post("ann", "bob", "ann")
        held = edge.views.view("topics")
        await held.until(lambda: held.content is not None and held.content.offset >= 2, 60)
        await clock.advance(10, edge.quiet)
        await digests.has(1)
        await events.has(1)
        assert (digests.bodies[0]["upserts"], digests.bodies[0]["deletes"]) == ([topic("hers", 1, "ann")], [])
        assert [event["topic"] for b in events.bodies for event in b["events"]] == ["ann", "ann"]


async def test_a_channel_can_be_delivered_to_who_may_read_it_and_not_its_view(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, secured=True, app=owned()) as edge:
        build = flows.build("countries")
        flows.commit(build, [topic("old", 9)])
        await edge.at_rows(1, "countries")
        edge.key = await edge.new_key("read:loud")
        asked = {"url": taker.url(), "channel": "loud"}
        status, _ = await edge.ask("POST", "/webhooks", {"url": taker.url(), "view": "countries"})
        assert status == 403
        status, answer = await edge.ask("POST", "/webhooks", asked | {"where": "group = 'g'"})
        assert (status, answer["error"]["code"]) == (403, "forbidden"), answer
        status, answer = await edge.ask("POST", "/webhooks", asked | {"view": "countries"})
        assert (status, answer["error"]["code"]) == (400, "bad_request")
        status, made = await edge.ask("POST", "/webhooks", asked | {"where": "rsvps < 100"})
        assert (status, made["channel"]) == (201, "loud"), made
        assert "view" not in made
        flows.commit(build, [topic("quiet", 1), topic("loud", 7), topic("louder", 100)])
        flows.commit(build, [topic("loud", 2)])
        await taker.has(2)
        assert [b.get("row") or b.get("key") for b in taker.bodies] == [
            {"topic": "loud", "rsvps": 7},
            {"topic": "loud"},
        ]
        status, _ = await edge.ask("POST", "/webhooks", {"url": taker.url(), "channel": "nothing"})
        assert status == 403


async def test_a_parameter_is_bound_and_not_read_as_sql(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        await edge.hook(taker, where="topic = :t", params={"t": "jazz' OR 1=1 --"})
        await edge.hook(taker.url("/jazz"), where="topic = :t", params={"t": "jazz"})
        flows.commit(build, [topic("golf", 1), topic("jazz", 1)])
        await taker.has(1)
        await edge.quiet()
        assert rows(taker) == [("upsert", "jazz")]
        status, answer = await edge.ask(
            "POST", "/webhooks", {"url": taker.url(), "view": "topics", "where": "topic = :t"}
        )
        assert (status, answer["error"]["code"]) == (400, "bad_query")
