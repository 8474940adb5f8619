"""What a stream's events look like can be asked for, now and as it was."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from edge import Door, edge, eventually, flows_and_edge

from penstock.log.class_change import versioned
from penstock.log.folder_log import DEAD
from penstock.log.log import StreamSpec
from tests.memory_folder import memory_folder


async def test_every_version_with_its_time_and_the_newest_first(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.post("a")
    definition = flows_definition()
    door.log.create(StreamSpec("rsvps", versioned(definition)))
    async with edge(memory_folder(tmp_path)) as running:
        status, body = await running.get("/streams/rsvps/schema")
        assert (status, body["version"]) == (200, 2)
        assert set(body["schema"]["$defs"]) == {definition.events.kind.__name__}
        assert [(v["version"], v["held"]) for v in body["versions"]] == [(1, True), (2, True)]
        assert body["since"] == body["versions"][1]["since"]
        _, first = await running.get("/streams/rsvps/schema", version=1)
        assert first["version"] == 1
        assert set(first["schema"]["properties"]) == set(definition.events.names)
        status, missing = await running.get("/streams/rsvps/schema", version=3)
        assert (status, missing["error"]["code"]) == (404, "unknown_version")
        for wrong in ("x", "0", "9" * 5000):
            assert (await running.get("/streams/rsvps/schema", version=wrong))[0] == 400
        assert (await running.get("/streams/nope/schema"))[0] == 404
        await eventually(lambda: running.serving.status.streams() != [], "sampled")
        rsvps = next(s for s in running.serving.status.streams() if s["stream"] == "rsvps")
        assert rsvps["schema"] == 2
    door.log.close()


async def test_a_ledger_has_columns_instead_of_a_class(tmp_path: Path) -> None:
    async with flows_and_edge(tmp_path) as (flows, running):
        status, body = await running.get("/streams/dead/schema")
        assert (status, body["error"]["code"]) == (503, "not_ready")
        flows.log.create(StreamSpec("dead", DEAD))
        _, body = await running.get("/streams/dead/schema")
        assert body["schema"]["properties"]["raw"] == {"type": ["string", "null"], "contentEncoding": "base64"}
        assert pa.types.is_binary(DEAD.field("raw").type)


def flows_definition():  # type: ignore[no-untyped-def]
    from fake_flows import small_app

    return small_app().declared().stream("rsvps")
