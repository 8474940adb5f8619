"""A real Kafka broker (KRaft, one node) for tests, from jars that stand in a cache folder.

    python -m tests.kafka_broker fetch     # once: 43 MB from Maven Central, by the ivy that pyspark brings

`make test` does that; where it cannot, it says what is missing, and the tests that need a broker are skipped.

The folder is `$PENSTOCK_KAFKA_JARS`, or `penstock/kafka-4.1.1` in the user's cache.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.certificates import Authority

VERSION = "4.1.1"
_FETCH_S = 300
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""It lives for a minute: what the better compiler would take is more than what it would save."""
_IVY = f"""<ivy-module version="2.0"><info organisation="penstock" module="broker"/>
<configurations><conf name="broker"/></configurations>
<dependencies>
<dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="broker->default"/>
</dependencies>
</ivy-module>"""


def jars() -> Path:
    given = os.environ.get("PENSTOCK_KAFKA_JARS")
    return Path(given) if given else Path.home() / ".cache" / "penstock" / f"kafka-{VERSION}"


def why_not() -> str | None:
    """What is missing for a broker, if anything."""
    if not _complete():
        return f"no broker jars in {jars()}: python -m tests.kafka_broker fetch"
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "confluent-kafka is not installed: pip install 'penstock[kafka]'"
    return None


def _complete() -> bool:
    return (jars() / f"kafka_2.13-{VERSION}.jar").exists()


def fetch() -> str | None:
    """Bring the jars into their folder, all of them or none; why that failed, if it did."""
    import pyspark

    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    jars().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars().parent) as scratch:
        file, fetched = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
        file.write_text(_IVY)
        words = [
            "java", "-jar", str(ivy), "-ivy", str(file), "-confs", "broker", "-types", "jar", "bundle",
            "-cache", str(Path(scratch) / "cache"), "-retrieve", f"{fetched}/[artifact]-[revision].[ext]",
        ]  # fmt: skip
        try:
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=_FETCH_S)
        except subprocess.TimeoutExpired:
            return f"Maven Central did not give them within {_FETCH_S} s"
        except FileNotFoundError:
            return "there is no Java"
        except subprocess.CalledProcessError as error:
            return f"Maven Central did not give them:\n{error.stdout[-500:]}"
        with contextlib.suppress(FileExistsError, OSError):  # another run was quicker
            fetched.rename(jars())
    return None


class Broker:
    """One broker over one folder; it can be stopped and started again.

    It listens without TLS, with it, and with it for whoever knows a name and a password.
    """

    USER, PASSWORD = "reader", "a broker's password"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.data = folder / "log"
        self.port, secure, named, controller = (_free_port() for _ in range(4))
        self.address, self.secure, self.named = (f"127.0.0.1:{port}" for port in (self.port, secure, named))
        self.authority = Authority(folder, "brokers")
        self._settings = folder / "server.properties"
        self._settings.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.address},SSL://{self.secure},SASL_SSL://{self.named},"
            f"CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self.authority.server_file()}\n"
            "sasl.enabled.mechanisms=PLAIN\nlistener.name.sasl_ssl.plain.sasl.jaas.config="
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{self.USER}="{self.PASSWORD}";\n'
            f"log.dirs={folder / 'log'}\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n"
            "log.retention.check.interval.ms=500\n"
        )
        self._java(
            "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(self._settings)
        ).wait()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = self._java("kafka.Kafka", str(self._settings))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.1)
        raise TimeoutError((self._folder / "broker.log").read_text()[-2000:])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Let it stand still, as a machine does whose disk or memory is busy."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / "broker.log").open("ab") as log:
            return subprocess.Popen(
                ["java", "-Xmx512m", *_QUICK_START, "-cp", f"{jars()}/*", *words],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    broker = Broker(folder)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


if __name__ == "__main__":
    failed = fetch() if sys.argv[1:] == ["fetch"] and not _complete() else None
    if lacking := why_not():
        print(f"TESTS AGAINST A KAFKA BROKER ARE SKIPPED: {failed or lacking}", file=sys.stderr)
