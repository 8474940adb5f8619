"""A page of another origin says its last words by real beacons and pixels of a real browser, and each is counted."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from tests.e2e.test_page import FLAGS, until

APP = """
from penstock import App, Event

app = App("clicks")


class Click(Event):
    n: int


app.stream("clicks", Click, id="n")
"""
PAGE = """<!doctype html><title>shop</title><script>
const address = new URLSearchParams(location.search).get("to");
addEventListener("pagehide", () => {
  navigator.sendBeacon(address, JSON.stringify({n: 1}));
  navigator.sendBeacon(address, '{"n": 2}\\n{"n": 1}\\n{"n": "no number"}\\n');
});
new Image().src = address.replace("?", "/pixel.gif?n=3&");
</script>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def site(folder: Path) -> Iterator[str]:
    """The page, on a port and so an origin of its own."""
    folder.mkdir()
    (folder / "index.html").write_text(PAGE)
    (folder / "next.html").write_text("<title>next</title>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def penstock(*words: object) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", *map(str, words)]


def key(app: Path, data: Path, scope: str) -> str:
    words = penstock("keys", "create", app, "--data", data, "--scope", scope)
    made = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.search(r"psk_\S+", made)
    assert found is not None, made
    return found[0]


@contextmanager
def edge(app: Path, data: Path, origin: str, log: Path) -> Iterator[int]:
    words = penstock("edge", app, "--data", data, "--port", 0, "--cors", origin)
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            bound = until(lambda: re.search(r"listening on http://127.0.0.1:(\d+)", log.read_text()))
            yield int(bound[1])
        finally:
            process.terminate()
            process.wait()


def totals(port: int, secret: str) -> dict[str, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/status", headers={"Authorization": f"Bearer {secret}"})
    body = json.loads(connection.getresponse().read())
    connection.close()
    found = next(each["totals"] for each in body["streams"] if each["stream"] == "clicks")
    return {name: found[name] for name in ("accepted", "duplicates", "dead")}


@pytest.mark.skipif(shutil.which("chromium") is None, reason="BEACONS ARE NOT TESTED: there is no chromium")
def test_beacons_and_pixels_of_a_browser_are_counted_and_their_key_is_not_logged(tmp_path: Path) -> None:
    app, data, log = tmp_path / "clicks_app.py", tmp_path / "data", tmp_path / "edge.log"
    app.write_text(APP)
    writer, reader = key(app, data, "write:clicks"), key(app, data, "admin")
    with site(tmp_path / "site") as origin, edge(app, data, origin, log) as port:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page()
            page.goto(f"{origin}/?to=http://127.0.0.1:{port}/streams/clicks?key={writer}")
            until(lambda: totals(port, reader)["accepted"] == 1)
            page.goto(f"{origin}/next.html")
            until(lambda: sum(totals(port, reader).values()) == 5)
            browser.close()
        assert totals(port, reader) == {"accepted": 3, "duplicates": 1, "dead": 1}
    assert writer not in log.read_text()
