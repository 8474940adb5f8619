"""Against a real broker; skipped where its jars are not (see `tests/kafka_broker.py`)."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from feed_server import until
from pull_crash import environment
from running_edge import running

from penstock import App, Event
from penstock.config import Folder
from penstock.log.opening import open_reader
from tests.certificates import Authority
from tests.kafka_broker import Broker, running_broker, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"PULLING FROM KAFKA IS NOT TESTED: {why_not()}")


class Tick(Event):
    n: int


def app(address: str, topic: str, scheme: str = "kafka", **options: Any) -> App:
    made = App("kafka")
    made.pull(made.stream("ticks", Tick), f"{scheme}://{address}/{topic}", **options)
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


def topic(broker: Broker, name: str, partitions: int = 3, **settings: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
    return name


def produce(broker: Broker, name: str, numbers: range, **more: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.address})
    for n in numbers:
        producer.produce(name, b'{"n": %d}' % n, key=str(n), **more)
    assert producer.flush(30) == 0


def numbers(path: Path) -> list[int]:
    reader = open_reader(Folder(path).edge_log)
    try:
        stream = reader.find("ticks")
        return [n for b in reader.read(stream, 0, 0) for n in b.batch.column("n").to_pylist()] if stream else []
    finally:
        reader.close()


async def test_a_killed_edge_goes_on_at_the_right_offset_of_every_partition(broker: Broker, tmp_path: Path) -> None:
    name, random = topic(broker, "kills"), Random(3)
    victim = tmp_path / "victim.py"
    victim.write_text(
        "import asyncio, sys\nfrom pathlib import Path\nfrom running_edge import running\n"
        "from penstock.config import Folder\n"
        "from test_kafka_source import app\n"
        "async def main():\n"
        f"    async with running(app({broker.address!r}, {name!r}), Folder(Path({str(tmp_path)!r}))):\n"
        "        print('started', flush=True)\n        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    for round_ in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(victim), env=environment(), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"started\n"
            await asyncio.to_thread(produce, broker, name, range(round_ * 2000, round_ * 2000 + 2000))
            await asyncio.sleep(random.uniform(0, 0.4))
            if round_ == 3:
                await until(lambda: len(numbers(tmp_path)) >= 8000, 60)
        finally:
            process.send_signal(signal.SIGKILL)
            await process.communicate()
    assert sorted(numbers(tmp_path)) == list(range(8000))


async def test_the_lag_is_shown_and_no_group_is_committed(broker: Broker, tmp_path: Path) -> None:
    name = topic(broker, "lag", 1)
    await asyncio.to_thread(produce, broker, name, range(10))
    async with running(app(broker.address, name), Folder(tmp_path)) as edge:
        await until(lambda: len(numbers(tmp_path)) == 10)
        await until(lambda: edge.collect.pulls.status()[0]["position"] == {"0": 10})
        await until(lambda: edge.collect.pulls.status()[0]["lag"] == {"events": 0.0})
        edge.collect.pulls.pause("ticks", "test")
        await asyncio.to_thread(produce, broker, name, range(10, 20))
        assert len(numbers(tmp_path)) == 10
        edge.collect.pulls.resume("ticks")
        await until(lambda: len(numbers(tmp_path)) == 20)
    from confluent_kafka.admin import AdminClient

    groups = AdminClient({"bootstrap.servers": broker.address}).list_consumer_groups().result(60)
    assert [group.group_id for group in groups.valid] == []


async def test_offsets_that_kafka_no_longer_has_are_told_and_read_anew(broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    name = topic(broker, "gone", 2)
    await asyncio.to_thread(produce, broker, name, range(5), partition=0)
    await asyncio.to_thread(produce, broker, name, range(100, 105), partition=1)
    async with running(app(broker.address, name), Folder(tmp_path)) as edge:
        await until(lambda: len(numbers(tmp_path)) == 10)
    await asyncio.to_thread(produce, broker, name, range(5, 20), partition=0)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_records([TopicPartition(name, 0, 15)])[TopicPartition(name, 0)].result(60)
    async with running(app(broker.address, name), Folder(tmp_path)) as edge:
        await until(lambda: len(numbers(tmp_path)) == 15)
        assert sorted(numbers(tmp_path)) == [*range(5), *range(15, 20), *range(100, 105)]
        assert edge.observer.value("penstock_collect_pull_resets_total", stream="ticks") == 1


async def test_a_broker_that_is_away_is_seen_and_found_again(broker: Broker, tmp_path: Path) -> None:
    name = topic(broker, "away", 1)
    async with running(app(broker.address, name), Folder(tmp_path)) as edge:
        await asyncio.to_thread(produce, broker, name, range(5))
        await until(lambda: len(numbers(tmp_path)) == 5)
        await asyncio.to_thread(broker.stop)
        try:
            await until(lambda: edge.collect.pulls.status()[0]["state"] == "disconnected", 60)
        finally:
            await asyncio.to_thread(broker.start)
        await asyncio.to_thread(produce, broker, name, range(5, 10))
        await until(lambda: len(numbers(tmp_path)) == 10, 60)
    assert numbers(tmp_path) == list(range(10))


async def test_over_tls_the_broker_is_asked_who_it_is(broker: Broker, tmp_path: Path) -> None:
    name = topic(broker, "secure", 1)
    await asyncio.to_thread(produce, broker, name, range(5))
    asked = app(broker.secure, name, "kafkas", ca=str(broker.authority.ca))
    async with running(asked, Folder(tmp_path)):
        await until(lambda: numbers(tmp_path) == list(range(5)), 60)


async def test_a_broker_that_another_authority_vouches_for_is_told_and_tried_again(
    broker: Broker, tmp_path: Path
) -> None:
    name = topic(broker, "stranger", 1)
    await asyncio.to_thread(produce, broker, name, range(5))
    stranger = Authority(tmp_path, "strangers")
    async with running(app(broker.secure, name, "kafkas", ca=str(stranger.ca)), Folder(tmp_path)) as edge:
        await until(lambda: "certificate" in str(edge.collect.pulls.status()[0]["error"]), 60)
        assert edge.collect.pulls.status()[0]["state"] == "disconnected"
        assert numbers(tmp_path) == []
        stranger.ca.write_bytes(broker.authority.ca.read_bytes())
        await until(lambda: numbers(tmp_path) == list(range(5)), 60)


async def test_a_broker_that_wants_a_password_gets_it_over_tls(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(broker, "named", 1)
    await asyncio.to_thread(produce, broker, name, range(5))
    known = {"sasl.mechanism": "PLAIN", "sasl.username": Broker.USER, "sasl.password": "env:BROKER_PASSWORD"}
    asked = app(broker.named, name, "kafkas", ca=str(broker.authority.ca), settings=known)
    monkeypatch.setenv("BROKER_PASSWORD", "not this one")
    async with running(asked, Folder(tmp_path)) as edge:
        await until(lambda: "uthentication" in str(edge.collect.pulls.status()[0]["error"]), 60)
        assert "not this one" not in str(edge.collect.pulls.status())
        monkeypatch.setenv("BROKER_PASSWORD", Broker.PASSWORD)
        await until(lambda: numbers(tmp_path) == list(range(5)), 60)
