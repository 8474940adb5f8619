"""Spark starts a dozen Python processes; each is a fork of this one, which has imported what they need already.

Importing costs half a second of CPU for each of them, most of it while everything else starts too; a fork costs
milliseconds and shares the memory. `Nursery.open` starts the process and gives the path of a command that Spark takes
for its Python: it hands its arguments, environment and standard streams to the nursery, and lives as long as the fork.
If the nursery is gone, the command is Python itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_MODULES = (
    "penstock.flows.source",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
)

_COMMAND = """\
import json, os, socket, sys
if "-m" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
try:
    nursery = socket.socket(socket.AF_UNIX)
    nursery.connect({socket!r})
    asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(nursery, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    nursery.sendall(asked)
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
answer = nursery.recv(1)
sys.exit(answer[0] if answer else 1)
"""


class Nursery:
    """The process, as the driver sees it. It ends when this process does, and its forks with it."""

    def __init__(self, python: str, process: subprocess.Popen[bytes] | None = None) -> None:
        self.python = python
        """What Spark is to start instead of Python."""
        self._process = process

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def wait(self) -> None:
        """Until it has ended."""
        if self._process is not None:
            self._process.wait()

    def close(self) -> None:
        """End it, and its forks; otherwise it ends with this process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self.wait()

    @staticmethod
    def open() -> Nursery:
        folder = Path(tempfile.mkdtemp(prefix="penstock-"))
        if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
            shutil.rmtree(folder)
            return Nursery(sys.executable)
        socket_path, script, command = folder / "socket", folder / "command.py", folder / "python"
        script.write_text(_COMMAND.format(socket=str(socket_path), python=sys.executable))
        command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{script}' \"$@\"\n")
        command.chmod(0o700)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(socket_path))
        listening.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listening.fileno()), str(folder)],
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            env={**os.environ, "PYTHONHASHSEED": "0"},  # as Spark sets it for all of its workers
        )
        listening.close()
        return Nursery(str(command), process)


def main(descriptor: int, folder: Path) -> None:
    """Fork whenever asked, until the driver is gone."""
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    listening = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: the command tells how they ended
    forks: list[int] = []
    try:
        while _asked(listening):
            asking, _ = listening.accept()
            if (pid := os.fork()) == 0:
                listening.close()
                _become(asking)
            forks.append(pid)
            asking.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for pid in forks:
            _end(pid)


def _asked(listening: socket.socket) -> bool:
    """Wait for somebody who asks; False when the driver has closed our standard input."""
    driver = sys.stdin.fileno()
    ready, _, _ = select.select([listening.fileno(), driver], [], [])
    return driver not in ready


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _become(asking: socket.socket) -> NoReturn:
    """In the fork: take over what the command has, and run the module that Spark asked for."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, streams, _, _ = socket.recv_fds(asking, 4, 3)
        arguments, environment, directory = json.loads(_read(asking, int.from_bytes(head, "big")))
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        code = _run(arguments, asking)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):  # Spark may have ended the command already
            sys.stdout.flush()
            sys.stderr.flush()
            asking.send(bytes([code & 0xFF]))
        os._exit(code & 0xFF)


def _read(asking: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = asking.recv(size - len(data))
        if not more:
            raise EOFError("the command went away")
        data += more
    return data


def _run(arguments: list[str], asking: socket.socket) -> int:
    """`python [-u] -m module ...`, as Spark calls it."""
    os.register_at_fork(after_in_child=asking.close)  # what this process forks does not keep the command alive
    at = arguments.index("-m")
    module = arguments[at + 1]
    sys.argv = arguments[at + 1 :]
    sys.path[:0] = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path
    ]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
