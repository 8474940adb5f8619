"""The jars of a broker are those that the package names, or there is none; a broker lives as long as who started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import BrokerError
from penstock.run import broker_jars
from penstock.run.broker import BrokerNode, answers, free_port
from tests.kafka_broker import why_not

needs_jars = pytest.mark.skipif(why_not() is not None, reason=f"NO BROKER IS TESTED: {why_not()}")
DEADLINE_S = 120.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def penstock(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | env, timeout=DEADLINE_S, check=False
    )


def test_without_jars_the_error_names_the_command_that_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(broker_jars.PLACE, str(tmp_path / "none"))
    with pytest.raises(BrokerError, match="are not in") as told:
        BrokerNode(tmp_path / "data").prepare()
    assert "penstock kafka fetch" in (told.value.hint or "")
    assert not (tmp_path / "data").exists()


def test_an_app_on_a_broker_of_its_own_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text('from penstock import App\napp = App("shop")\n')
    done = penstock("run", str(file), "--log", "kafka", PENSTOCK_KAFKA_JARS=str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr.startswith("no_broker: the jars of a Kafka broker are not in")
    assert "penstock kafka fetch" in done.stderr
    assert not (tmp_path / ".penstock").exists()


def test_without_a_network_fetching_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy that Java is told of takes no connection."""
    refused = f"-DproxySet=true -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={free_port()}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{refused} {refused.replace('https', 'http')}")
    monkeypatch.setenv(broker_jars.PLACE, str(tmp_path / "jars"))
    with pytest.raises(BrokerError, match="Maven Central does not give") as told:
        broker_jars.fetch()
    assert "penstock kafka fetch" in (told.value.hint or "")
    assert list(tmp_path.iterdir()) == []


@needs_jars
def test_a_jar_that_is_not_the_one_that_is_named_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(broker_jars.folder(), tmp_path / "jars")
    monkeypatch.setenv(broker_jars.PLACE, str(copy))
    assert broker_jars.jars()
    (copy / "slf4j-api-1.7.36.jar").write_bytes(b"something else")
    with pytest.raises(BrokerError, match="are not in") as told:
        broker_jars.jars()
    assert told.value.detail == "slf4j-api-1.7.36.jar is not the file that it should be"


@contextmanager
def in_the_foreground(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`penstock kafka run`, and the address that it tells."""
    command = [sys.executable, "-m", "penstock.cli.main", "kafka", "run", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().removeprefix("ready kafka://").strip()
        finally:
            process.kill()


@needs_jars
def test_a_broker_in_the_foreground_keeps_its_topics_and_ends_with_its_process(tmp_path: Path) -> None:
    data = tmp_path / "kafka"
    with in_the_foreground(data) as (first, address):
        node = BrokerNode(data)
        assert (node.is_running(), node.address) == (True, address)
        second = penstock("kafka", "run", "--data", str(data), "--port", "0")
        assert second.returncode == 1
        assert second.stderr.startswith("no_broker: a broker runs on the folder")
        _make_topic(address)
        first.send_signal(signal.SIGINT)
        assert first.wait(DEADLINE_S) == 0
    assert not answers(node.port)
    with in_the_foreground(data) as (killed, address):
        assert _topics(address) == {"kept"}
        killed.kill()
    until(lambda: not BrokerNode(data).is_running())


def _make_topic(address: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("kept", 1)])["kept"].result(60)


def _topics(address: str) -> set[str]:
    from confluent_kafka.admin import AdminClient

    return set(AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).topics)


def test_a_server_that_takes_connections_and_says_nothing_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(silent.getsockname()[1])
