"""What is wrong with a Kafka, or with what is known of it, is told in one paragraph and not believed blindly."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.config import Folder
from penstock.log.log import StreamSpec
from penstock.log.logs.kafka import parse, place_of
from penstock.log.opening import open_log, open_reader
from penstock.run.broker import free_port
from penstock.run.ownership import check_folder
from penstock.testing.contracts.log_events import SCHEMA, everything, put
from tests.kafka_broker import Broker

DEADLINE_S = 120.0


@pytest.fixture
def place(kafka: Broker, tmp_path: Path) -> str:
    """Of a log with three commits, which nobody has open."""
    app = f"faults-{time.time_ns()}"
    where = place_of(kafka.address, app, "edge", tmp_path / "index" / "edge.db")
    with closing(open_log(where, app=app, clock=SystemClock())) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        for n in range(3):
            put(log, stream, [n])
    return where


def change(place: str, key: str, value: str) -> None:
    """What an index notes of itself."""
    with closing(sqlite3.connect(parse(place).index)) as index, index:
        index.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))


def noted(place: str, key: str) -> str:
    with closing(sqlite3.connect(parse(place).index)) as index:
        return str(index.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchall()[0][0])


def numbers(place: str) -> list[int]:
    with closing(open_reader(place)) as reader:
        stream = reader.find("numbers")
        assert stream is not None
        return everything(reader, stream)


def test_an_address_that_nobody_listens_on_is_one_paragraph_in_time(tmp_path: Path) -> None:
    file, address = tmp_path / "shop.py", f"127.0.0.1:{free_port()}"
    file.write_text('from penstock import App\napp = App("shop")\n')
    began = time.monotonic()
    words = ["run", str(file), "--log", f"kafka://{address}", "--port", "0"]
    command = [sys.executable, "-m", "penstock.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("log_unavailable: Kafka cannot be asked now"), done.stderr
    assert address in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < DEADLINE_S
    assert not (tmp_path / ".penstock").exists()


def test_a_later_start_waits_for_kafka_and_says_so(kafka: Broker, place: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path, f"kafka://{kafka.address}/{parse(place).app}")
    said: list[str] = []
    start = threading.Thread(target=check_folder, args=(folder, parse(place).app), kwargs={"tell": said.append})
    kafka.pause()
    try:
        start.start()
        deadline = time.monotonic() + DEADLINE_S
        while not said:
            assert time.monotonic() < deadline, "nothing was said"
            time.sleep(0.05)
        assert start.is_alive()
    finally:
        kafka.resume()
    start.join(DEADLINE_S)
    assert not start.is_alive()
    assert len(said) == 1
    assert said[0].startswith("waiting for the log")


def test_an_index_of_another_cluster_is_made_anew(place: str) -> None:
    mine = noted(place, "cluster")
    change(place, "cluster", "somebody-elses")
    assert numbers(place) == [0, 1, 2]
    assert noted(place, "cluster") == mine
    assert parse(place).index.with_name("edge.db.aside").exists()


def test_commits_that_kafka_has_lost_are_named_aloud(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The index knows more than the journal has."""
    state = json.loads(noted(place, "journal"))
    change(place, "journal", json.dumps(state | {"offset": state["offset"] + 1000}))
    assert numbers(place) == [0, 1, 2]
    (lost,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "KAFKA HAS LOST WHAT IT ACKNOWLEDGED" in lost.getMessage()
    assert "3 commits of 'numbers'" in lost.getMessage()
    assert parse(place).index.with_name("edge.db.aside").exists()
