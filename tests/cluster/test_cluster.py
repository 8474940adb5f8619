"""An app on Kafka and on a Spark cluster: a master and a worker that are processes of their own.

Run by `make test-cluster`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import kafka_broker
from tests.loopback_cluster import LoopbackCluster, asked, free_port, until

APP = Path(__file__).with_name("app.py")
pytestmark = pytest.mark.skipif(kafka_broker.why_not() is not None, reason=str(kafka_broker.why_not()))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    made = LoopbackCluster(tmp_path_factory.mktemp("cluster"), brokers=1, workers=1)
    try:
        made.start()
        yield made
    finally:
        made.close()


def _post(url: str, events: list[dict[str, Any]]) -> None:
    request = urllib.request.Request(
        f"{url}/streams/words", json.dumps(events).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200


def _rows(url: str, view: str) -> list[dict[str, Any]]:
    rows: Any = asked(url, f"/views/{view}").get("rows", [])
    return list(rows)


def test_views_are_computed_by_executors_and_go_on_when_one_is_killed(cluster: LoopbackCluster) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    edge, flows = cluster.edge(APP, port).start(), cluster.flows(APP).start()
    until(lambda: bool(asked(url, "/healthz")), edge)
    _post(url, [{"word": word, "n": n} for n, word in enumerate(["a", "b", "a"])])
    until(lambda: len(_rows(url, "counts")) == 2, edge, flows)
    assert {(row["word"], row["c"], row["s"]) for row in _rows(url, "counts")} == {("A", 2, 2), ("B", 1, 1)}
    until(lambda: {(row["c"], row["words"]) for row in _rows(url, "ranks")} == {(1, 1), (2, 1)}, edge, flows)
    (worker,) = cluster.workers
    executors = worker.children("CoarseGrainedExecutorBackend")
    assert executors, "Spark computes elsewhere"
    for pid in executors:
        os.kill(pid, signal.SIGKILL)
    _post(url, [{"word": "b", "n": 3}, {"word": "c", "n": 4}])
    until(lambda: len(_rows(url, "counts")) == 3, edge, flows)
    assert {(row["word"], row["c"], row["s"]) for row in _rows(url, "counts")} == {
        ("A", 2, 2),
        ("B", 2, 4),
        ("C", 1, 4),
    }
    proved = cluster.verify(APP)
    assert proved.returncode == 0, proved.stdout + proved.stderr
    flows.stop()


def test_a_worker_without_the_packages_is_named_in_one_paragraph(cluster: LoopbackCluster, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    flows = cluster.flows(APP, "bare", PYSPARK_PYTHON=python, PYTHONPATH="").start()
    until(lambda: not flows.runs)
    said = flows.said()
    assert "unfit_worker: the worker" in said
    assert "No module named" in said
    assert "pip install" in said
    assert "Traceback" not in said
