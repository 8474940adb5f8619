"""What a new user does: write a file, run it, post an event, see it, edit the file, start again, and it is right."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp

from tests.running import Running

FIRST = '''
from penstock import App, Event
from pyspark.sql import DataFrame, functions as F

app = App("shop")

class Order(Event):
    order_id: int
    country: str
    amount: float
    at: int

orders = app.stream("orders", Order, key="order_id", id="order_id", time="at", late_after="10 minutes")

@F.udf("double")
def priced(amount):
    return amount * 1.0

@app.flow
def large(orders: DataFrame) -> DataFrame:
    return orders.where("amount > 10").select("_time", "country", "amount")

@app.view(key="country", order_by="-orders", limit=10)
def countries(large: DataFrame) -> DataFrame:
    """Large orders by country."""
    return large.groupBy("country").agg(F.count("*").alias("orders"))

@app.view(key="country", name="turnover")
def turnover(orders: DataFrame) -> DataFrame:
    return orders.groupBy("country").agg(F.sum(priced("amount")).alias("turnover"))
'''
SECOND = (
    FIRST.replace("amount * 1.0", "amount * 2.0")
    .replace("    at: int\n", '    at: int\n    channel: str = "web"\n')
    .replace("amount > 10", "amount > 1")
    .replace(
        '.agg(F.count("*").alias("orders"))', '.agg(F.count("*").alias("orders"), F.max("amount").alias("largest"))'
    )
    .replace('name="turnover"', 'name="sales"')
)


def order(number: int, country: str, amount: float) -> dict[str, Any]:
    return {"order_id": number, "country": country, "amount": amount, "at": 1_700_000_000_000 + number}


def test_an_app_is_written_run_edited_and_right_again(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(FIRST)
    app = Running(file, tmp_path / "data")
    app.start()
    try:
        position = _first_run(app)
    finally:
        assert app.stop() == 0
    file.write_text(SECOND)
    app.start()
    try:
        _second_run(app, position)
    finally:
        assert app.stop() == 0
    verified = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "verify", str(file), "--data", str(app.data), "--json"],
        capture_output=True,
        text=True,
    )
    results = {r["name"]: r["result"] for r in map(json.loads, verified.stdout.splitlines())}
    assert results == {"large": "equal", "countries": "equal", "sales": "unverifiable"}, verified.stdout
    assert verified.returncode == 2
    assert verified.stderr == ""  # nothing of what Spark says of itself, though the file uses it at import


def _first_run(app: Running) -> str:
    taken = app.json("/streams/orders", [order(1, "NL", 20), order(2, "NL", 5), order(3, "DE", 30), {"order_id": "x"}])
    assert (taken["accepted"], taken["duplicates"], len(taken["rejected"])) == (3, 0, 1)
    again = app.json("/streams/orders", order(1, "NL", 20))
    assert (again["accepted"], again["duplicates"]) == (0, 1)
    read = app.json(f"/views/countries?after={taken['ack']}&wait=60")
    assert {row["country"]: row["orders"] for row in read["rows"]} == {"NL": 1, "DE": 1}
    small = app.json("/streams/orders", order(4, "FR", 2))  # filtered out by the first flow of the chain
    after = app.json(f"/views/countries?after={small['ack']}&wait=60")
    assert "error" not in after
    assert {row["country"] for row in after["rows"]} == {"NL", "DE"}
    turnover = app.json(f"/views/turnover?after={small['ack']}&wait=60")
    assert {row["country"]: row["turnover"] for row in turnover["rows"]} == {"NL": 25.0, "DE": 30.0, "FR": 2.0}
    (letter,) = app.json("/streams/dead")["events"]
    assert letter["reason"] == "wrong_type"
    assert app.json("/views/countries?where=nonsense(")["error"]["code"] == "bad_query"
    assert app.json("/views/countries?limit=-1")["error"]["code"] == "bad_query"
    assert app.json("/streams/nothing", {})["error"]["code"] == "unknown_stream"
    position: str = after["position"]
    return position


def _second_run(app: Running, position: str) -> None:
    messages = asyncio.run(_until_reset(app, position))
    assert [m["type"] for m in messages[-2:]] == ["reset", "snapshot"]
    rows = {row["country"]: (row["orders"], row["largest"]) for row in messages[-1]["rows"]}
    assert rows == {"NL": (2, 20.0), "DE": (1, 30.0), "FR": (1, 2.0)}
    sales = app.json("/streams/orders", order(5, "NL", 1) | {"channel": "shop"})
    read = app.json(f"/views/sales?after={sales['ack']}&wait=60")
    assert {row["country"]: row["turnover"] for row in read["rows"]} == {"NL": 52.0, "DE": 60.0, "FR": 4.0}
    assert app.json("/views/turnover")["error"]["code"] == "unknown_view"
    events = app.json("/streams/orders")["events"]
    assert [e["channel"] for e in events] == ["web"] * 4 + ["shop"]


async def _until_reset(app: Running, position: str) -> list[dict[str, Any]]:
    """Resume from before the edit: the old rows are served until the view is rebuilt, then comes `reset`."""
    seen: list[dict[str, Any]] = []
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{app.url}/socket") as socket:
        await socket.send_json({"type": "subscribe", "id": "a", "view": "countries", "since": position})
        await socket.send_json({"type": "subscribe", "id": "b", "view": "turnover", "since": None})
        async with asyncio.timeout(60):
            async for message in socket:
                told = json.loads(message.data)
                if told["id"] == "b":
                    assert told["type"] == "error"
                    assert told["error"]["code"] == "unknown_view"
                    continue
                seen.append(told)
                if told["type"] == "snapshot" and "largest" in json.dumps(told):
                    return seen
    raise AssertionError(f"no reset: {seen}")
