"""`penstock demo --log kafka`: every tier and a Kafka broker in one command, through a kill of the broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.run.broker import BrokerNode
from tests.kafka_broker import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"NO BROKER IS TESTED: {why_not()}")
DEADLINE_S = 180.0
MEETUP = Path(__file__).parents[2] / "examples" / "meetup" / "app.py"


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def test_the_demo_runs_on_a_broker_of_its_own_which_is_killed_and_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "penstock.cli.main", "demo", "--log", "kafka", "--data", str(data), "--port", "0"]
    with (tmp_path / "demo.log").open("w") as log:
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert demo.stdout is not None
        url = demo.stdout.readline().removeprefix("ready ").strip()
        assert url, (tmp_path / "demo.log").read_text()
        until(lambda: _absorbed(url) > 50)
        broker = json.loads((data / "run" / "supervisor.json").read_text())["processes"]["kafka"]["pid"]
        os.kill(broker, signal.SIGKILL)
        seen = _absorbed(url)
        until(lambda: _absorbed(url) > seen + 100)
    finally:
        demo.terminate()
        code = demo.wait(60)
        demo.stdout.close()
    assert code == 0, (tmp_path / "demo.log").read_text()
    assert not BrokerNode(data / "kafka").is_running()
    words = ["verify", str(MEETUP), "--log", "kafka", "--data", str(data), "--json"]
    verified = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"MEETUP_FEED": "ws://127.0.0.1:9/2/rsvps"},
    )
    assert verified.returncode in (0, 2), verified.stdout + verified.stderr  # some views cannot be proved
    assert all(json.loads(line)["result"] != "different" for line in verified.stdout.splitlines())
    assert not BrokerNode(data / "kafka").is_running()


def _absorbed(url: str) -> int:
    """Events of the stream that a view's rows are made from, summed up from the rows themselves."""
    with urllib.request.urlopen(f"{url}/views/trending?limit=10000", timeout=60) as reply:
        return sum(row["rsvps"] for row in json.loads(reply.read())["rows"])
