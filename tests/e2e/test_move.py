"""An app that moves: exported while it runs, imported elsewhere, and its source closed."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks
from tests.running import Running

pytestmark = pytest.mark.long


def penstock(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def post(app: Running, sequence: int, order_id: int) -> int:
    order = {"order_id": order_id, "country": "NL", "amount": 1.0, "at": 1_767_225_600_000 + order_id}
    headers = {"Producer-Id": "till", "Producer-Epoch": "1", "Producer-Seq": str(sequence)}
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(f"{app.url}/streams/orders?ack=applied", json.dumps(order).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return int(reply.status)


def messages(app: Running, position: str) -> list[dict[str, Any]]:
    reply: dict[str, Any] = app.json(f"/views/countries?since={position}&wait=30")
    return list(reply["messages"])


def test_a_subscriber_and_a_producer_go_on_where_the_app_was_moved(tmp_path: Path) -> None:
    file, archive = tmp_path / "shop.py", tmp_path / "shop.tar"
    file.write_text(blocks(ROOT / "README.md", "python")[0].code)
    source, copy = Running(file, tmp_path / "source"), Running(file, tmp_path / "copy")
    source.start()
    try:
        assert [post(source, n, n) for n in range(3)] == [200, 200, 200]
        position = source.json("/views/countries")["position"]
        assert post(source, 3, 3) == 200
        done = penstock("export", file, archive, "--data", source.data, "--close")
        assert done.returncode == 0, done.stderr
        assert source.process is not None
        assert source.process.wait(60) == 0
    finally:
        source.stop()
    refused = penstock("run", file, "--data", source.data, "--port", 0)
    assert refused.returncode == 1
    assert "moved" in refused.stderr
    assert penstock("import", file, archive, "--data", copy.data).returncode == 0
    copy.start()
    try:
        (change,) = messages(copy, position)
        assert (change["type"], change["upserts"][0]["orders"]) == ("changes", 4)
        assert post(copy, 3, 3) == 204
        assert post(copy, 4, 4) == 200
        assert messages(copy, change["position"])[0]["upserts"][0]["orders"] == 5
    finally:
        assert copy.stop() == 0
