"""Spark starts a dozen Python processes; each is a fork of this one, which has imported what they need already.

Importing costs half a second of CPU for each of them, most of it while everything else starts too; a fork costs
milliseconds and shares the memory. `Nursery.open` starts the process and gives the path of a command that Spark takes
for its Python: it hands its arguments, environment and standard streams to the nursery, and lives as long as the fork.
If the nursery is gone, or cannot be had, the command is Python itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from penstock import plain
from penstock.flows.engine.scratch import Scratch

_MODULES = (
    "penstock.flows.source",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    # Arrow imports it with the first value that it converts: in each worker, while the first batch waits.
    "pandas",
)

_FORKS = "pyspark.daemon"
_FOLDERS = "folders.json"
_SOCKET = "socket"
_ENVIRONMENT = {
    # As Spark sets it for all of its workers.
    "PYTHONHASHSEED": "0",
    # A process that forks should have one thread.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

_COMMAND = """\
import json, os, socket, sys
if "-m" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
try:
    nursery = socket.socket(socket.AF_UNIX)
    asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    here = os.open(".", os.O_RDONLY)
    os.chdir({folder!r})
    try:
        nursery.connect({socket!r})
    finally:
        os.fchdir(here)
    socket.send_fds(nursery, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    nursery.sendall(asked)
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
answer = nursery.recv(1)
sys.exit(answer[0] if answer else 1)
"""


class Nursery:
    """The process, as the driver sees it. It ends when this process does, and its forks with it."""

    def __init__(self, python: str, process: subprocess.Popen[bytes] | None = None, folder: Path | None = None) -> None:
        self.python = python
        """What Spark is to start instead of Python."""
        self._process = process
        self._folder = folder

    def search(self, folders: Sequence[str]) -> None:
        """From now on forks look for modules here first, as this process does since it has loaded the app file."""
        if self._folder is not None and self._folder.exists():
            (self._folder / _FOLDERS).write_text(json.dumps(folders))

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
    def open(place: Scratch) -> Nursery:
        if not plain.uses("nursery"):
            return Nursery(sys.executable)
        try:
            if os.statvfs(place.path).f_flag & getattr(os, "ST_NOEXEC", 0):
                raise PermissionError(f"{place.path} is mounted without exec")
            return _opened(place)
        except OSError as error:  # a full disk, or a path too long for a socket
            plain.give_up("nursery", error)
            return Nursery(sys.executable)


def _opened(place: Scratch) -> Nursery:
    folder = place.inside("python")
    script, command = folder / "command.py", folder / "python"
    script.write_text(_COMMAND.format(folder=str(folder), socket=_SOCKET, python=sys.executable))
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(script))} "$@"\n')
    command.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        _bind(listening, folder)
        listening.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listening.fileno()), str(folder)],
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno(), place.held],
            env={**os.environ, **_ENVIRONMENT},
        )
    return Nursery(str(command), process, folder)


def _bind(listening: socket.socket, folder: Path) -> None:
    """A socket's address has room for about a hundred bytes, and a data folder may have any name."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        short = Path(f"/proc/self/fd/{opened}")
        listening.bind(str((short if short.exists() else folder) / _SOCKET))
    finally:
        os.close(opened)


def main(descriptor: int, folder: Path) -> None:
    """Fork whenever asked, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as pyspark has it for its JVM: Ctrl-C is the driver's to handle
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    listening = socket.socket(fileno=descriptor)
    forks: set[int] = set()
    try:
        while _asked(listening):
            forks = {pid for pid in forks if not _has_ended(pid)}
            asking, _ = listening.accept()
            if (pid := os.fork()) == 0:
                listening.close()
                _become(asking, folder)
            forks.add(pid)
            asking.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for pid in forks:
            if not _has_ended(pid):
                os.kill(pid, signal.SIGTERM)


def _has_ended(pid: int) -> bool:
    """Until it is waited for here, nobody else gets its number."""
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def _asked(listening: socket.socket) -> bool:
    """Wait for somebody who asks; False when the driver has closed our standard input."""
    driver = sys.stdin.fileno()
    ready, _, _ = select.select([listening.fileno(), driver], [], [])
    return driver not in ready


def _become(asking: socket.socket, folder: Path) -> NoReturn:
    """In the fork: take over what the command has, and run the module that Spark asked for."""
    code = 1
    try:
        head, streams, _, _ = socket.recv_fds(asking, 4, 3)
        arguments, environment, directory = json.loads(_read(asking, int.from_bytes(head, "big")))
        for number, given in enumerate(streams):
            os.dup2(given, number)
            os.close(given)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # Spark ends workers without a flush
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        code = _run(arguments, asking, folder)
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


def _die_with(command: socket.socket) -> None:
    """Spark kills the command of a worker that hangs; one that forks ends when its standard input does."""
    with suppress(OSError):
        command.recv(1)
    os._exit(1)


def _read(asking: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = asking.recv(size - len(data))
        if not more:
            raise EOFError("the command went away")
        data += more
    return data


def _run(arguments: list[str], asking: socket.socket, folder: Path) -> int:
    """`python [-u] -m module ...`, as Spark calls it."""
    os.register_at_fork(after_in_child=asking.close)  # what this process forks does not keep the command alive
    at = arguments.index("-m")
    module = arguments[at + 1]
    if module != _FORKS:
        threading.Thread(target=_die_with, args=(asking,), daemon=True).start()
    sys.argv = arguments[at + 1 :]
    searched = [*_searched(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [path for path in dict.fromkeys(searched) if path and path not in sys.path]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _searched(folder: Path) -> list[str]:
    """The folders that the driver named last."""
    with suppress(OSError):
        return [str(path) for path in json.loads((folder / _FOLDERS).read_text())]
    return []


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
