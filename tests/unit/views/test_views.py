"""A failure on the way from the log into a view loses nothing, and needs no further commit to be made good."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_flows import FakeFlows, small_app, topic

from penstock.errors import CorruptBlockError
from penstock.views import views as views_module
from penstock.views.store import Content
from penstock.views.views import Views
from tests.memory_folder import memory_folder


@pytest.fixture
async def flows(tmp_path: Path) -> AsyncIterator[FakeFlows]:
    made = FakeFlows(memory_folder(tmp_path).flows_log)
    yield made
    made.close()


@pytest.fixture
async def views(flows: FakeFlows, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Views]:
    monkeypatch.setattr(views_module, "RETRY_S", 0.02)
    made = Views(small_app().declared(), flows.log)
    yield made
    await made.stop()


def failing_once(whole: Callable[..., Any], at: int = 1) -> Callable[..., Any]:
    """`whole`, whose call number `at` fails."""
    calls = 0

    def partly(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError("the disk hiccupped")
        return whole(*arguments)

    return partly


async def content_at(views: Views, offset: int) -> Content:
    view = views.view("topics")
    assert await view.until(lambda: view.content is not None and view.content.offset >= offset, 60)
    assert view.content is not None
    return view.content


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_commit_that_could_not_be_applied_is_tried_again_alone(
    flows: FakeFlows, views: Views, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    stream = flows.build()
    flows.commit(stream, [topic("a", 0)])
    await views.start()
    await content_at(views, 1)
    monkeypatch.setattr(views._composer, "compose", failing_once(views._composer.compose, at))
    for i in range(1, 4):
        flows.commit(stream, [topic(f"t{i}", i)])
    content = await content_at(views, 4)
    assert sorted(content.rows.values()) == [("a", 0, "g"), ("t1", 1, "g"), ("t2", 2, "g"), ("t3", 3, "g")]
    assert [batch.end for batch in content.history.after(1) or ()] == [2, 3, 4]
    assert views.observer.value("penstock_views_follow_failures_total", view="topics") == 1


async def test_what_keeps_a_view_from_moving_is_its_state_as_long_as_it_does(
    flows: FakeFlows, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = CorruptBlockError("block 7 of 'topics' is not what was written")
    mended, whole = threading.Event(), Views._advance

    async def advance(self: Views, view: Any) -> None:
        if not mended.is_set():
            raise broken
        await whole(self, view)

    monkeypatch.setattr(Views, "_advance", advance)
    flows.commit(flows.build(), [topic("jazz", 1)])
    await views.start()
    await eventually(lambda: views.flow_state("topics").error == broken.body())
    assert views.flow_state("topics").state == "retrying"
    mended.set()
    await eventually(lambda: views.flow_state("topics").error is None)
    assert (await content_at(views, 1)).rows


async def test_a_listener_that_fails_makes_no_commit_come_twice(flows: FakeFlows, views: Views) -> None:
    stream = flows.build()
    await views.start()
    await content_at(views, 0)
    views.view("topics").listen(failing_once(lambda: None))
    flows.commit(stream, [topic("a", 1)])
    flows.commit(stream, [topic("a", 2)])
    content = await content_at(views, 2)
    assert [batch.end for batch in content.history.after(0) or ()] == [1, 2]


async def test_commits_that_came_while_it_was_busy_become_visible_in_one_step_of_the_loop(
    flows: FakeFlows, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = flows.build()
    await views.start()
    await content_at(views, 0)
    reading, go_on = threading.Event(), threading.Event()
    whole = views._composer.compose

    def held(*arguments: Any) -> Any:
        reading.set()
        assert go_on.wait(60)
        return whole(*arguments)

    monkeypatch.setattr(views._composer, "compose", held)
    flows.commit(stream, [topic("a", 1)])
    await asyncio.to_thread(reading.wait, 30)
    for count in range(2, 5):
        flows.commit(stream, [topic("a", count)])
    seen: list[int | str] = []

    def woken() -> None:
        content = views.view("topics").content
        assert content is not None
        seen.append(content.offset)
        asyncio.get_running_loop().call_soon(seen.append, "step")

    views.view("topics").listen(woken)
    go_on.set()
    await content_at(views, 4)
    assert seen[:5] == [1, "step", 2, 3, 4]


async def test_a_build_that_could_not_be_swapped_in_is_tried_again(
    flows: FakeFlows, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = flows.build()
    flows.commit(old, [topic("old", 1)])
    await views.start()
    await content_at(views, 1)
    new = flows.build(live=False)
    flows.commit(new, [topic("new", 1)])
    flows.commit(new, [topic("new", 2)])
    monkeypatch.setattr(views._composer, "compose", failing_once(views._composer.compose))
    flows.serve("topics", new.epoch)
    content = await content_at(views, 2)
    assert (content.epoch, list(content.rows.values())) == (new.epoch, [("new", 2, "g")])


async def test_the_lag_of_a_view_counts_only_when_it_is_loaded_and_its_flows_run(
    flows: FakeFlows, views: Views
) -> None:
    assert views.absorbed("topics") == ({}, False)  # a new view, whose flow has not begun
    flows.state("topics", "running")
    await views.start()
    await eventually(lambda: views.flow_state("topics").state == "running")
    assert views.absorbed("topics") == ({}, False)  # nothing of it is loaded yet
    stream = flows.build()
    flows.commit(stream, [topic("jazz", 1)], end={"rsvps": ["e1", [7]]})
    await content_at(views, 1)
    frontier, counts = views.absorbed("topics")
    assert (frontier["rsvps"].offsets, counts) == ((7,), True)
    for state in ("starting", "rebuilding", "retrying", "stopped"):
        flows.state("topics", state)
        await eventually(lambda state=state: views.flow_state("topics").state == state)
        assert not views.absorbed("topics")[1], state


async def test_a_view_shows_the_trouble_of_the_hidden_view_that_it_is_made_from(flows: FakeFlows, views: Views) -> None:
    flows.state("topics", "running")
    flows.state("topics.1", "retrying", error={"code": "flow_failed", "message": "one event is bad"})
    await views.start()
    await eventually(lambda: views.flow_state("topics").state == "retrying")
    assert (views.flow_state("topics").error or {})["message"] == "one event is bad"
    flows.state("topics.1", "running")
    await eventually(lambda: views.flow_state("topics").state == "running")


async def test_a_state_of_an_earlier_run_says_nothing_of_now(flows: FakeFlows) -> None:
    flows.commit(flows.build(), [topic("jazz", 1)])
    flows.state("topics", "stopped", error={"code": "flow_failed", "message": "as it was"}, run="before")
    views = Views(small_app().declared(), flows.log, run="now")
    await views.start()
    try:
        await content_at(views, 1)
        state = views.flow_state("topics")
        assert (state.state, state.error) == ("starting", None)
        assert not views.absorbed("topics")[1]
        flows.state("topics", "running", run="now")
        await eventually(lambda: views.flow_state("topics").state == "running")
        assert views.absorbed("topics")[1]
    finally:
        await views.stop()
