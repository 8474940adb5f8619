"""Every delivery of a webhook fits what AsyncAPI says of it, and every described one occurs."""

from __future__ import annotations

from pathlib import Path

from described import Document
from fake_flows import small_app, topic
from hooked import PlayedClock, Taker, flowing, hooked, taking

from penstock.position import Position


async def test_every_delivery_fits_its_description_and_every_described_one_occurs(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        flows.commit(build, [topic("a", 1), topic("b", 1)])
        edge.post("a")
        await edge.at_rows(2)
        _, spec = await edge.ask("GET", "/asyncapi.json")
        made = await edge.hook(taker, since="start")
        stream = await edge.hook(taker, stream="rsvps", since="start")
        await edge.hook(taker, shape="batch", since="start")
        await edge.hook(taker, stream="rsvps", shape="batch", since="start", select="topic")
        await edge.hook(taker, shape="digest", digest_s=10)
        gone = Position("stream", "rsvps", "another", (0,)).token()
        await edge.hook(taker, stream="rsvps", since=gone)
        for hook in (made, stream):
            await edge.ask("POST", f"/webhooks/{hook['id']}/test")
        await edge.quiet()
        flows.commit(build, [topic("a", 2)], [{"topic": "b"}], accepted_us=1_700_000_000_000_000)
        view = edge.views.view("topics")
        await view.until(lambda: view.content is not None and view.content.offset >= 2, 60)
        await clock.advance(10, edge.quiet)
        flows.commit(flows.build(), [topic("a", 3)])
        await view.until(lambda: view.content is not None and len(view.content.rows) == 1, 60)
        await clock.advance(10, edge.quiet)
        compare(Document(spec), taker)


async def test_a_channels_deliveries_are_described_under_its_name(tmp_path: Path) -> None:
    app = small_app()
    app.channel("brief", "topics", select=["rsvps"])
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, app=app) as edge:
        build = flows.build()
        flows.commit(build, [topic("a", 1)])
        await edge.at_rows(1)
        document = Document((await edge.ask("GET", "/asyncapi.json"))[1])
        made = await edge.hook(taker, view=None, channel="brief", since="start")
        await taker.has(1)
        await edge.ask("POST", f"/webhooks/{made['id']}/test")
        for (_, body), wanted in zip(taker.tried, ("upsert", "test"), strict=True):
            place = ["channels", "webhook.channel.brief", "messages", wanted, "payload"]
            assert (body["type"], document.problems(place, body)) == (wanted, [])
        assert "group" not in taker.bodies[0]["row"]
        assert "group" not in document.at("#/components/schemas/channel.brief")["properties"]


def compare(document: Document, taker: Taker) -> None:
    seen = set()
    for head, (_, body) in zip(taker.heads, taker.tried, strict=True):
        kind = "view" if "view" in body else "stream"
        place = ["channels", f"webhook.{kind}.{body[kind]}", "messages", body["type"]]
        seen.add(tuple(place))
        assert document.problems([*place, "payload"], body) == []
        described = document.at("#/" + "/".join(place))["headers"]["required"]
        assert set(described) <= head.keys()
    wanted = {
        ("channels", name, "messages", kind)
        for name in ("webhook.view.topics", "webhook.stream.rsvps")
        for kind in document.spec["channels"][name]["messages"]
    }
    assert wanted - seen == set()
