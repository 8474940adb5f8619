"""Topics for other programs: each event once and in order, rows that add up to the view, whoever publishes and dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import App, Event
from penstock.config import Folder
from penstock.declaration import Application
from penstock.errors import LogUnavailableError, StaleTermError
from penstock.log import control_keys
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Log, StreamSpec
from penstock.log.opening import open_log
from penstock.position import Position
from penstock.run.topic_publisher import publishing
from penstock.testing.contracts.log_events import CHANGELOG, SCHEMA, changes, events
from tests.kafka_broker import Broker

DEADLINE_S = 120.0


class Number(Event):
    n: int


class Published(NamedTuple):
    """An app with a stream, a flow-made view and its folder on the broker."""

    application: Application
    folder: Folder
    servers: str

    @contextmanager
    def side(self, side: Any) -> Iterator[tuple[Log, GroupCommit]]:
        """A process that writes one of the logs, and publishes."""
        place = self.folder.edge_log if side == "edge" else self.folder.flows_log
        with ExitStack() as opened:
            log = open_log(place, app=self.application.name)
            opened.callback(log.close)
            group = GroupCommit(log)
            opened.callback(group.close)
            opened.enter_context(publishing(self.application, self.folder, side, group))
            yield log, group


@pytest.fixture
def published(kafka: Broker, tmp_path: Path) -> Published:
    app = App(f"shop-{time.time_ns()}")
    app.stream("numbers", Number, partitions=2, topic=True)

    @app.view(key="word", name="words", topic=f"words-{time.time_ns()}")
    def words(numbers: Any) -> Any:
        return numbers

    return Published(app.declared(), Folder(tmp_path, f"kafka://{kafka.address}/{app.name}"), kafka.address)


def read(servers: str, topic: str) -> list[Any]:
    """All committed records of a topic, partition after partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "others", "isolation.level": "read_committed",
                         "enable.partition.eof": True, "auto.offset.reset": "earliest"})  # fmt: skip
    try:
        there = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        found, ended = [], 0
        consumer.assign([TopicPartition(topic, number, 0) for number in there])
        while ended < len(there):
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
        return sorted(found, key=lambda m: (m.partition(), m.offset()))
    finally:
        consumer.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def put(group: GroupCommit, stream: Any, numbers: list[int]) -> None:
    append(group, Append(stream, events(numbers)))


def append(group: GroupCommit, what: Append) -> None:
    """On a busy machine a broker needs longer than the log waits for it; what it has not taken is sent again."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            outcome = group.submit([what]).result(60)[0]
            assert not isinstance(outcome, Exception), outcome
            return
        except LogUnavailableError:
            assert time.monotonic() < deadline


def level(log: Log, name: str) -> bool:
    return (log.memory().get(control_keys.topic(name)) or {}).get("state") == "level"


def values(messages: list[Any]) -> list[int]:
    ordered = sorted(messages, key=lambda m: sum(Position.parse(header(m, "penstock_position")).offsets))
    return [json.loads(m.value())["n"] for m in ordered]


def header(message: Any, name: str) -> str:
    return dict(message.headers())[name].decode()


def test_an_event_is_a_record_with_the_headers_of_a_cloud_event(published: Published) -> None:
    topic = f"{published.application.name}.numbers"
    with published.side("edge") as (log, group):
        stream = group.run(lambda: log.create(StreamSpec("numbers", SCHEMA, partitions=2))).result()
        put(group, stream, [7])
        until(lambda: len(read(published.servers, topic)) == 1)
    (message,) = read(published.servers, topic)
    value = json.loads(message.value())
    assert (value["n"], value["_key"], value["_id"], value["_time"]) == (7, "7", "7", "1970-01-01T00:00:00.000Z")
    assert message.key() == b"7"
    assert header(message, "penstock_position") == value["_position"]
    assert header(message, "ce_id") == "7"
    assert header(message, "ce_type") == topic
    assert header(message, "ce_source") == f"/{published.application.name}/numbers"
    assert header(message, "ce_time") == value["_time"]
    assert header(message, "ce_specversion") == "1.0"


def test_whoever_writes_the_log_next_publishes_the_rest_and_nothing_twice(published: Published) -> None:
    """Also while the one before it has not noticed yet."""
    topic = f"{published.application.name}.numbers"
    with published.side("edge") as (old_log, old):
        stream = old.run(lambda: old_log.create(StreamSpec("numbers", SCHEMA, partitions=2))).result()
        for first in range(0, 300, 10):
            put(old, stream, list(range(first, first + 10)))
        with published.side("edge") as (_, new):
            for first in range(300, 600, 10):
                put(new, stream, list(range(first, first + 10)))
            with pytest.raises(StaleTermError):
                raise_of(old.submit([Append(stream, events([1]))]).result(60)[0])
            until(lambda: len(read(published.servers, topic)) >= 600)
    found = values(read(published.servers, topic))
    assert sorted(found) == list(range(600))
    assert [n // 10 for n in found] == [n // 10 for n in range(600)]  # each commit was ten


def raise_of(outcome: Any) -> None:
    raise outcome


def test_a_topic_that_cannot_be_written_to_lags_and_catches_up(kafka: Broker, published: Published) -> None:
    topic = f"{published.application.name}.numbers"
    with published.side("edge") as (log, group):
        stream = group.run(lambda: log.create(StreamSpec("numbers", SCHEMA, partitions=2))).result()
        put(group, stream, [1])
        until(lambda: level(log, "numbers") and len(read(published.servers, topic)) == 1)
        _settings(published.servers, topic, {"max.message.bytes": "100"})
        put(group, stream, [2])
        until(lambda: (log.memory()[control_keys.topic("numbers")] or {})["state"] == "lagging")
        assert log.memory()[control_keys.topic("numbers")]["error"]["code"] == "topic_unwritable"
        put(group, stream, [3])  # the log goes on
        _settings(published.servers, topic, {"max.message.bytes": "1000000"})
        until(lambda: level(log, "numbers"))
    assert values(read(published.servers, topic)) == [1, 2, 3]


def _settings(servers: str, topic: str, values: dict[str, str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


# Views


def added_up(servers: str, topic: str) -> dict[str, int]:
    rows: dict[str, Any] = {}
    for message in read(servers, topic):
        key = json.loads(message.key())["word"]
        if message.value() is None:
            rows.pop(key, None)
        else:
            rows[key] = json.loads(message.value())["count"]
    return rows


def test_a_topic_of_a_view_adds_up_to_it_through_deletes_compaction_and_another_build(published: Published) -> None:
    (view,) = published.application.views
    assert view.topic is not None
    topic = view.topic
    with published.side("flows") as (log, group):
        live = group.run(lambda: log.create(replace(CHANGELOG, epoch="one"))).result()
        group.submit([], {control_keys.live("words"): "one"}).result(60)
        _change(group, live, [("a", 1), ("b", 2), ("c", 3)])
        _change(group, live, [("a", 10), ("b", None)])
        until(lambda: added_up(published.servers, topic) == {"a": 10, "c": 3})
    # Nobody publishes while the changelog goes on and is compacted: the position is gone then.
    quiet = open_log(published.folder.flows_log, app=published.application.name)
    stream = quiet.find("words", "one")
    assert stream is not None
    for row in (("c", None), ("d", 4), ("e", 5)):
        quiet.append([Append(stream, changes([row]))])
    last = quiet.last_commit(stream)
    assert last is not None
    quiet.compact(stream, last.number + 1)
    quiet.close()
    with published.side("flows") as (log, group):
        until(lambda: added_up(published.servers, topic) == {"a": 10, "d": 4, "e": 5})
        rebuilt = group.run(lambda: log.create(replace(CHANGELOG, epoch="two"))).result()
        _change(group, rebuilt, [("a", 10), ("z", 26)])
        group.submit([], {control_keys.live("words"): "two"}).result(60)
        until(lambda: added_up(published.servers, topic) == {"a": 10, "z": 26})
        _change(group, rebuilt, [("z", 27)])
        until(lambda: added_up(published.servers, topic) == {"a": 10, "z": 27})


def _change(group: GroupCommit, stream: Any, rows: list[tuple[str, int | None]]) -> None:
    append(group, Append(stream, changes(rows)))


# Processes

_APP = """
from penstock import App, Event

app = App({name!r})

class Number(Event):
    n: int

numbers = app.stream("numbers", Number, id="n", topic=True)
"""


def test_an_outside_reader_finds_each_event_once_through_kills_of_the_edge(kafka: Broker, tmp_path: Path) -> None:
    name = f"killed-{time.time_ns()}"
    (tmp_path / "app.py").write_text(_APP.format(name=name))
    sent: list[int] = []
    for kill in range(3):
        with _edge(tmp_path, kafka.address) as (process, url):
            for first in range(kill * 100, kill * 100 + 100, 5):
                _post(url, list(range(first, first + 5)))
                sent += range(first, first + 5)
            if kill < 2:
                process.send_signal(signal.SIGKILL)
            else:
                until(lambda: len(read(kafka.address, f"{name}.numbers")) >= 300)
    found = read(kafka.address, f"{name}.numbers")
    assert [json.loads(message.value())["n"] for message in found] == sent


@contextmanager
def _edge(folder: Path, servers: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    announced = folder / "data" / "run" / "edge.json"
    announced.unlink(missing_ok=True)
    words = [
        "edge",
        str(folder / "app.py"),
        "--log",
        f"kafka://{servers}",
        "--data",
        str(folder / "data"),
        "--port",
        "0",
    ]
    process = subprocess.Popen([sys.executable, "-m", "penstock.cli.boot", *words], env=dict(os.environ))
    try:
        until(lambda: announced.exists() or process.poll() is not None)
        yield process, f"http://127.0.0.1:{json.loads(announced.read_text())['port']}"
    finally:
        process.kill()
        process.wait()


def _post(url: str, numbers: list[int]) -> None:
    """Again until it is taken: an event is known by its id."""
    body = json.dumps([{"n": n} for n in numbers]).encode()
    request = urllib.request.Request(f"{url}/streams/numbers", body, {"Content-Type": "application/json"})
    taken = False

    def post() -> bool:
        nonlocal taken
        with suppress(OSError), urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.load(reply)
            taken = answer["accepted"] + answer["duplicates"] == len(numbers)
        return taken

    until(post)
