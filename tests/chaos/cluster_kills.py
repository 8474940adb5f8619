"""Kills an executor, a worker, the driver and brokers of a cluster under load, and checks what must hold whatever dies.

    python -m tests.chaos.cluster_kills

Acknowledgements go on within ten seconds of each kill. With two brokers of three gone senders get 503, and all is well
when one is back. In the end every acknowledged event is in the log once, an outside reader finds it once in the topic,
the view's topic adds up to the view, and `penstock verify` finds no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.loopback_cluster import LoopbackCluster, asked, free_port, until

APP = Path(__file__).parents[1] / "cluster" / "app.py"
BATCH = 20
PAUSE_S = 0.1
QUIET_S = 5.0
"""What passes between two kills, at least."""
LONGEST_S = 900.0


class Sender:
    """Sends numbered words in batches, each again until it is acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.acked: list[int] = []
        self.refused = Counter[int]()
        self.acked_at = time.monotonic()
        self.longest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        self.acked_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(LONGEST_S)

    def _send(self) -> None:
        first = 0
        while not self._ended.is_set():
            numbers = range(first, first + BATCH)
            while not self._post(numbers):
                time.sleep(PAUSE_S)
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - self.acked_at)
            self.acked_at = now
            self.acked += numbers
            first += BATCH
            time.sleep(PAUSE_S)

    def _post(self, numbers: range) -> bool:
        body = json.dumps([{"word": f"w{n % 7}", "n": n} for n in numbers]).encode()
        request = urllib.request.Request(f"{self._url}/streams/words", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                answer = json.load(reply)
                return bool(answer["accepted"] + answer["duplicates"] == BATCH)
        except urllib.error.HTTPError as error:
            self.refused[error.code] += 1
        except OSError:
            self.refused[0] += 1
        return False


class Play:
    """The cluster, and what dies in it."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._patience_s = patience_s
        self.wrong: list[str] = []
        self.cluster = LoopbackCluster(folder)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.edge = self.cluster.edge(APP, port)
        self.flows = self.cluster.flows(APP)
        self.sender = Sender(self.url)

    def run(self) -> None:
        self.cluster.start()
        self.edge.start()
        self.flows.start()
        until(lambda: bool(asked(self.url, "/healthz")), self.edge, seconds=LONGEST_S)
        self.sender.start()
        self._await_level()
        for name, kill in {
            "executor": self._executor,
            "worker": self._worker,
            "driver": self._driver,
            "broker": self._broker,
            "broker for good": self._broker_for_good,
        }.items():
            self._play(name, kill)
        self._two_brokers()
        self.sender.stop()
        self._await_level()
        self._judge()

    def _play(self, name: str, kill: Callable[[], None]) -> None:
        self.sender.longest_s, began = 0.0, time.monotonic()
        kill()
        self._await_level()
        level_s = time.monotonic() - began
        until(lambda: time.monotonic() - began > QUIET_S)
        longest_s = self.sender.longest_s
        print(f"{name}: views level after {level_s:.1f} s, longest pause of acks {longest_s:.1f} s", flush=True)
        if longest_s > self._patience_s:
            self.wrong.append(f"{name}: acknowledgements paused for {longest_s:.1f} s")

    # What dies

    def _executor(self) -> None:
        victims = [pid for worker in self.cluster.workers for pid in worker.children("CoarseGrainedExecutorBackend")]
        os.kill(victims[0], signal.SIGKILL)

    def _worker(self) -> None:
        worker = self.cluster.workers[0]
        worker.kill()
        self._await_level()
        worker.start()

    def _driver(self) -> None:
        self.flows.kill()
        self.flows.start()

    def _broker(self) -> None:
        self.cluster.brokers[0].kill()
        self._await_ack()
        self.cluster.brokers[0].start()
        self.cluster.await_broker(0)

    def _broker_for_good(self) -> None:
        self.cluster.brokers[2].kill()
        shutil.rmtree(self.cluster.brokers[2].folder / "data")
        self._await_ack()

    def _two_brokers(self) -> None:
        before = Counter(self.sender.refused)
        self.cluster.brokers[1].kill()
        until(lambda: self.sender.refused[503] > before[503], seconds=LONGEST_S)
        acked = len(self.sender.acked)
        self.cluster.brokers[1].start()
        until(lambda: len(self.sender.acked) > acked, self.cluster.brokers[1], seconds=LONGEST_S)
        self._await_level()
        print(f"two brokers: 503, and all well when one is back: {dict(self.sender.refused)}", flush=True)

    # What must come

    def _await_ack(self) -> None:
        acked = len(self.sender.acked)
        until(lambda: len(self.sender.acked) > acked, self.edge, seconds=LONGEST_S)

    def _await_level(self) -> None:
        """Until the view holds what was acknowledged when this was called."""
        wanted = max(1, len(self.sender.acked))
        until(lambda: self._restarted() and self._counted() >= wanted, self.edge, seconds=LONGEST_S)

    def _restarted(self) -> bool:
        """A driver that has ended with its cluster or its log is started again, as a service manager does."""
        if not self.flows.runs:
            self.flows.start()
        return True

    def _rows(self) -> list[dict[str, Any]]:
        rows: Any = asked(self.url, "/views/counts").get("rows", [])
        return list(rows)

    def _counted(self) -> int:
        return sum(row["c"] for row in self._rows())

    def _judge(self) -> None:
        acked = Counter(self.sender.acked)
        stored = Counter(self._stored())
        if lost := acked - stored:
            self.wrong.append(f"{len(lost)} acknowledged events are lost: {sorted(lost)[:5]}")
        if twice := [n for n, times in stored.items() if times > 1]:
            self.wrong.append(f"{len(twice)} events are in the log twice: {sorted(twice)[:5]}")
        if self._counted() != sum(stored.values()):
            self.wrong.append(f"the view counts {self._counted()} of {sum(stored.values())} events")
        topic = Counter(json.loads(value)["n"] for _, value in self._published("clustered.words") if value)
        if topic != stored:
            self.wrong.append(f"the topic of the stream has {sum(topic.values())} events of {sum(stored.values())}")
        rows: dict[bytes, Any] = {}
        for key, value in self._published("clustered.counts"):
            rows[key] = None if value is None else json.loads(value)
        shown = sorted((row for row in rows.values() if row), key=lambda row: row["word"])
        if shown != sorted(self._rows(), key=lambda row: row["word"]):
            self.wrong.append(f"the topic of the view adds up to {shown}")
        proved = self.cluster.verify(APP)
        print(proved.stdout, proved.stderr[-500:])
        if proved.returncode != 0:
            self.wrong.append(f"verify: {proved.returncode}")
        print(f"{sum(acked.values())} events acknowledged, {sum(stored.values())} in the log, {len(rows)} keys")

    def _stored(self) -> list[int]:
        found: list[int] = []
        page: Any = asked(self.url, "/streams/words?limit=10000")
        while page.get("events"):
            found += [event["n"] for event in page["events"]]
            page = asked(self.url, f"/streams/words?limit=10000&after={page['next']}")
        return found

    def _published(self, topic: str) -> list[tuple[bytes, bytes | None]]:
        """What an outside reader finds that reads what is committed."""
        expected_s = time.monotonic() + LONGEST_S
        consumer = Consumer(
            {
                "bootstrap.servers": ",".join(self.cluster.servers),
                "group.id": "outside",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[bytes, bytes | None]] = []
        try:
            while time.monotonic() < expected_s:
                message = consumer.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    found.append((message.key(), message.value()))
                elif message.error().code() == KafkaError._PARTITION_EOF and self._published_all(topic):
                    return found
            return found
        finally:
            consumer.close()

    def _published_all(self, topic: str) -> bool:
        topics: Any = asked(self.url, "/status").get("published", [])
        return all(told["state"] == "level" for told in topics if told["topic"] == topic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patience", type=float, default=10.0, help="longest pause of acknowledgements, in seconds")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    play = Play(folder, given.patience)
    try:
        play.run()
    except TimeoutError as error:
        play.wrong.append(str(error))
    finally:
        play.cluster.close()
    if play.wrong:
        sys.exit("\n".join(["WRONG", *play.wrong, f"logs are in {folder}"]))
    shutil.rmtree(folder)
    print("all well")


if __name__ == "__main__":
    main()
