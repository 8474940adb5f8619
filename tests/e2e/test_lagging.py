"""A flow that is slowed down, by its function and by SIGSTOP: senders are told to wait, a pull pauses, all recovers."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.running import Running

APP = """
import time
from penstock import App, Event
from pyspark.sql import DataFrame, functions as F

app = App("slow")

class Step(Event):
    n: int

steps = app.stream("steps", Step, id="n")
app.pull(steps, "file://PULLED")

@F.udf("int")
def slowly(n):
    time.sleep(0.02)
    return n % 3

@app.view(key="g", max_lag=100, deterministic=True)
def groups(steps: DataFrame) -> DataFrame:
    return steps.groupBy(slowly("n").alias("g")).agg(F.count("*").alias("c"))
"""


def post(app: Running, numbers: range) -> tuple[int, dict[str, Any], str | None]:
    """The status, the body, and when to come again."""
    body = json.dumps([{"n": n} for n in numbers]).encode()
    asked = urllib.request.Request(f"{app.url}/streams/steps", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.status, json.loads(reply.read()), None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), error.headers["Retry-After"]


def until(holds: Callable[[], Any], timeout_s: float = 90.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def counted(app: Running) -> int:
    return sum(row["c"] for row in app.json("/views/groups?limit=null")["rows"])


def test_senders_wait_and_pulls_pause_while_a_view_lags_and_all_of_it_recovers(tmp_path: Path) -> None:
    pulled = tmp_path / "steps.ndjson"
    pulled.touch()
    path = tmp_path / "slow.py"
    path.write_text(APP.replace("PULLED", str(pulled)))
    app = Running(path, tmp_path / "data")
    app.start()
    try:
        assert post(app, range(10))[0] == 200
        until(lambda: counted(app) == 10)
        sent = 10 + flood(app, 10, pulled)
        pid = app.pid("flows")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # the supervisor takes it for hung and starts another one
        sent += flood(app, sent, pulled)
        assert app.pid("flows") != pid
    finally:
        assert app.stop() == 0


def flood(app: Running, start: int, pulled: Path) -> int:
    """Send until told to wait, see who is named, and wait until it is over and everything has arrived."""
    sent = 0

    def refused() -> tuple[int, dict[str, Any], str | None] | None:
        nonlocal sent
        reply = post(app, range(start + sent, start + sent + 50))
        if reply[0] == 200:
            sent += 50
            return None
        return reply

    status, body, retry = until(refused)
    assert (status, body["error"]["code"]) == (503, "lagging")
    assert "groups" in body["error"]["message"]
    assert retry is not None
    assert 1 <= int(retry) <= 60
    told = app.json("/status")
    assert told["pressure"]["state"] in ("limiting", "lagging", "thrashing")
    assert "groups" in json.dumps(told["pressure"]["because"])
    with pulled.open("a") as file:
        file.write("".join(f'{{"n": {-n}}}\n' for n in range(start + 1, start + 21)))
    until(lambda: any(pull["state"] == "paused" for pull in app.json("/status")["pulls"]), 20)
    until(lambda: counted(app) == start + sent + 20)
    until(lambda: app.json("/status")["pressure"]["state"] == "ok", 30)
    return sent + 20
