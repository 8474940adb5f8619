"""The graph is the same one, whether drawn as a tree, as Mermaid or given as JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import App, Event
from penstock.cli import reports
from penstock.errors import DeclarationError

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
    assert ("large", "totals") in {(edge["from"], edge["to"]) for edge in body["edges"]}
    assert [node["kind"] for node in body["nodes"]] == ["source", "stream", "stream", "flow", "view"]


def test_edges_say_how_events_are_grouped_and_over_how_many_partitions() -> None:
    app = App("shop")

    class Order(Event):
        order_id: int
        amount: float

    orders = app.stream("orders", Order, key="order_id", partitions=2)
    app.stream("clicks", Order, partitions=3)
    app.stream("notes", Order)
    app.table("prices", Order, key="order_id")
    app.split(orders, big="amount > 100", rest=None)

    @app.view(key="order_id")
    def all_of_it(big, clicks, notes, prices):  # type: ignore[no-untyped-def]
        return big

    edges = {(e["from"], e["to"]): (e["grouping"], e["parallelism"]) for e in app.declared().graph()["edges"]}
    assert edges == {
        ("orders", "big"): ("by key", 2),
        ("orders", "rest"): ("by key", 2),
        ("big", "all_of_it"): ("by key", 2),
        ("clicks", "all_of_it"): ("in turn", 3),
        ("notes", "all_of_it"): ("as one", 1),
        ("prices", "all_of_it"): ("to all", 1),
    }
    drawn = reports.mermaid(app.declared().graph())
    assert '-->|"in turn x 3"|' in drawn
    assert '[["prices"]]' in drawn
    assert reports.tree(app.declared().graph()).children


def test_a_split_names_what_is_there_and_puts_the_rest_last() -> None:
    app = App("shop")
    with pytest.raises(DeclarationError, match="'orders' is no stream or flow"):
        app.split("orders", big="amount > 100")

    class Order(Event):
        amount: float

    app.stream("orders", Order)
    with pytest.raises(DeclarationError, match="gets nothing"):
        app.split("orders", rest=None, big="amount > 100")
