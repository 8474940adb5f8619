"""Webhooks deliver what a subscriber would get: in every shape, in order, signed, from where they were told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from edge import eventually
from fake_flows import topic
from hooked import PlayedClock, flowing, hooked, taking
from standardwebhooks.webhooks import WebhookVerificationError

from penstock.config import Limits


async def test_each_change_is_delivered_in_order_and_signed(tmp_path: Path) -> None:
    t = taking(), taking(), taking()
    async with flowing(tmp_path) as flows, t[0] as late, t[1] as full, t[2] as rows, hooked(tmp_path) as edge:
        build = flows.build()
        flows.commit(build, [topic("jazz", 2), topic("golf", 1)])
        await edge.views.view("topics").until(lambda: edge.views.view("topics").content is not None, 60)
        await edge.hook(late, shape="batch")
        await edge.hook(full, shape="batch", since="start")
        await edge.hook(rows, since="start", where="rsvps > 1")
        await full.has(1)
        await rows.has(1)
        flows.commit(build, [topic("jazz", 3)])
        await full.has(2)
        await late.has(1)
        await rows.has(2)
        assert [b["type"] for b in full.bodies] == ["snapshot", "changes"]
        assert sorted(r["topic"] for r in full.bodies[0]["rows"]) == ["golf", "jazz"]
        assert [b["row"]["rsvps"] for b in rows.bodies] == [2, 3]
        assert [b["type"] for b in late.bodies] == ["changes"]


async def test_a_webhook_goes_on_from_a_position_that_another_transport_gave(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        flows.commit(build, [topic("jazz", 1)])
        _, read = await edge.ask("GET", "/views/topics?wait=5")
        flows.commit(build, [topic("jazz", 2)])
        flows.commit(build, [topic("jazz", 3)])
        await edge.hook(taker, since=read["position"])
        await taker.has(2)
        assert [b["row"]["rsvps"] for b in taker.bodies] == [2, 3]


async def test_a_webhook_sees_all_rows_whatever_the_views_default_limit_is(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        object.__setattr__(edge.views.view("topics").definition, "limit", 1)
        await edge.hook(taker)
        flows.commit(build, [topic("a", 3), topic("b", 2), topic("c", 1)])
        await taker.has(3)


async def test_a_digest_holds_what_changed_in_the_end(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        flows.commit(build, [topic("gone", 1), topic("stays", 1)])
        await edge.hook(taker, shape="digest", digest_s=60)
        flows.commit(build, [topic("jazz", 1), topic("brief", 1)])
        flows.commit(build, [topic("jazz", 2)], [{"topic": "gone"}, {"topic": "brief"}])
        await edge.views.view("topics").until(lambda: edge.views.view("topics").content.offset >= 3, 60)
        await clock.advance(59, edge.quiet)
        assert taker.tried == []
        await clock.advance(1, edge.quiet)
        await taker.has(1)
        body = taker.bodies[0]
        assert (body["type"], body["upserts"], body["deletes"]) == ("digest", [topic("jazz", 2)], [{"topic": "gone"}])
        await clock.advance(600, edge.quiet)
        assert len(taker.tried) == 1, "a digest of nothing was sent"
        flows.commit(build, [topic("jazz", 3)])
        await edge.views.view("topics").until(lambda: edge.views.view("topics").content.offset >= 4, 60)
        await clock.advance(60, edge.quiet)
        await taker.has(2)
        assert (taker.bodies[1]["since"], taker.bodies[1]["upserts"]) == (body["position"], [topic("jazz", 3)])


@pytest.mark.parametrize("shape", ["change", "batch", "digest"])
async def test_a_stream_is_delivered_without_gap_or_duplicate(tmp_path: Path, shape: str) -> None:
    clock = PlayedClock()
    async with taking() as taker, hooked(tmp_path, clock=clock) as edge:
        edge.post("before")
        digest = {"digest_s": 10} if shape == "digest" else {}
        await edge.hook(taker, stream="rsvps", shape=shape, where="topic <> 'no'", **digest)
        wanted = []
        for number in range(30):
            edge.post(f"t{number}", "no", f"u{number}")
            wanted += [f"t{number}", f"u{number}"]
        if shape == "digest":
            await clock.advance(10, edge.quiet)

        def seen() -> list[str]:
            events = [b.get("events") or [b["event"]] for b in taker.bodies]
            return [event["topic"] for some in events for event in some]

        await eventually(lambda: len(seen()) >= len(wanted), "not all events came")
        assert seen() == wanted


async def test_a_stream_from_the_start_has_every_event(tmp_path: Path) -> None:
    async with taking() as taker, hooked(tmp_path) as edge:
        edge.post(*(f"t{n}" for n in range(250)))
        await edge.hook(taker, stream="rsvps", shape="batch", since="start")
        await taker.has(3)
        assert [e["topic"] for b in taker.bodies for e in b["events"]] == [f"t{n}" for n in range(250)]


async def test_both_secrets_sign_while_one_is_being_replaced(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        status, new = await edge.ask("POST", f"/webhooks/{made['id']}/secret", {"overlap_s": 100})
        assert status == 200
        assert new["secret"] != made["secret"]
        flows.commit(build, [topic("jazz", 1)])
        await taker.has(1)
        assert taker.verify(made["secret"]) == taker.verify(new["secret"]) == taker.bodies[0]
        await clock.advance(101, edge.quiet)
        flows.commit(build, [topic("jazz", 2)])
        await taker.has(2)
        assert taker.verify(new["secret"])
        with pytest.raises(WebhookVerificationError):
            taker.verify(made["secret"])


async def test_a_replay_repeats_deliveries_with_the_same_ids(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        for number in range(1, 5):
            flows.commit(build, [topic("jazz", number)])
        await taker.has(4)
        status, _ = await edge.ask("POST", f"/webhooks/{made['id']}/replay", {"since": taker.bodies[1]["position"]})
        assert status == 202
        await taker.has(6)
        assert taker.taken[4:] == taker.taken[2:4]


async def test_a_test_delivery_is_sent_at_once_and_says_what_came_of_it(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        flows.build()
        made = await edge.hook(taker)
        status, said = await edge.ask("POST", f"/webhooks/{made['id']}/test")
        assert (status, said["delivered"], said["status"]) == (200, True, 200)
        assert taker.verify(made["secret"])["type"] == "test"
        taker.always = 500
        _, said = await edge.ask("POST", f"/webhooks/{made['id']}/test")
        assert (said["delivered"], said["status"], said["failure"]) == (False, 500, "status")
        _, listed = await edge.ask("GET", f"/webhooks/{made['id']}/deliveries")
        assert [d["type"] for d in listed["deliveries"]] == ["test", "test"]


async def test_a_large_snapshot_comes_in_parts_and_then_changes(tmp_path: Path) -> None:
    limits, clock = Limits(snapshot_part_rows=100), PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, limits=limits, clock=clock) as edge:
        build = flows.build()
        flows.commit(build, [topic(f"t{n:03}", n) for n in range(250)])
        await edge.at_rows(250)
        taker.answers.extend([200, 500])  # the second part is tried again
        await edge.hook(taker, shape="batch", since="start")
        await taker.has(1)
        await clock.advance(10, edge.quiet)
        await taker.has(3)
        flows.commit(build, [topic("t000", 1)])
        await taker.has(4)
        parts = taker.bodies[:3]
        assert [(p["type"], p["part"], p["parts"]) for p in parts] == [("snapshot", n, 3) for n in (1, 2, 3)]
        assert len({p["position"] for p in parts}) == 1
        assert sorted(r["topic"] for p in parts for r in p["rows"]) == [f"t{n:03}" for n in range(250)]
        assert taker.tried[1] == taker.tried[2], "the retry was not the same delivery"
