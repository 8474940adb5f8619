"""The Kafka broker of `penstock kafka run` for tests, with TLS, with passwords, and with a pause.

`make test` fetches its jars; where it cannot, it says what is missing, and the tests that need a broker are skipped.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.errors import PenstockError
from penstock.run import broker_jars
from penstock.run.broker import BrokerNode, free_port
from tests.certificates import Authority

_QUICK_START = ("-XX:TieredStopAtLevel=1",)
"""It lives for a minute: what the better compiler would take is more than what it would save."""


def why_not() -> str | None:
    """What is missing for a broker, if anything."""
    try:
        broker_jars.jars()
    except PenstockError as error:
        return error.paragraph()
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "confluent-kafka is not installed: pip install 'penstock[kafka]'"
    return None


class Broker:
    """One broker over one folder; it can be stopped and started again.

    It listens without TLS, with it, and with it for whoever knows a name and a password. `STRANGER` is known too, and
    has no rights; everybody else has all.
    """

    USER, PASSWORD = "reader", "a broker's password"
    STRANGER = "stranger"

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.port, secure, named, controller = (free_port() for _ in range(4))
        self.address, self.secure, self.named = (f"127.0.0.1:{port}" for port in (self.port, secure, named))
        self.authority = Authority(folder, "brokers")
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        listeners = {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},SSL://{self.secure},SASL_SSL://{self.named},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.authority.server_file()),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{login} "
            f'user_{self.USER}="{self.PASSWORD}" user_{self.STRANGER}="{self.PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{self.USER}",
            "log.retention.check.interval.ms": "500",
        }
        self._node = BrokerNode(folder, self.port, settings=listeners | dict(settings or {}), options=_QUICK_START)
        self.data = self._node.data
        self._node.prepare()
        self._running = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = self._running.enter_context(self._node.running())

    def stop(self) -> None:
        """At once: nothing that was acknowledged may need a goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._running.close()

    def pause(self) -> None:
        """Let it stand still, as a machine does whose disk or memory is busy."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
    broker = Broker(folder, settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@contextlib.contextmanager
def broker_in_memory(settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Over a folder in memory where that exists: no test waits for a disk."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        running_broker(Path(folder), settings) as broker,
    ):
        yield broker


if __name__ == "__main__":
    try:
        broker_jars.fetch()
    except PenstockError as error:
        print(f"TESTS AGAINST A KAFKA BROKER ARE SKIPPED: {error.paragraph()}", file=sys.stderr)
