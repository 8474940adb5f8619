"""The edge process alone: it takes, keeps, ends when asked, and says why when it cannot start."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Folder
from penstock.declaration import Application
from penstock.log.builds import FlowState
from penstock.log.opening import open_reader
from penstock.run.exit_codes import USER_ERROR
from penstock.run.reading_half import Started

SHOP = """
from penstock import App, Event
app = App("shop")
class Order(Event):
    amount: {type}
app.stream("orders", Order)
"""


class Edge:
    def __init__(self, folder: Path, port: int = 0, kind: str = "float", more: str = "") -> None:
        self.folder = folder
        file = folder / "shop_edge.py"
        file.write_text(SHOP.format(type=kind) + more)
        (folder / "data" / "run" / "edge.json").unlink(missing_ok=True)
        words = ["edge", file, "--data", folder / "data", "--port", port, "--parent", os.getpid()]
        command = [sys.executable, "-m", "penstock.cli.main", *map(str, words)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def url(self) -> str:
        address = self.folder / "data" / "run" / "edge.json"
        deadline = time.monotonic() + 60
        while not address.exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return f"http://127.0.0.1:{json.loads(address.read_text())['port']}"

    def call(self, path: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url() + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def error(self) -> dict[str, Any]:
        return json.loads((self.folder / "data" / "run" / "edge.error.json").read_text())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Edge]]:
    edges: list[Edge] = []

    def begin(**options: Any) -> Edge:
        edges.append(Edge(tmp_path, **options))
        return edges[-1]

    yield begin
    for edge in edges:
        edge.process.kill()
        edge.process.communicate()


def test_what_was_acknowledged_is_there_after_sigterm_and_after_sigkill(start):
    for number, end in enumerate((signal.SIGTERM, signal.SIGKILL)):
        edge = start()
        assert edge.call("/streams/orders", [{"amount": number}])["accepted"] == 1
        edge.process.send_signal(end)
        assert edge.process.wait(60) == (0 if end == signal.SIGTERM else -end)
    events = start().call("/streams/orders")["events"]
    assert [event["amount"] for event in events] == [0.0, 1.0]


def test_a_taken_port_is_a_users_error(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        edge = start(port=taken.getsockname()[1])
        assert edge.process.wait(60) == USER_ERROR
    assert edge.error()["code"] == "port_in_use"


def test_a_class_that_no_longer_fits_is_a_users_error(start):
    edge = start()
    edge.call("/streams/orders", {"amount": 1})
    edge.process.terminate()
    edge.process.wait(60)
    edge = start(kind="bool")
    assert edge.process.wait(60) == USER_ERROR
    assert edge.error()["code"] == "incompatible_schema"
    assert "shop_edge.py:6" in edge.error()["message"]


def test_a_second_edge_waits_for_the_first(start):
    first = start()
    first.url()
    second = start()
    time.sleep(1.0)
    assert second.process.poll() is None
    first.process.kill()
    assert second.call("/healthz") == {"status": "ok"}


FLOWS = """
@app.flow
def big(orders): ...
@app.view(key="amount")
def amounts(big): ...
"""


def test_flows_and_views_are_rebuilt_by_command_and_by_request(start):
    edge = start(more=FLOWS)
    command = [sys.executable, "-m", "penstock.cli.main", "rebuild", "--url", edge.url()]
    for name in ("big", "amounts"):
        done = subprocess.run([*command, name], capture_output=True, text=True, check=True)
        assert f"'{name}' is being rebuilt" in done.stderr
    reader = open_reader(Folder(edge.folder / "data").edge_log)
    asked = {name: reader.memory()[f"rebuild/{name}"] for name in ("big", "amounts")}
    assert edge.call("/flows/big/rebuild", {})["rebuild"] > asked["big"]
    assert edge.call("/views/amounts/rebuild", {})["rebuild"] == reader.memory()["rebuild/amounts"] > asked["amounts"]
    reader.close()
    for name in ("orders", "nope"):
        done = subprocess.run([*command, name], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"unknown_view: there is no flow or view '{name}'")
        assert "the app has: big, amounts" in done.stderr


class FakeViews:
    def __init__(self, **states: FlowState) -> None:
        self.states = states

    def flow_state(self, name: str) -> FlowState:
        return self.states.get(name, FlowState(state="starting"))


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def test_ready_needs_every_query_and_then_stays(monkeypatch):
    monkeypatch.setattr(Application, "nodes", [Named("a"), Named("b")])
    views = FakeViews(b=FlowState(state="running"))
    started = Started(Application("shop", "f"), views)  # type: ignore[arg-type]
    assert not started()
    views.states["a"] = FlowState(state="retrying")
    assert started()
    views.states = {}
    assert started()
