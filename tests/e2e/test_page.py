"""The demo in a real browser: the same number as the server, across a kill of the edge, without an error."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import ConsoleMessage, Page, sync_playwright

from tests.running import Running

EXAMPLE = Path(__file__).parents[2] / "examples" / "meetup"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture
def feed() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "server.py"), "--port", "0", "--rate", "50"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().split()[1]
    process.kill()
    process.wait()
    process.stdout.close()


def until(holds: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.1)
    return found


def top_on_page(page: Page) -> tuple[str, int] | None:
    row = page.query_selector('table[data-view="topics"] tbody tr')
    if row is None:
        return None
    cells = {
        cell.get_attribute("data-column"): cell.get_attribute("data-value") for cell in row.query_selector_all("td")
    }
    return json.loads(cells["topic"] or ""), json.loads(cells["rsvps"] or "")


def test_the_page_shows_what_the_server_says_and_survives_its_edge(
    tmp_path: Path, feed: tuple[subprocess.Popen[str], str]
) -> None:
    app = Running(EXAMPLE / "app.py", tmp_path / "data", {"MEETUP_FEED": feed[1]})
    app.start()
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            errors: list[str] = []
            page.on("console", lambda m: errors.append(m.text) if _is_error(m) else None)
            page.on("pageerror", lambda e: errors.append(str(e)))
            page.goto(app.url)
            first = until(lambda: top_on_page(page))
            until(lambda: top_on_page(page) != first)  # it moves
            assert errors == []
            os.kill(app.pid("edge") or 0, signal.SIGKILL)
            until(lambda: page.get_attribute("[data-connection]", "data-connection") != "connected")
            until(lambda: page.get_attribute("[data-connection]", "data-connection") == "connected")
            errors.clear()
            feed[0].kill()
            until(lambda: _same(page, app))
            moved = top_on_page(page)
            assert moved is not None
            assert moved[1] >= first[1]
            assert errors == []
            browser.close()
    finally:
        assert app.stop() == 0


def _is_error(message: ConsoleMessage) -> bool:
    return message.type == "error"


def _same(page: Page, app: Running) -> bool:
    row = app.json("/views/topics?limit=1")["rows"][0]
    return top_on_page(page) == (row["topic"], row["rsvps"])
