"""Whoever resumes after the app was edited to show a view another way begins anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from edge import edge
from fake_flows import FakeFlows, Rsvp, topic

from penstock.app import App
from penstock.config import Folder
from tests.memory_folder import memory_folder


def app_with(limit: int | None, where: str = "rsvps > 0") -> App:
    app = App("small")
    app.stream("rsvps", Rsvp, key="topic")

    @app.view(key="topic", order_by="-rsvps", limit=limit)
    def topics(rsvps: Any) -> Any: ...

    app.channel("some", "topics", where=where)
    return app


async def poll(folder: Folder, app: App, path: str, since: str | None) -> tuple[list[str], str]:
    """The kinds of messages behind a position, and the position behind them."""
    async with edge(folder, app=app) as running:
        await running.at_offset(1)
        if since is None:
            return [], (await running.get(path))[1]["position"]
        status, body = await running.get(path, since=since, wait=1)
        return [m["type"] for m in body["messages"]] if status == 200 else [], (body or {}).get("position", since)


@pytest.mark.parametrize("path", ["/views/topics", "/channels/some"])
@pytest.mark.parametrize("edited", [app_with(1), app_with(2, "rsvps > 1")], ids=["limit", "channel"])
async def test_a_resume_from_before_an_edit_is_a_reset_and_later_ones_are_none(
    tmp_path: Path, path: str, edited: App
) -> None:
    folder, flows = memory_folder(tmp_path), FakeFlows(memory_folder(tmp_path).flows_log)
    try:
        build = flows.build()
        flows.commit(build, [topic("jazz", 2), topic("golf", 1)])
        _, held = await poll(folder, app_with(2), path, None)
        assert await poll(folder, app_with(2), path, held) == ([], held), "nothing was edited"
        kinds, given = await poll(folder, edited, path, held)
        assert kinds == ["reset", "snapshot"], "also when the view has not moved"
        assert await poll(folder, edited, path, given) == ([], given), "one reset, though the view has not moved"
        flows.commit(build, [topic("jazz", 3)])
        assert (await poll(folder, edited, path, held))[0][0] == "reset"
        assert (await poll(folder, edited, path, given))[0] == ["changes"]
        assert (await poll(folder, app_with(2), path, held))[0] == ["changes"], "the edit was taken back"
    finally:
        flows.close()
