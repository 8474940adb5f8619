"""Lets tests start Python hundreds of times without importing Penstock each time: from a process that has done so.

A start costs a second of CPU before the first line of it runs, nearly all of it imports; a fork costs milliseconds. The
fork is a child of the test (CLONE_PARENT), with the arguments, the environment, the folder and the standard streams
that the test gave, so that the test kills, stops and waits for it as for any other. `penstock run` and what it starts,
and `penstock.cli.boot` itself, are never forks; with PENSTOCK_TESTS_FORK=0 nothing is.

Two such processes take turns, so that what was killed is started again with other hashes of its strings.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
PRELOADED = [
    *(
        f"penstock.cli.{name}"
        for name in ("file_sender", "letter_replay", "main", "remote", "stream_tail", "view_watch")
    ),
    "penstock.client",
    "penstock.run.edge",
]
FORKED = ("penstock.cli.main", "tests.")
"""Modules that may run in a fork, besides scripts."""
TURNS = 2
_AT_START = (
    *("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "ARROW_", "OMP_", "OPENBLAS_", "UV_", "SSL_", "OPENSSL_"),
    *("HOME", "TMPDIR", "COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "TTY_"),
)
"""Variables that are read while a process starts and imports: where one differs, a fork would not be the same."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Others would be missing in a fork."""
_CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call."""
_CLONE_PARENT = 0x8000


class Forks:
    """The processes that fork, started when they are first needed; they end with this one."""

    def __init__(self) -> None:
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._doors: list[socket.socket] = []
        self._one_asks = threading.Lock()
        self._owner = os.getpid()

    def open(self) -> None:
        """Start what forks, if nobody has."""
        self._doors = self._doors or [self._opened() for _ in range(TURNS)]

    def fits(self, command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> bool:
        """Whether a fork would be what the command would be."""
        differ = {
            name
            for name in self._environment.keys() | environment.keys()
            if name != "PYTHONPATH" and self._environment.get(name) != environment.get(name)
        }
        return (
            os.getpid() == self._owner
            and _program(command) is not None
            and not any(name.startswith(_AT_START) for name in differ)
            and not any(os.isatty(stream) for stream in streams)
        )

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[int]) -> int:
        """The number of the new process, a child of this one."""
        asked = json.dumps([_program(command), dict(environment), folder]).encode()
        with self._one_asks:
            self.open()
            self._doors.append(door := self._doors.pop(0))
            socket.send_fds(door, [len(asked).to_bytes(4, "big")], list(streams))
            door.sendall(asked)
            return int.from_bytes(_read(door, 4), "big")

    def _opened(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            forking = subprocess.Popen(
                [sys.executable, "-P", "-c", f"import tests.forked; tests.forked.serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env={**self._environment, "PYTHONPATH": str(ROOT), **_ONE_THREAD},
            )
        forking.returncode = 0  # it ends when this process does, after anybody could wait for it
        return ours


def possible() -> bool:
    """Whether it was not turned off, and the number of the system call is known."""
    return os.environ.get("PENSTOCK_TESTS_FORK") != "0" and platform.machine() in _CLONE


def install() -> None:
    """From now on `subprocess` and `asyncio` of this process start Python as a fork where they can."""
    if not possible():
        return
    forks, usual = Forks(), subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def start(self: Any, args: Any, *more: Any) -> None:
        # As `Popen.__init__` calls it: executable, preexec_fn, close_fds, pass_fds, cwd, env, and seven on, the pipes.
        executable, preexec, _, passed, folder, given, _, _, shell = more[:9]
        environment = os.environ if given is None else given
        inner, outer, errors = more[9], more[12], more[14]
        streams = [number if own == -1 else own for number, own in enumerate((inner, outer, errors))]
        plain = not (executable or preexec or passed or shell or isinstance(args, str)) and _default(more[15:])
        if not plain or not forks.fits(list(map(str, args)), environment, streams):
            return usual(self, args, *more)
        self.pid = forks.start(list(map(str, args)), environment, str(folder or Path.cwd()), streams)
        self._child_created = True
        self._close_pipe_fds(*more[9:15])

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


def _default(more: Sequence[Any]) -> bool:
    """restore_signals, gid, gids, uid, umask, start_new_session, process_group: nothing special is asked for."""
    return list(more) == [True, None, None, None, -1, False, -1]


def _program(command: Sequence[str]) -> tuple[bool, bool, list[str]] | None:
    """Of `python [-P] -m module ...` and `python [-P] script.py ...`: whether -P and -m are there, and what follows."""
    if command[0] != sys.executable:
        return None
    safe = list(command[1:2]) == ["-P"]
    rest = list(command[2 if safe else 1 :])
    if rest[:1] == ["-m"]:
        users = rest[1] == "penstock.cli.main" and rest[2:3] in (["run"], ["demo"])
        return (safe, True, rest[1:]) if rest[1].startswith(FORKED) and not users else None
    return (safe, False, rest) if rest and rest[0].endswith(".py") else None


# In the process that forks


def serve(descriptor: int) -> None:
    """Fork whenever asked, until the tests are over."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.path.remove(str(ROOT))
    gc.collect()
    gc.freeze()
    door = socket.socket(fileno=descriptor)
    while True:
        head, streams, _, _ = socket.recv_fds(door, 4, 3)
        if not head:
            return
        program, environment, folder = json.loads(_read(door, int.from_bytes(head, "big")))
        pid = _forked()
        if pid == 0:
            door.close()
            _end(_become, program, environment, folder, streams)
        for stream in streams:
            os.close(stream)
        door.sendall(pid.to_bytes(4, "big"))


def _forked() -> int:
    """As `os.fork`, but the new process is a child of the one that has started us."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid: int = python.syscall(_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def _end(body: Callable[..., None], *arguments: Any) -> NoReturn:
    """Run it, and end as Python ends, but for the memory, which the system takes back."""
    code: object = 0
    try:
        body(*arguments)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def _become(
    program: tuple[bool, bool, list[str]], environment: Mapping[str, str], folder: str, streams: Sequence[int]
) -> None:
    """In the fork: be what `python` would be, with the imports done."""
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    safe, is_module, sys.argv = program
    beside = folder if is_module else str(Path(sys.argv[0]).resolve().parent)
    named = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [*([] if safe else [beside]), *named]
    if is_module:
        sys.modules.pop(sys.argv[0], None)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _read(door: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = door.recv(size - len(data))
        if not more:
            raise EOFError("the other side is gone")
        data += more
    return data
