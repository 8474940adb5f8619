"""An app moves from the embedded log to Kafka, and neither its readers, its senders nor its flows notice."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.kafka_broker import why_not
from tests.running import Running

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"NO BROKER IS TESTED: {why_not()}")
APP = '''
from penstock import App, Event
from pyspark.sql import DataFrame, functions as F

app = App("shop")

class Order(Event):
    order_id: int
    country: str
    at: int

orders = app.stream("orders", Order, key="order_id", id="order_id", time="at", late_after="10 minutes")

@app.view(key="country")
def countries(orders: DataFrame) -> DataFrame:
    """Orders by country."""
    return orders.groupBy("country").agg(F.count("*").alias("orders"))
'''


def send(app: Running, sequence: int) -> int:
    """One order as a producer sends it; waits until the view has it. Gives the status: 204 if it was known."""
    order = {"order_id": sequence, "country": "NL", "at": 1_700_000_000_000 + sequence}
    headers = {"Producer-Id": "till", "Producer-Epoch": "1", "Producer-Seq": str(sequence)}
    url = f"{app.url}/streams/orders?ack=applied&wait=60"
    request = urllib.request.Request(
        url, json.dumps(order).encode(), headers | {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return reply.status


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def builds(data: Path) -> set[str]:
    return {str(path.relative_to(data)) for path in (data / "checkpoints").glob("*/*")}


def test_a_reader_a_producer_and_a_flow_go_on_behind_the_move(tmp_path: Path) -> None:
    file, data = tmp_path / "shop.py", tmp_path / "data"
    file.write_text(APP)
    app = Running(file, data)
    app.start()
    try:
        assert [send(app, n) for n in range(3)] == [200, 200, 200]
        position = app.json("/views/countries")["position"]
        assert send(app, 3) == 200
    finally:
        assert app.stop() == 0
    before = builds(data)
    copied = penstock("log", "copy", str(file), "--to", "kafka", "--data", str(data))
    assert copied.returncode == 0, copied.stderr
    refused = penstock("keys", "list", str(file), "--data", str(data))
    assert "belongs to a log on Kafka" in refused.stderr
    moved = Running(file, data, {"PENSTOCK_LOG": "kafka"})
    moved.start()
    try:
        told = moved.json(f"/views/countries?since={position}&wait=30")["messages"]
        assert [(one["type"], one["upserts"]) for one in told] == [("changes", [{"country": "NL", "orders": 4}])]
        assert (send(moved, 3), send(moved, 4)) == (204, 200)
        assert moved.json("/views/countries")["rows"] == [{"country": "NL", "orders": 5}]
    finally:
        assert moved.stop() == 0
    assert builds(data) == before  # nothing was built anew
    verified = penstock("verify", str(file), "--data", str(data), "--log", "kafka", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    again = penstock("log", "copy", str(file), "--to", "kafka", "--data", str(data))
    assert again.returncode == 0, again.stderr
