"""The graph is the same one, whether drawn as a tree, as Mermaid or given as JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
from penstock import App, Event
app = App("shop")
class Order(Event):
    amount: float
orders = app.stream("orders", Order)
refunds = app.stream("refunds", Order)
app.pull(orders, "ws://example.com/orders")

@app.flow
def large(orders):
    "Orders that matter."
    return orders

@app.view(key="amount")
def totals(large, refunds):
    "What is [left]."
    return large
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.py"
    path.write_text(SHOP)
    return path


def graph(shop: Path, *options: str) -> str:
    command = [sys.executable, "-m", "penstock.cli.main", "graph", str(shop), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_tree_draws_a_shared_node_out_once(shop):
    assert [line.rstrip() for line in graph(shop).splitlines()] == [
        "shop",
        "├── ws://example.com/orders source",
        "│   └── orders stream",
        "│       └── large flow  Orders that matter.",
        "│           └── totals view  What is [left].",
        "└── refunds stream",
        "    └── totals view  (above)",
    ]


def test_mermaid_has_every_node_and_edge(shop):
    drawn = graph(shop, "--mermaid").splitlines()
    assert drawn[0] == "graph LR"
    assert '  n1(["orders"])' in drawn
    assert '  n4[("totals")]' in drawn
    assert sum("-->" in line for line in drawn) == 4


def test_json_is_what_the_server_gives(shop):
    body = json.loads(graph(shop, "--json"))
    assert body["app"] == "shop"
    assert {"from": "large", "to": "totals"} in body["edges"]
    assert [node["kind"] for node in body["nodes"]] == ["source", "stream", "stream", "flow", "view"]
