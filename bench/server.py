"""Starts a real `penstock` process on a data folder of its own, and leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bench import processes
from penstock.config import Folder
from penstock.run.app_file import load
from penstock.run.broker import BrokerNode

ROOT = Path(__file__).parents[1]
APPS = Path(__file__).parent / "apps"
READY_S = 120.0
"""A start on a machine that is busy with other work; beyond it something is broken."""
STOP_S = 20.0
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Server:
    """A `penstock` process that is ready."""

    pid: int
    folder: Folder
    port: int
    ready_s: float
    """Seconds from its start until it was ready."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def data_folder(parent: Path, log: str = "sqlite", app: str = "") -> Iterator[Folder]:
    """A new data folder, removed at the end. `log` is `sqlite`, or `kafka` with a broker beside it for this app."""
    path = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=parent))
    try:
        if log == "sqlite":
            yield Folder(path)
            return
        node = BrokerNode(path.with_suffix(".broker"))
        node.prepare()
        with node.running():
            yield Folder(path, f"kafka://{node.address}/{load(str(APPS / f'{app}.py')).application.name}")
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(path.with_suffix(".broker"), ignore_errors=True)


def log_words(folder: Folder) -> list[str]:
    """What tells a verb of `penstock` which log a folder has."""
    return ["--log", folder.log.rpartition("/")[0]] if folder.log else []


def on(log: str) -> str:
    """What the name of a case says of its log."""
    return "" if log == "sqlite" else ", on Kafka"


@contextlib.contextmanager
def run(app: str, folder: Folder, **environment: str) -> Iterator[Server]:
    """`penstock run`, ready."""
    command = penstock("run", str(APPS / f"{app}.py"), "--port", "0", "--data", str(folder.root), *log_words(folder))
    output = folder.root.with_suffix(".out")
    try:
        env = {**os.environ, **environment}
        with output.open("w+b") as file, started(command, file, env=env) as (process, began):
            line = until(lambda: _ready_line(output), process, output)
            yield Server(process.pid, folder, urlsplit(line.split()[1]).port or 0, time.monotonic() - began)
    finally:
        output.unlink(missing_ok=True)


@contextlib.contextmanager
def edge(app: str, folder: Folder, ready_for: str = "collect") -> Iterator[Server]:
    """`penstock edge` alone, without a JVM, ready for what was asked."""
    command = penstock("edge", str(APPS / f"{app}.py"), "--port", "0", "--data", str(folder.root), *log_words(folder))
    output = folder.root.with_suffix(".out")
    try:
        with output.open("w+b") as file, started(command, file) as (process, began):
            port = until(lambda: _bound(folder), process, output)
            until(lambda: get(port, f"/readyz?for={ready_for}") is not None, process, output)
            yield Server(process.pid, folder, port, time.monotonic() - began)
    finally:
        output.unlink(missing_ok=True)


def penstock(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "penstock.cli.main", *arguments]


@contextlib.contextmanager
def started(
    command: Sequence[str], stdout: Any = None, **options: Any
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A process and when it was started; at the end it and all that came from it are gone."""
    began = time.monotonic()
    both = None if stdout is None else subprocess.STDOUT
    process = subprocess.Popen(
        list(command), stdout=stdout, stderr=both, cwd=ROOT, preexec_fn=_end_with_parent, **options
    )
    try:
        yield process, began
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; what does not is killed, one by one, and told."""
    there = processes.family(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} did not end within {STOP_S:g} s", file=sys.stderr)
    deadline = time.monotonic() + 3
    while (left := processes.survivors(there)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for orphan in left:
        print(f"left behind and killed: {orphan.pid} {orphan.command[:100]}", file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan.pid, signal.SIGKILL)
    process.wait()


def until(look: Callable[[], T | None], process: subprocess.Popen[bytes], output: Path) -> T:
    """What `look` finds, once it finds something. Raises with the output of a process that ended or takes too long."""
    deadline = time.monotonic() + READY_S
    while not (found := look()):
        if process.poll() is not None or time.monotonic() > deadline:
            state = "is not ready in time" if process.returncode is None else f"ended with {process.returncode}"
            raise RuntimeError(f"{process.args!r} {state}:\n{output.read_text()[-4000:]}")
        time.sleep(0.005)
    return found


def get(port: int, path: str) -> Any:
    """The JSON of a reply of 200, else None."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
        return json.loads(body) if reply.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def metric(port: int, name: str, **labels: str) -> float | None:
    """A sample of `/metrics`, None where it is not there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    wanted = name + ("{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else "")
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{wanted} ")), None)


def _ready_line(output: Path) -> str | None:
    """The line on stdout that holds the address, once it is whole."""
    return next((line for line in output.read_text().split("\n")[:-1] if line.startswith("ready http")), None)


def _bound(folder: Folder) -> int | None:
    try:
        return int(json.loads((folder.run / "edge.json").read_text())["port"])
    except (OSError, ValueError, KeyError):
        return None


def _end_with_parent() -> None:
    """In the child, before its program begins: the kernel ends it when the benchmark is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
