"""Every machine of a cluster as a process on loopback: brokers, a Spark master, workers, an edge, flows, a feed.

    make cluster            # three brokers, two workers, the Meetup app and its feed; ends with Ctrl-C
    make cluster-stop       # from another terminal

Each has a folder and a log of its own below one folder; heaps are small. Spark's processes are pyspark's own classes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyspark

from penstock.run.broker_jars import folder as jars
from penstock.run.child import family

ROOT = Path(__file__).resolve().parents[1]
SPARK = Path(pyspark.__file__).parent
START_S = 600.0
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_SPARK_DEFAULTS = """\
spark.executor.memory 512m
spark.executor.cores 1
spark.cores.max {cores}
spark.sql.shuffle.partitions {cores}
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData
"""


class Part:
    """One process of the cluster, which can be killed and started again."""

    def __init__(
        self, name: str, folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Part:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self._environment},
                process_group=0,
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it where it stands, and what it has started in its own group."""
        self._end(signal.SIGKILL)

    def kill_alone(self) -> None:
        """End it and nothing else, as a machine's out-of-memory killer does."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def children(self, word: str) -> list[int]:
        """Processes that it has started, or these, whose command line has a word in it."""
        return [process.pid for process in family(self.pid) if process.pid != self.pid and _runs(process.pid, word)]

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""


class LoopbackCluster:
    """The machines below one folder. `close` ends them all."""

    def __init__(self, folder: Path, *, brokers: int = 3, workers: int = 2) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = [(free_port(), free_port()) for _ in range(brokers)]
        self.brokers = [self._broker(number) for number in range(brokers)]
        self.log = "kafka://" + ",".join(f"127.0.0.1:{port}" for port, _ in self._ports)
        master, page = free_port(), free_port()
        self.master_url = f"spark://127.0.0.1:{master}"
        self.master = self._spark(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(master), "--webui-port", str(page)),
        )
        self.workers = [self._worker(number) for number in range(workers)]
        self.checkpoints = folder / "checkpoints"
        conf = folder / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "spark-defaults.conf").write_text(_SPARK_DEFAULTS.format(cores=workers))
        self.driver_environment = {"SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.others: list[Part] = []

    # Kafka

    @property
    def servers(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port, _ in self._ports]

    def _broker(self, number: int) -> Part:
        name = f"broker-{number + 1}"
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        port, controller = self._ports[number]
        voters = ",".join(f"{n + 1}@127.0.0.1:{c}" for n, (_, c) in enumerate(self._ports))
        (folder / "server.properties").write_text(
            f"process.roles=broker,controller\nnode.id={number + 1}\n"
            f"controller.quorum.voters={voters}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={folder / 'data'}\n"
            f"offsets.topic.replication.factor={min(3, len(self._ports))}\n"
            f"transaction.state.log.replication.factor={min(3, len(self._ports))}\n"
            f"transaction.state.log.min.isr={min(2, len(self._ports))}\n"
            "offsets.topic.num.partitions=4\ntransaction.state.log.num.partitions=4\n"
            "group.initial.rebalance.delay.ms=0\nreplica.lag.time.max.ms=5000\n"
            "broker.session.timeout.ms=6000\n"
        )
        return Part(name, folder, self._kafka("kafka.Kafka", str(folder / "server.properties")))

    @staticmethod
    def _kafka(*words: str) -> list[str]:
        return ["java", "-Xmx256m", *_SMALL, "-cp", f"{jars()}/*", *words]

    def format_broker(self, broker: Part) -> subprocess.Popen[bytes]:
        settings = str(broker.folder / "server.properties")
        with broker.log.open("ab") as log:
            words = self._kafka("kafka.tools.StorageTool", "format", "-g", "-t", _CLUSTER_ID, "-c", settings)
            return subprocess.Popen(words, stdout=log, stderr=log)

    def start_brokers(self) -> None:
        for formatting in [self.format_broker(broker) for broker in self.brokers]:
            formatting.wait()
        for broker in self.brokers:
            broker.start()
        for number in range(len(self.brokers)):
            self.await_broker(number)

    def await_broker(self, number: int) -> None:
        _await_port(self._ports[number][0], self.brokers[number])

    # Spark

    def _spark(self, name: str, *words: str) -> Part:
        environment = {
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(_SMALL),
            "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true",
            "SPARK_CONF_DIR": str(self.folder / name),
            "SPARK_LOCAL_DIRS": str(self.folder / name / "local"),
        }
        return Part(name, self.folder / name, [str(SPARK / "bin" / "spark-class"), *words], environment)

    def _worker(self, number: int) -> Part:
        name = f"worker-{number + 1}"
        words = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        words += ["--work-dir", str(self.folder / name / "work"), self.master_url]
        return self._spark(name, "org.apache.spark.deploy.worker.Worker", *words)

    def start_spark(self) -> None:
        self.master.start()
        _await_port(int(self.master_url.rpartition(":")[2]), self.master)
        for worker in self.workers:
            worker.start()

    # Penstock

    def edge(self, app: Path, port: int, **environment: str) -> Part:
        words = ["edge", str(app), "--log", self.log, "--data", str(self.folder / "edge"), "--port", str(port)]
        return self._penstock("edge", words, environment)

    def flows(self, app: Path, name: str = "flows", **environment: str) -> Part:
        words = ["flows", str(app), "--log", self.log, "--data", str(self.folder / name)]
        words += ["--master", self.master_url, "--checkpoint", str(self.checkpoints)]
        return self._penstock(name, words, {**self.driver_environment, **environment})

    def verify(self, app: Path) -> subprocess.CompletedProcess[str]:
        words = ["verify", str(app), "--log", self.log, "--data", str(self.folder / "flows"), "--json"]
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli.boot", *words], capture_output=True, text=True, check=False, cwd=ROOT
        )

    def _penstock(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> Part:
        part = Part(
            name, self.folder / f"{name}-process", [sys.executable, "-m", "penstock.cli.boot", *words], environment
        )
        self.others.append(part)
        return part

    def start(self) -> None:
        self.start_brokers()
        self.start_spark()

    def close(self) -> None:
        for part in (*reversed(self.others), *self.workers, self.master, *self.brokers):
            part.kill()


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _runs(pid: int, word: str) -> bool:
    with contextlib.suppress(OSError):
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _await_port(port: int, part: Part) -> None:
    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    until(listens, part)


def until(condition: Callable[[], bool], *parts: Part, seconds: float = START_S) -> None:
    """Wait for a condition; raises with what the parts said when it does not come, or one of them ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        ended = [part for part in parts if not part.runs]
        if ended or time.monotonic() > deadline:
            raise TimeoutError("\n".join(f"{part.name}:\n{part.said()}" for part in ended or parts))
        time.sleep(0.2)


def asked(url: str, path: str) -> dict[str, object]:
    """What a server answers; nothing while it does not."""
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=10) as reply:
            return dict(json.load(reply))
    except OSError:
        return {}


# make cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("start", "stop"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".penstock" / "cluster")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--rate", type=float, default=50)
    given = parser.parse_args()
    pid = given.folder / "pid"
    if given.verb == "stop":
        _stop(pid)
    else:
        _run(given.folder, given.port, given.rate)


def _stop(pid: Path) -> None:
    try:
        number = int(pid.read_text())
        os.kill(number, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        print("no cluster runs")
        return
    while pid.exists() and Path(f"/proc/{number}").exists():
        time.sleep(0.1)
    print("stopped")


def _run(folder: Path, port: int, rate: float) -> None:
    pid = folder / "pid"
    if pid.exists() and Path(f"/proc/{pid.read_text()}").exists():
        sys.exit(f"a cluster runs already, process {pid.read_text()}: make cluster-stop")
    shutil.rmtree(folder, ignore_errors=True)
    cluster = LoopbackCluster(folder)
    pid.write_text(str(os.getpid()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _start_meetup(cluster, port, rate)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.close()
        pid.unlink(missing_ok=True)


def _start_meetup(cluster: LoopbackCluster, port: int, rate: float) -> None:
    example, feed_port, url = ROOT / "examples" / "meetup", free_port(), f"http://127.0.0.1:{port}"
    print(f"three brokers, a Spark master and two workers start in {cluster.folder}")
    cluster.start()
    feed = Part(
        "feed",
        cluster.folder / "feed",
        [sys.executable, str(example / "server.py"), "--port", str(feed_port), "--rate", str(rate)],
    )
    cluster.others.append(feed.start())
    meetup = {"MEETUP_FEED": f"ws://127.0.0.1:{feed_port}/2/rsvps"}
    edge = cluster.edge(example / "app.py", port, **meetup).start()
    flows = cluster.flows(example / "app.py", **meetup).start()
    until(lambda: bool(asked(url, "/healthz")), edge)
    print(f"the page is open at {url}; Spark is starting")
    until(lambda: asked(url, "/readyz").get("ready") is True, edge, flows)
    print(f"ready {url}   the log is {cluster.log}, the master {cluster.master_url}", flush=True)


if __name__ == "__main__":
    main()
