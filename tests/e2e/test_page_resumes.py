"""The page in a real Chromium goes on where it was: after a reload, in a new tab, and when its machine has slept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.sleep import Seen, browsing, shown, sleeping, until

NO_SOCKET = "window.WebSocket = class { close() {} send() {} };"
"""A socket that never opens: whatever is on the page then was known before."""


def test_a_reloaded_page_continues_from_its_stored_position(tmp_path: Path) -> None:
    asyncio.run(_reloaded(tmp_path))


async def _reloaded(folder: Path) -> None:
    async with browsing(folder) as at:
        seen = Seen()
        at.commit(jazz=1, go=2)
        page = await at.open(seen)
        await at.connected(page)
        await at.level(page)
        assert [said["since"] for said in seen.subscribed()] == [None]
        seen.clear()
        at.commit(jazz=3)
        await at.level(page)
        await page.reload()
        await at.connected(page)
        await at.level(page)
        await until(lambda: _later(seen.subscribed()), lambda asked: len(asked) > 0)
        assert all(said["since"] for said in seen.subscribed())
        at.commit(chess=4)
        await at.level(page)
        assert [said["type"] for said in seen.told if said.get("view") == "topics"][-1] == "changes"
        assert [said for said in seen.told if said["type"] in ("snapshot", "reset")] == []
        assert seen.errors == []


async def _later(found: object) -> object:
    return found


def test_a_page_that_is_opened_again_begins_with_what_it_knew(tmp_path: Path) -> None:
    asyncio.run(_opened_again(tmp_path))


async def _opened_again(folder: Path) -> None:
    async with browsing(folder) as at:
        at.commit(jazz=1, go=2)
        first = await at.open(Seen())
        await at.connected(first)
        await at.level(first)
        await first.close()
        known = dict(at.rows)
        at.commit(jazz=9)
        await at.context.add_init_script(NO_SOCKET)
        again = await at.context.new_page()
        await again.goto(f"{at.proxy.url}/")
        assert await until(lambda: shown(again), bool) == known
        assert await again.get_attribute("[data-connection]", "data-connection") == "connecting"


def test_a_page_with_a_key_keeps_what_it_knew_as_long_as_its_tab(tmp_path: Path) -> None:
    asyncio.run(_with_a_key(tmp_path))


async def _with_a_key(folder: Path) -> None:
    async with browsing(folder) as at:
        seen = Seen()
        at.commit(jazz=1, go=2)
        key = await asyncio.to_thread(at.edge.key, "--scope", "read:*")
        page = await at.open(seen)
        await until(lambda: page.text_content("[data-connection]"), lambda text: "wants a key" in (text or ""))
        await page.evaluate("(key) => { location.hash = `key=${key}` }", key)
        await at.connected(page)
        await at.level(page)
        assert key not in page.url
        seen.clear()
        await page.reload()
        await at.connected(page)
        await at.level(page)
        assert [said["since"] is not None for said in seen.subscribed()] == [True]
        lasting = await page.evaluate("async () => [localStorage.length, (await indexedDB.databases()).length]")
        assert lasting == [0, 0]
        assert seen.errors == []


@pytest.mark.parametrize(("seconds", "frozen"), [(3.0, False), (12.0, True)])
def test_a_page_whose_machine_slept_catches_up_without_a_reload(tmp_path: Path, seconds: float, frozen: bool) -> None:
    found = asyncio.run(sleeping(tmp_path, seconds, frozen=frozen))
    assert found["same_page"]
    assert found["sockets"] >= 1
    assert found["since"]
    assert all(found["since"])
    assert found["snapshots"] == []
    assert found["errors"] == []
