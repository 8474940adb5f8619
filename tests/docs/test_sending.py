"""The examples of `docs/how-to/send.md` run against a real edge, and the producer's reference is complete."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.outbox import Doing
from penstock.client.producer import ProducerOptions, Workings
from tests.built_client import built_client
from tests.docs.pages import ROOT, Block, blocks, page, section, table_codes

SEND = ROOT / "docs/how-to/send.md"
REFERENCE = "docs/reference/producer.md"
SHOP = """
from penstock import App, Event
app = App("shop")
class Order(Event):
    order_id: int
    country: str
    amount: float
    at: int
app.stream("orders", Order, time="at")
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An edge without Spark."""
    folder = tmp_path_factory.mktemp("sending")
    (folder / "shop.py").write_text(SHOP)
    words = ["edge", folder / "shop.py", "--data", folder / "data", "--port", 0, "--parent", os.getpid()]
    with (folder / "log").open("wb") as log, contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *map(str, words)], stderr=log, stdout=log
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        address = folder / "data/run/edge.json"
        deadline = time.monotonic() + 30
        while not address.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{json.loads(address.read_text())['port']}"


def orders(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/streams/orders?limit=10000", timeout=60) as reply:
        events: list[dict[str, Any]] = json.load(reply)["events"]
        return events


def run(command: list[str], block: Block, url: str, cwd: Path) -> str:
    code = block.code.replace("http://localhost:8080", url)
    done = subprocess.run(
        command,
        input=code,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_examples_send_what_they_say(url: str, tmp_path: Path) -> None:
    said = "".join(run([sys.executable, "-W", "error", "-"], block, url, tmp_path) for block in blocks(SEND, "python"))
    assert sorted(event["order_id"] for event in orders(url) if event["order_id"] < 1002) == list(range(1002))
    assert "wrong_type 'order_id'" in said
    assert "unsent_events=0" in said


def test_the_node_example_sends_what_it_says(url: str, tmp_path: Path) -> None:
    (block,) = blocks(SEND, "js")
    placed = Block(block.path, block.line, block.language, block.code.replace("outbox/", f"{tmp_path}/"))
    assert run(["node", "--input-type=module", "-"], placed, url, built_client()).strip()
    assert [event for event in orders(url) if event["order_id"] == 1002]


def test_every_option_of_a_producer_is_documented_with_its_default() -> None:
    text = section(page(REFERENCE), "Options")
    parameters = {
        p.name: p.default for p in inspect.signature(Workings).parameters.values() if p.kind == p.KEYWORD_ONLY
    }
    assert table_codes(text) == set(parameters) == set(ProducerOptions.__annotations__)
    for name, default in parameters.items():
        if default is not None:
            assert re.search(rf"^\| `{name}` \| `{re.escape(str(default))}` \|", text, re.M), name


def test_every_state_of_a_producer_is_documented() -> None:
    assert table_codes(section(page(REFERENCE), "States")) == set(Doing.__args__)
