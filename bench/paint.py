"""Opens the live page in a real Chromium and notes, inside it, when each probe was on the screen."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable

ARGUMENTS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

_WATCH = """
window.paintedProbes = {};
const seen = new Set();
const look = (records) => {
  const fresh = [];
  for (const record of records) for (const node of record.addedNodes) {
    if (node.nodeType !== 1) continue;
    const cells = node.matches('td[data-column="probe"]') ? [node] : node.querySelectorAll('td[data-column="probe"]');
    for (const cell of cells) {
      const probe = Number(cell.dataset.value);
      if (probe > 0 && !seen.has(probe) && cell.closest('table[data-view="VIEW"]')) { seen.add(probe); fresh.push(probe); }
    }
  }
  // A frame that is asked for inside a frame is the next one: when it begins, the one with the change is painted.
  if (fresh.length) requestAnimationFrame(() => {
    const now = Date.now();
    for (const probe of fresh) window.paintedProbes[probe] = now;
  });
};
new MutationObserver(look).observe(document, {childList: true, subtree: true});
"""  # noqa: E501

Painted = Callable[[], Awaitable[dict[int, int]]]


def chromium() -> str | None:
    return shutil.which("chromium")


@contextlib.asynccontextmanager
async def watching(url: str, view: str) -> AsyncIterator[Painted]:
    """The page, open; gives a function that tells when each probe was painted, in microseconds since 1970."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        try:
            page = await browser.new_page()
            await page.add_init_script(_WATCH.replace("VIEW", view))
            await page.goto(url)
            await page.wait_for_selector(f'table[data-view="{view}"] td[data-column="probe"]')

            async def painted() -> dict[int, int]:
                found = await page.evaluate("() => window.paintedProbes")
                return {int(probe): at_ms * 1000 for probe, at_ms in found.items()}

            yield painted
        finally:
            await browser.close()
