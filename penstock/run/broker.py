"""A Kafka broker of our own: one KRaft node over one folder, from jars and a Java, without Docker.

`penstock kafka run` runs one in the foreground, `penstock run --log kafka` one beside edge and flows, and a command
that finds none on its folder runs one for as long as it lasts. It listens on this machine's loopback address alone: a
cluster that others reach is set up with Kafka's own tools.

1. A folder has at most one broker at a time: Kafka holds a lock in it.
2. A broker ends with whoever started it, however that ends.
3. It keeps its port from one start to the next, unless somebody else has taken it.
"""

from __future__ import annotations

import base64
import contextlib
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from penstock.config import Folder
from penstock.errors import BrokerError, FolderMismatchError
from penstock.run.app_file import Loaded
from penstock.run.broker_jars import jars
from penstock.run.child import Lifeline
from penstock.run.exit_codes import OK
from penstock.run.lifecycle import Bell
from penstock.run.ownership import is_locked
from penstock.run.preflight import check_java, check_port

OWN = "kafka"
"""What `--log` says for a broker of the data folder's own."""
HERE = "127.0.0.1"
START_S = 300.0
"""A JVM on a busy machine needs more than a while."""
STOP_S = 10.0
FORMAT_S = 120.0
ASK_S = 2.0
LOOK_S = 1.0
HEAP = "512m"
LAST_LINES = 15
_LISTENERS = re.compile(r"^listeners=\w+://[^:,]+:(\d+)", re.MULTILINE)


class BrokerNode:
    """One node over one folder. Nothing is touched before `prepare`."""

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        cluster: str | None = None,
    ) -> None:
        """`settings` go before those of `server.properties` that are made here, and `options` are the JVM's. Port 0:
        the one it had last, or any free one."""
        self.folder = folder.absolute()
        self.data = self.folder / "log"
        self._file = self.folder / "server.properties"
        self.port = port or self._last_port() or free_port()
        self._settings, self._options, self._cluster = dict(settings or {}), tuple(options), cluster

    @property
    def address(self) -> str:
        return f"{HERE}:{self.port}"

    def is_running(self) -> bool:
        """Whether a broker works on the folder, whoever started it; its address is then that of `address`."""
        return is_locked(self.data / ".lock")

    def prepare(self) -> None:
        """Write down the settings, and make what a node needs before its first start. Raises `BrokerError`."""
        jars()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        if (self.data / "meta.properties").exists():
            return
        words = ["kafka.tools.StorageTool", "format", "-t", self._cluster or _cluster_id(), "-c", str(self._file)]
        done = subprocess.run(
            self._java(*words), capture_output=True, text=True, timeout=FORMAT_S, check=False, cwd=self.folder
        )
        if done.returncode:
            raise BrokerError(
                f"the folder '{self.folder}' cannot be made one of a Kafka broker",
                detail=(done.stderr or done.stdout)[-500:].strip(),
                hint="see that there is room and that it may be written to, or pass another one with --data",
            )

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._file))

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Started and answering within this block; raises `BrokerError` where it does not come up."""
        log = self.folder / "broker.log"
        with contextlib.ExitStack() as ending:
            with log.open("wb") as output:
                words = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "cwd": self.folder}
                process = subprocess.Popen(self.command(), process_group=0, **words)  # type: ignore[call-overload]
            lifeline = Lifeline()
            ending.callback(lifeline.close)
            guard = lifeline.guard(process.pid)
            ending.callback(_end, process, guard)
            self._await(process, log)
            yield process

    def _await(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + START_S
        while not answers(self.port):
            if process.poll() is not None or time.monotonic() > deadline:
                with log.open(errors="replace") as lines:
                    said = "".join(deque(lines, LAST_LINES)).strip()
                raise BrokerError("the Kafka broker does not start", detail=said or None, hint=f"its log is {log}")
            time.sleep(0.05)

    def _last_port(self) -> int:
        """The port of the broker that runs, or of the one that did, if it is free."""
        try:
            match = _LISTENERS.search(self._file.read_text())
        except OSError:
            return 0
        port = int(match[1]) if match else 0
        return port if port and (self.is_running() or _is_free(port)) else 0

    def _properties(self) -> dict[str, str]:
        controller = free_port()
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HERE}:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HERE}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(16 * 1024**2),
            "initial.broker.registration.timeout.ms": str(round(START_S * 1000)),
            "broker.session.timeout.ms": "60000",  # there is no other node that could take over
        } | self._settings

    def _java(self, *words: str) -> list[str]:
        paths = ":".join(map(str, jars()))
        level = "-Dlog4j2.level=WARN"
        return [check_java(), f"-Xmx{HEAP}", "-XX:+UseSerialGC", level, *self._options, "-cp", paths, *words]


def _cluster_id() -> str:
    """As Kafka writes them; one that begins with a dash would be taken for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _end(process: subprocess.Popen[bytes], guard: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()  # what it has acknowledged is on the disk
        process.wait()
    guard.kill()
    guard.wait()


def free_port() -> int:
    with socket.create_server((HERE, 0)) as found:
        return int(found.getsockname()[1])


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HERE, port)).close()
    except OSError:
        return False
    return True


# Whether it lives

_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
"""A request for the versions of the protocol, which needs no rights: its kind and version, a number, no name."""


def answers(port: int) -> bool:
    """Whether a broker answers there: one that is stopped takes connections and says nothing."""
    with contextlib.suppress(OSError), socket.create_connection((HERE, port), ASK_S) as connection:
        connection.sendall(struct.pack(">i", len(_VERSIONS)) + _VERSIONS)
        return len(connection.recv(4)) > 0
    return False


class BrokerProbe:
    """Counts the answers of a broker, from a thread of its own."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="broker-probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def pulse(self) -> int:
        return self.count

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S if self.count else 0.05):
            self.count += answers(self._node.port)


# Who uses one


def run_alone(node: BrokerNode, tell: Callable[[str], None]) -> int:
    """`penstock kafka run`: in the foreground, until SIGTERM or Ctrl-C; returns the exit code."""
    if node.is_running():
        raise BrokerError(f"a broker runs on the folder '{node.folder}'", detail=f"it listens on {node.address}")
    check_port(HERE, node.port)
    node.prepare()
    bell, asked = Bell(), False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        bell.ring()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with node.running() as process:
            tell(f"ready kafka://{node.address}")
            while process.poll() is None and not asked:
                bell.wait(0.1)
            return OK if asked else process.returncode
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def node_of(root: Path) -> BrokerNode:
    """The broker of a data folder's own."""
    return BrokerNode(Folder(root).kafka)


@contextlib.contextmanager
def log_folder(
    loaded: Loaded, data: Path | None, log: str, checkpoint: Path | None = None, *, makes: bool = True
) -> Iterator[Folder]:
    """The data folder with the log that `--log` names. Where that is a broker of the folder's own, it runs within this
    block: the one that does already, or one that ends with the block. `makes`: also where there was none before."""
    if log != OWN:
        yield loaded.folder(data, log, checkpoint)
        return
    root = loaded.root(data)
    node = node_of(root)
    if not makes and not node.data.exists():
        raise FolderMismatchError(
            f"the data folder '{root}' has no Kafka broker of its own",
            hint="run the app with --log kafka, or name its log and folder with --log and --data",
        )
    with contextlib.ExitStack() as opened:
        if not node.is_running():
            node.prepare()
            opened.enter_context(node.running())
        yield loaded.folder(data, f"kafka://{node.address}", checkpoint)
