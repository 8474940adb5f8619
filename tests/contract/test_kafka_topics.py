"""Topics are made by rule, compared with it at each start, and mended by one command."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import BadLogError
from penstock.log.kafka_topics import TopicFacts, differences, replicas_of, settings_of
from penstock.log.log import StreamSpec
from penstock.log.logs.kafka import parse, place_of
from penstock.log.logs.kafka_cluster import Cluster
from penstock.log.opening import open_log
from penstock.testing.contracts.log_events import SCHEMA, put
from tests.kafka_broker import Broker


def test_a_topic_that_somebody_changed_is_refused_and_mended(kafka: Broker, tmp_path: Path) -> None:
    app = f"topics-{time.time_ns()}"
    place = place_of(kafka.address, app, "edge", tmp_path / "data" / "index" / "edge.db")
    with closing(open_log(place, app=app, clock=SystemClock())) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1])
        assert log.replicated is False
    topic = parse(place).topic("numbers", stream.epoch)
    with closing(Cluster(kafka.address)) as cluster:
        (made,) = cluster.topics([topic])
        assert (made.replicas, made.settings["flush.messages"], made.settings["max.message.bytes"]) == (
            1,
            "1",
            "16777216",
        )
        cluster.set_topic(topic, {"retention.ms": "604800000"})
    with pytest.raises(BadLogError, match=f"'{topic}' has retention.ms=604800000, and retention.ms=-1 is") as told:
        open_log(place, app=app, clock=SystemClock())
    assert told.value.hint == f"penstock kafka mend APP --log kafka://{kafka.address}"
    file = tmp_path / "shop.py"
    file.write_text(f'from penstock import App\napp = App("{app}")\n')
    words = [sys.executable, "-m", "penstock.cli.main", "kafka", "mend", str(file), "--data", str(tmp_path / "data")]
    done = subprocess.run([*words, "--log", f"kafka://{kafka.address}"], capture_output=True, text=True, check=False)
    assert "has retention.ms=-1 now; it had 604800000" in done.stderr, done.stderr
    with closing(open_log(place, app=app, clock=SystemClock())):
        pass


def test_more_replicas_than_brokers_are_refused_by_number(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KAFKA_REPLICATION", "3")
    with closing(Cluster(kafka.address)) as cluster, pytest.raises(BadLogError, match="is 3, and Kafka has 1 brokers"):
        cluster.make_topic(f"never-{time.time_ns()}", 1)


def test_what_is_acknowledged_is_on_two_machines_or_on_a_disk() -> None:
    assert (settings_of(3)["min.insync.replicas"], "flush.messages" in settings_of(3)) == ("2", False)
    assert [(settings_of(n)["min.insync.replicas"], settings_of(n)["flush.messages"]) for n in (1, 2)] == [
        ("1", "1")
    ] * 2
    assert [replicas_of(brokers, {}) for brokers in (1, 2, 3, 5)] == [1, 2, 3, 3]
    assert replicas_of(5, {"PENSTOCK_KAFKA_REPLICATION": "5"}) == 5


def test_a_topic_may_be_safer_than_asked_and_not_less_safe() -> None:
    good = settings_of(3)
    assert TopicFacts("t", 3, good).replicated
    assert list(differences(TopicFacts("t", 3, {**good, "min.insync.replicas": "3"}), {})) == []
    (less,) = differences(TopicFacts("t", 3, {**good, "min.insync.replicas": "1", "flush.messages": "1"}), {})
    assert (less.setting, less.found, less.wanted) == ("min.insync.replicas", "1", "2")
    asked = {"PENSTOCK_KAFKA_REPLICATION": "3"}
    assert [d.setting for d in differences(TopicFacts("t", 1, settings_of(1)), asked)] == ["replicas"]
    assert list(differences(TopicFacts("t", 1, settings_of(1)), {})) == []


@pytest.mark.parametrize("text", ["three", "0", "-1", "1.5"])
def test_a_replication_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadLogError, match="PENSTOCK_KAFKA_REPLICATION is"):
        replicas_of(3, {"PENSTOCK_KAFKA_REPLICATION": text})
