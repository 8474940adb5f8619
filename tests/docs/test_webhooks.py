"""The receiver of `docs/how-to/webhooks.md` runs, and a real edge calls it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/webhooks.md"
SHOP = """
from penstock import App, Event
app = App("shop")
class Order(Event):
    order_id: int
    country: str
app.stream("orders", Order)
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "shop.py").write_text(SHOP)
    words = ["edge", tmp_path / "shop.py", "--data", tmp_path / "data", "--port", 0, "--parent", os.getpid()]
    with (tmp_path / "log").open("wb") as log, ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *map(str, words)], stderr=log, stdout=log
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        address = tmp_path / "data/run/edge.json"
        deadline = time.monotonic() + 30
        while not address.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{json.loads(address.read_text())['port']}"


def ask(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_receiver_of_the_page_takes_what_the_edge_sends_and_refuses_others(url: str, tmp_path: Path) -> None:
    (block,) = [block for block in blocks(PAGE, "python") if "do_POST" in block.code]
    (tmp_path / "receiver.py").write_text(block.code)
    port = free_port()
    made = ask(f"{url}/webhooks", {"url": f"http://127.0.0.1:{port}/hook", "stream": "orders", "where": "order_id > 1"})
    environment = os.environ | {"WEBHOOK_SECRET": made["secret"], "PORT": str(port)}
    with ExitStack() as stack:
        command = [sys.executable, "-W", "error", str(tmp_path / "receiver.py")]
        process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        assert process.stdout is not None
        deadline = time.monotonic() + 30
        while not (said := ask(f"{url}/webhooks/{made['id']}/test", {}))["delivered"]:
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        assert json.loads(process.stdout.readline())["type"] == "test"
        for number in range(1, 4):
            ask(f"{url}/streams/orders", {"order_id": number, "country": "nl"})
        heard = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(message["type"], message["event"]["order_id"]) for message in heard] == [("event", 2), ("event", 3)]
        forged = urllib.request.Request(f"http://127.0.0.1:{port}/hook", b"{}", {"webhook-id": "msg_1"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(forged, timeout=60)
        refused.value.close()
        assert refused.value.code == 401
