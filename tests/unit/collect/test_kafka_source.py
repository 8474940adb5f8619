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
from penstock.log.logs.sqlite import SqliteLog
from tests.kafka_broker import Broker, running_broker, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"PULLING FROM KAFKA IS NOT TESTED: {why_not()}")


class Tick(Event):
    n: int


def app(address: str, topic: str) -> App:
    made = App("kafka")
    made.pull(made.stream("ticks", Tick), f"kafka://{address}/{topic}")
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
    reader = SqliteLog.reader(path)
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
        "from test_kafka_source import app\n"
        "async def main():\n"
        f"    async with running(app({broker.address!r}, {name!r}), Path({str(tmp_path / 'edge.db')!r})):\n"
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
                await until(lambda: len(numbers(tmp_path / "edge.db")) >= 8000, 60)
        finally:
            process.send_signal(signal.SIGKILL)
            await process.communicate()
    assert sorted(numbers(tmp_path / "edge.db")) == list(range(8000))


async def test_the_lag_is_shown_and_no_group_is_committed(broker: Broker, tmp_path: Path) -> None:
    name = topic(broker, "lag", 1)
    await asyncio.to_thread(produce, broker, name, range(10))
    async with running(app(broker.address, name), tmp_path / "edge.db") as edge:
        await until(lambda: len(numbers(tmp_path / "edge.db")) == 10)
        await until(lambda: edge.collect.pulls.status()[0]["position"] == {"0": 10})
        await until(lambda: edge.collect.pulls.status()[0]["lag"] == {"events": 0.0})
        edge.collect.pulls.pause("ticks", "test")
        await asyncio.to_thread(produce, broker, name, range(10, 20))
        assert len(numbers(tmp_path / "edge.db")) == 10
        edge.collect.pulls.resume("ticks")
        await until(lambda: len(numbers(tmp_path / "edge.db")) == 20)
    from confluent_kafka.admin import AdminClient

    groups = AdminClient({"bootstrap.servers": broker.address}).list_consumer_groups().result(10)
    assert [group.group_id for group in groups.valid] == []


async def test_offsets_that_kafka_no_longer_has_are_told_and_read_anew(broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    name = topic(broker, "gone", 2)
    await asyncio.to_thread(produce, broker, name, range(5), partition=0)
    await asyncio.to_thread(produce, broker, name, range(100, 105), partition=1)
    async with running(app(broker.address, name), tmp_path / "edge.db") as edge:
        await until(lambda: len(numbers(tmp_path / "edge.db")) == 10)
    await asyncio.to_thread(produce, broker, name, range(5, 20), partition=0)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_records([TopicPartition(name, 0, 15)])[TopicPartition(name, 0)].result(10)
    async with running(app(broker.address, name), tmp_path / "edge.db") as edge:
        await until(lambda: len(numbers(tmp_path / "edge.db")) == 15)
        assert sorted(numbers(tmp_path / "edge.db")) == [*range(5), *range(15, 20), *range(100, 105)]
        assert edge.observer.value("penstock_collect_pull_resets_total", stream="ticks") == 1


async def test_a_broker_that_is_away_is_seen_and_found_again(broker: Broker, tmp_path: Path) -> None:
    name = topic(broker, "away", 1)
    async with running(app(broker.address, name), tmp_path / "edge.db") as edge:
        await asyncio.to_thread(produce, broker, name, range(5))
        await until(lambda: len(numbers(tmp_path / "edge.db")) == 5)
        await asyncio.to_thread(broker.stop)
        try:
            await until(lambda: edge.collect.pulls.status()[0]["state"] == "disconnected", 60)
        finally:
            await asyncio.to_thread(broker.start)
        await asyncio.to_thread(produce, broker, name, range(5, 10))
        await until(lambda: len(numbers(tmp_path / "edge.db")) == 10, 60)
    assert numbers(tmp_path / "edge.db") == list(range(10))
