"""What a webhook is and how far it has come are written by two hands; whatever their order, nothing old comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from edge import eventually
from fake_flows import FakeFlows, topic
from hooked import Hooked, Taker, flowing, hooked, taking

from penstock.log import control_keys


def crossed(edge: Hooked, id: str) -> None:
    """Whoever writes next what the webhook is hears of it late, and what was noted of it before is due meanwhile."""
    keeper = edge.webhooks._keeper
    real = keeper._remember

    async def remember(values: Mapping[str, Any]) -> None:
        await real(values)
        if control_keys.webhook(id) in values:
            keeper._remember = real
            keeper.note(id)
            await asyncio.sleep(0.5)

    keeper._remember = remember


def stored_as_disabled(edge: Hooked, id: str) -> bool:
    known = edge.log.memory().get(control_keys.webhook(id))
    return bool(known and known["disabled"]) and not edge.webhooks._keeper._changed


async def disabled(edge: Hooked, flows: FakeFlows, taker: Taker) -> dict[str, Any]:
    """A webhook whose end is stored, and whose next word will cross with that of the writer."""
    build = flows.build()
    made: dict[str, Any] = await edge.hook(taker)
    taker.always = 410
    flows.commit(build, [topic("jazz", 1)])
    await eventually(lambda: stored_as_disabled(edge, made["id"]), "it is not disabled")
    crossed(edge, made["id"])
    return made


async def test_a_webhook_that_was_deleted_as_it_was_disabled_stays_deleted(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path) as edge:
            made = await disabled(edge, flows, taker)
            status, _ = await edge.ask("DELETE", f"/webhooks/{made['id']}")
            assert status == 204
        async with hooked(tmp_path) as edge:
            assert [key for key in edge.log.memory() if made["id"] in key] == []
            assert (await edge.ask("GET", "/webhooks"))[1] == {"webhooks": []}


async def test_a_secret_that_was_replaced_as_its_webhook_was_disabled_stays_replaced(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path) as edge:
            made = await disabled(edge, flows, taker)
            _, new = await edge.ask("POST", f"/webhooks/{made['id']}/secret", {"overlap_s": 0})
        taker.always = 200
        async with hooked(tmp_path) as edge:
            _, shown = await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": True})
            assert shown["enabled"]
            await taker.has(1)
            assert taker.verify(new["secret"])


@pytest.mark.parametrize("enabled", [True, False])
async def test_what_was_switched_stays_switched(tmp_path: Path, enabled: bool) -> None:
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path) as edge:
            flows.build()
            made = await edge.hook(taker)
            await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": not enabled})
            crossed(edge, made["id"])
            await edge.ask("PATCH", f"/webhooks/{made['id']}", {"enabled": enabled})
        async with hooked(tmp_path) as edge:
            assert (await edge.ask("GET", f"/webhooks/{made['id']}"))[1]["enabled"] is enabled


async def test_what_the_log_learns_from_elsewhere_is_taken_over(tmp_path: Path) -> None:
    """As when a commit was made after its caller had been told that nobody knows."""
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        key, progress = control_keys.webhook(made["id"]), control_keys.webhook(made["id"], "progress")
        memory = edge.log.memory()
        stored = dict(memory[key])
        await edge.remember({key: None, progress: None})
        await eventually(lambda: not edge.webhooks._endpoints, "it is still there")
        other = {**stored, "id": "wh_other", "shape": "batch"}
        await edge.remember({control_keys.webhook("wh_other"): other})
        await eventually(lambda: "wh_other" in edge.webhooks._endpoints, "it is not there")
        flows.commit(build, [topic("jazz", 1)])
        await taker.has(1)
        await edge.remember({control_keys.webhook("wh_other"): {**other, "url": stored["url"] + "/moved"}})
        await eventually(lambda: edge.endpoint("wh_other").webhook.url.endswith("/moved"), "it is as it was")
        assert (await edge.ask("GET", "/webhooks/wh_other"))[1]["url"].endswith("/moved")


async def test_what_this_edge_writes_restarts_nothing(tmp_path: Path) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path) as edge:
        build = flows.build()
        made = await edge.hook(taker)
        await edge.ask("PATCH", f"/webhooks/{made['id']}", {"shape": "batch"})
        endpoint = edge.endpoint(made["id"])
        flows.commit(build, [topic("jazz", 1)])
        await taker.has(1)
        await edge.ask("POST", f"/webhooks/{made['id']}/secret", {"overlap_s": 0})
        await asyncio.sleep(0.1)
        assert edge.endpoint(made["id"]) is endpoint
