"""A page whose machine sleeps: no network, or no processor either, for a while; what it shows and asks afterwards.

    python -m tests.e2e.sleep --seconds 60              (the network is off)
    python -m tests.e2e.sleep --seconds 60 --frozen     (the browser is stopped too, as when a lid is closed)

The page is the built one, in Chromium; the edge is real, on a changelog that this program writes; between them is a
proxy. When the network goes, what was on its way is lost and neither side is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import BrowserContext, Page, WebSocket, async_playwright

from tests.chaos.proxy import Proxy
from tests.e2e.test_page import FLAGS
from tests.pretended import Pretended
from tests.unit.views.fake_flows import topic

PATIENCE_S = 60.0


@dataclass
class Seen:
    """What went over the sockets of a page, and what it logged."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    sockets: int = 0
    errors: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("websocket", self._socket)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def clear(self) -> None:
        self.asked.clear()
        self.told.clear()

    def subscribed(self, view: str = "topics") -> list[dict[str, Any]]:
        return [said for said in self.asked if said["type"] == "subscribe" and said["view"] == view]

    def _socket(self, socket: WebSocket) -> None:
        self.sockets += 1
        socket.on("framesent", lambda data: self.asked.append(json.loads(data)))
        socket.on("framereceived", lambda data: self.told.append(json.loads(data)))


class Browsing:
    """A browser at a real edge behind a proxy."""

    def __init__(self, edge: Pretended, proxy: Proxy, context: BrowserContext, pid: int) -> None:
        self.edge, self.proxy, self.context, self._pid = edge, proxy, context, pid
        self.rows: dict[str, int] = {}

    def commit(self, **rows: int) -> None:
        self.rows |= rows
        self.edge.commit([topic(name, rsvps) for name, rsvps in rows.items()])

    async def open(self, seen: Seen) -> Page:
        page = await self.context.new_page()
        seen.watch(page)
        await page.goto(f"{self.proxy.url}/")
        return page

    async def level(self, page: Page, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the page shows the present rows."""
        await until(lambda: shown(page), lambda rows: rows == self.rows, timeout_s)

    async def connected(self, page: Page) -> None:
        await page.wait_for_selector('[data-connection="connected"]', timeout=PATIENCE_S * 1000)

    async def sleep(self, seconds: float, *, frozen: bool) -> None:
        """The network is gone without a word; a frozen browser does not even see time pass."""
        self.proxy.begin("half_open")
        if frozen:
            for pid in self._processes():
                os.kill(pid, signal.SIGSTOP)
        else:
            await self.context.set_offline(True)
        await asyncio.sleep(seconds)
        self.proxy.end()
        if frozen:
            for pid in self._processes():
                os.kill(pid, signal.SIGCONT)
        else:
            await self.context.set_offline(False)

    def _processes(self) -> list[int]:
        return [self._pid, *_family(self._pid)]


@asynccontextmanager
async def browsing(folder: Path, **kept: Any) -> AsyncIterator[Browsing]:
    edge = Pretended(folder)
    for view, key in (("topics", ("topic",)), ("countries", ("topic",)), ("elsewhere", ("topic", "group"))):
        edge.build(view, key=key)
    await asyncio.to_thread(edge.start)
    try:
        async with Proxy(edge.port) as proxy, async_playwright() as play:
            before = {*_family(os.getpid())}
            browser = await play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            pid = next(
                pid
                for pid in _family(os.getpid())
                if pid not in before and _parent(pid) not in {*_family(os.getpid())} - before
            )
            context = await browser.new_context(viewport={"width": 1280, "height": 900}, **kept)
            yield Browsing(edge, proxy, context, pid)
            await browser.close()
    finally:
        edge.close()


async def shown(page: Page, view: str = "topics") -> dict[str, int]:
    """The rows of a table on the page."""
    script = """(view) => Object.fromEntries([...document.querySelectorAll(`tr[data-view="${view}"]`)].map((row) =>
        ["topic", "rsvps"].map((name) => JSON.parse(row.querySelector(`td[data-column="${name}"]`).dataset.value))))"""
    found: dict[str, int] = await page.evaluate(script, view)
    return found


async def until(ask: Callable[[], Any], holds: Callable[[Any], bool], timeout_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while not holds(found := await ask()):
        assert time.monotonic() < deadline, f"it never held: {found}"
        await asyncio.sleep(0.05)
    return found


def _family(pid: int) -> Iterator[int]:
    """The processes below one, it not included."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from _family(int(child))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def sleeping(folder: Path, seconds: float, *, frozen: bool) -> dict[str, Any]:
    """Open the page, let the machine sleep while rows change, and see the page catch up by itself."""
    async with browsing(folder) as at:
        seen = Seen()
        at.commit(jazz=1, go=2)
        page = await at.open(seen)
        await at.connected(page)
        await at.level(page)
        await page.evaluate("window.sameAsBefore = true")
        seen.clear()
        sockets = seen.sockets
        asleep = asyncio.create_task(at.sleep(seconds, frozen=frozen))
        await asyncio.sleep(seconds / 2)
        at.commit(jazz=5, chess=7)
        await asleep
        woken = time.monotonic()
        await at.level(page)
        took_s = time.monotonic() - woken
        at.commit(go=9)
        await at.level(page)
        await at.connected(page)
        return {
            "seconds": seconds,
            "frozen": frozen,
            "level_after_s": round(took_s, 2),
            "same_page": await page.evaluate("window.sameAsBefore === true"),
            "sockets": seen.sockets - sockets,
            "since": [said["since"] for said in seen.subscribed()],
            "snapshots": [said for said in seen.told if said["type"] == "snapshot"],
            "errors": seen.errors,
        }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--frozen", action="store_true")
    options = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="penstock-sleep-"))
    print(json.dumps(asyncio.run(sleeping(folder, options.seconds, frozen=options.frozen)), indent=2))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
