"""A disk that fills up under a running edge: senders are told, nothing acknowledged is lost, and it recovers alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_edge import Edge

SIZE = "12m"
NOTE = "x" * 40_000
MORE = """
class Note(Event):
    n: int
    text: str
app.stream("notes", Note, id="n")
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def start(disk: Path) -> Iterator[Callable[[], Edge]]:
    edges: list[Edge] = []

    def begin() -> Edge:
        edges.append(Edge(disk, more=MORE))
        return edges[-1]

    yield begin
    for edge in edges:
        edge.process.kill()
        edge.process.communicate()


def ask(edge: Edge, path: str, body: Any = None) -> tuple[int, dict[str, Any], dict[str, str]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(edge.url() + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply), dict(reply.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), dict(error.headers)


def fill(disk: Path) -> Path:
    """Use up all the room that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return filler


def stored(edge: Edge) -> list[int]:
    found, after = [], "start"
    while True:
        _, page, _ = ask(edge, f"/streams/notes?after={after}&select=n")
        if not page["events"]:
            return found
        found += [event["n"] for event in page["events"]]
        after = page["next"]


def test_a_full_disk_is_told_and_survived(disk: Path, start: Callable[[], Edge]) -> None:
    edge = start()
    acknowledged = []
    for n in range(20):
        assert ask(edge, "/streams/notes", {"n": n, "text": NOTE})[0] == 200
        acknowledged.append(n)
    assert ask(edge, "/readyz?for=collect")[0] == 200

    filler = fill(disk)
    refused, number = [], 20
    while len(refused) < 5:
        status, body, headers = ask(edge, "/streams/notes", {"n": number, "text": NOTE})
        if status == 200:
            assert not refused, "what fits into the room that the log has already comes first"
            acknowledged.append(number)
        else:
            assert (status, body["error"]["code"]) == (507, "disk_full")
            assert int(headers["Retry-After"]) >= 1
            assert body["error"]["hint"]
            refused.append(number)
        number += 1
        assert number < 1000
    status, body, headers = ask(edge, "/readyz?for=collect")
    assert (status, body["for"]["collect"], body["errors"]["collect"]["code"]) == (503, False, "disk_full")
    assert "Retry-After" in headers
    assert ask(edge, "/healthz")[0] == 200
    assert stored(edge) == acknowledged, "reading goes on"

    os.truncate(filler, 0)
    deadline = time.monotonic() + 60
    while ask(edge, "/readyz?for=collect")[0] != 200:
        assert time.monotonic() < deadline, "it must find out by itself that there is room"
        time.sleep(0.1)
    for n in refused:
        status, body, _ = ask(edge, "/streams/notes", {"n": n, "text": NOTE})
        assert (status, body["accepted"], body["duplicates"]) == (200, 1, 0)
        acknowledged.append(n)
    assert stored(edge) == acknowledged

    edge.process.send_signal(signal.SIGKILL)
    edge.process.wait(60)
    assert stored(start()) == acknowledged
