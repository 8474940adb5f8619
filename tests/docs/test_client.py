"""The examples of `docs/how-to/read-from-python.md` and of the client's reference run, and that is complete."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

import penstock.client
from penstock.client import AsyncClient, Client
from penstock.client.async_client import ReadOptions
from penstock.client.subscription import NoticeKind
from penstock.config import Folder
from penstock.log.opening import open_reader
from tests.docs.pages import ROOT, blocks, page, section, table_codes

sys.path.append(str(ROOT / "tests/unit/views"))

from fake_flows import FakeFlows

HOW_TO, REFERENCE = "docs/how-to/read-from-python.md", "docs/reference/client.md"
COUNTRIES = pa.schema([("country", pa.string()), ("orders", pa.int64()), ("turnover", pa.float64())])
DRIVER = """
import json, sys
for name, code in json.load(sys.stdin):
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
"""


class CountingFlow:
    """The README's view, counted in Python instead of Spark, again and again."""

    def __init__(self, data: Path) -> None:
        self._edge = open_reader(Folder(data).edge_log)
        self._flows = FakeFlows(Folder(data).flows_log, app="shop")
        self._view = self._flows.build("countries", COUNTRIES, ("country",))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self._count()

    def _count(self) -> None:
        stream = self._edge.find("orders")
        assert stream is not None
        ends = self._edge.bounds(stream).ends
        orders, turnover = Counter[str](), defaultdict[str, float](float)
        for block in self._edge.read(stream, 0, 0, ends[0]):
            for event in block.batch.to_pylist():
                orders[event["country"]] += 1
                turnover[event["country"]] += event["amount"]
        rows = [{"country": c, "orders": n, "turnover": turnover[c]} for c, n in orders.items()]
        self._flows.commit(self._view, rows, end={"orders": [stream.epoch, list(ends)]})

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._flows.close()
        self._edge.close()


class Orders:
    """Somebody orders, ever again."""

    def __init__(self, url: str) -> None:
        self._url, self._over, self._n = url, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)
        self._order()
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._order()

    def _order(self) -> None:
        fields = [(self._n + i, country) for i, country in enumerate(("NL", "NL", "BE", "NO"))]
        self._n += len(fields)
        orders = [{"order_id": n, "country": c, "amount": 9.5, "at": 1700000000000} for n, c in fields]
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/streams/orders", json.dumps(orders).encode(), head)
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.status == 200

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The README's shop without Spark, with orders coming in."""
    folder = tmp_path_factory.mktemp("reading")
    (block,) = blocks(ROOT / "README.md", "python")
    (folder / "shop.py").write_text(block.code)
    words = ["edge", folder / "shop.py", "--data", folder / "data", "--port", 0, "--parent", os.getpid()]
    with (folder / "log").open("wb") as log, contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *map(str, words)], stderr=log, stdout=log
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        address = folder / "data/run/edge.json"
        deadline = time.monotonic() + 60
        while not address.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        found = f"http://127.0.0.1:{json.loads(address.read_text())['port']}"
        stack.callback(Orders(found).close)
        stack.callback(CountingFlow(folder / "data").close)
        yield found


@pytest.mark.parametrize("name", [HOW_TO, REFERENCE])
def test_the_examples_run(url: str, name: str, tmp_path: Path) -> None:
    codes = [(str(b), b.code.replace("http://localhost:8080", url)) for b in blocks(ROOT / name, "python")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER],
        input=json.dumps(codes),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    if name == HOW_TO:
        assert len(codes) == 8
        assert re.search(r"^NL has \d+ after \d+$", done.stdout, re.M)
        assert "to be continued from" in done.stdout


def test_every_public_name_is_documented() -> None:
    named = set(re.findall(r"`(\w+)`", page(REFERENCE)))
    assert set(penstock.client.__all__) - named == set()


def test_every_option_of_a_client_is_documented_with_its_default() -> None:
    text = section(page(REFERENCE), "Client and AsyncClient")
    parameters = {p.name: p.default for p in inspect.signature(AsyncClient).parameters.values()}
    del parameters["url"]
    assert table_codes(text) == set(parameters) == set(ReadOptions.__annotations__)
    for name, default in parameters.items():
        if default is not None:
            shown = getattr(default, "__name__", str(default))
            assert re.search(rf"^\| `{name}` \| `{re.escape(shown)}` \|", text, re.M), name


def public(kind: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}


def test_every_call_is_documented_with_its_parameters_and_both_faces_have_it() -> None:
    text = section(page(REFERENCE), "Calls")
    inner = {"key_columns", "producing"}
    assert set(public(AsyncClient)) - inner == set(public(Client))
    for name, method in public(Client).items():
        row = next(line for line in text.splitlines() if line.startswith("|") and f"{name}(" in line)
        if name not in ("get_row", "producer"):
            for parameter in list(inspect.signature(method).parameters)[1:]:
                assert parameter in row, (name, parameter)


def test_every_kind_of_notice_is_documented() -> None:
    assert set(get_args(NoticeKind)) <= table_codes(section(page(REFERENCE), "What they give"))
