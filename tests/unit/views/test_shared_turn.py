"""What one commit has changed in two views is seen in both, or in none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_flows import FakeFlows, small_app, topic

from penstock.errors import CorruptBlockError
from penstock.views import shared_turn
from penstock.views import views as views_module
from penstock.views.changelog import Changelog
from penstock.views.store import View
from penstock.views.views import Views
from tests.memory_folder import memory_folder

ROUNDS = 40


@pytest.fixture
async def flows(tmp_path: Path) -> AsyncIterator[FakeFlows]:
    made = FakeFlows(memory_folder(tmp_path).flows_log)
    made.build("topics")
    made.build("elsewhere", key=("topic", "group"))
    yield made
    made.close()


@pytest.fixture
async def views(flows: FakeFlows) -> AsyncIterator[Views]:
    made = Views(small_app().declared(), flows.log)
    await made.start()
    for name in ("topics", "elsewhere"):
        await made.view(name).loaded(60)
    yield made
    await made.stop()


def moved(flows: FakeFlows, number: int) -> None:
    """What one view gains, the other loses."""
    flows.step({"topics": [topic("a", number)], "elsewhere": [topic("a", -number)]})


def total(view: View) -> int:
    assert view.content is not None
    return sum(row[1] for row in view.content.rows.values())


async def until(view: View, offset: int) -> None:
    assert await view.until(lambda: view.content is not None and view.content.offset >= offset, 60)


async def test_a_sum_over_two_views_is_the_same_in_every_turn_and_for_whoever_is_woken(
    flows: FakeFlows, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = views.view("topics"), views.view("elsewhere")
    sums: list[int] = []
    read = Changelog.more

    def slowly(self: Changelog, offset: int) -> Any:
        if self.stream.name == "topics":
            time.sleep(0.002)  # so that the two are not read alike
        return read(self, offset)

    monkeypatch.setattr(Changelog, "more", slowly)
    for view in (one, other):
        view.listen(lambda: sums.append(total(one) + total(other)))

    async def look() -> None:
        while True:
            sums.append(total(one) + total(other))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    for number in range(1, ROUNDS + 1):
        await asyncio.to_thread(moved, flows, number)
    await until(one, ROUNDS)
    await until(other, ROUNDS)
    looking.cancel()
    assert set(sums) == {0}


async def test_a_view_that_cannot_be_read_is_not_waited_for(
    flows: FakeFlows, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_turn, "PATIENCE_S", 60.0)
    monkeypatch.setattr(views_module, "RETRY_S", 0.02)
    read, broken = Changelog.more, True

    def failing(self: Changelog, offset: int) -> Any:
        if broken and self.stream.name == "elsewhere":
            raise CorruptBlockError("it cannot be read")
        return read(self, offset)

    monkeypatch.setattr(Changelog, "more", failing)
    for number in range(1, 4):
        await asyncio.to_thread(moved, flows, number)
    await until(views.view("topics"), 3)
    content = views.view("elsewhere").content
    assert content is not None
    assert content.offset < 3
    broken = False
    await until(views.view("elsewhere"), 3)
    assert total(views.view("elsewhere")) == -3


async def test_nobody_waits_for_long(flows: FakeFlows, views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_turn, "PATIENCE_S", 0.05)
    held = asyncio.Event()
    advance = views._advance

    async def held_up(view: View) -> None:
        if view.name == "elsewhere":
            await held.wait()
        await advance(view)

    monkeypatch.setattr(views, "_advance", held_up)
    await asyncio.to_thread(moved, flows, 1)
    await until(views.view("topics"), 1)
    held.set()
    await until(views.view("elsewhere"), 1)
