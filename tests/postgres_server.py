"""A PostgreSQL of the tests' own: on loopback, in a folder that goes with it, and never as root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 30.0
_QUICK = ("shared_buffers=16MB", "max_connections=40", "fsync=on", "listen_addresses=127.0.0.1", "autovacuum=off")


def missing() -> str | None:
    """Why there can be no server here; None: there can."""
    if _program("initdb") is None:
        return "no PostgreSQL is installed: sh tests/postgres.sh"
    if os.getuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'"
    return None


@contextmanager
def server() -> Iterator[str]:
    """The address of an empty database, as long as the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        _own(folder)
        data, port = folder / "data", _free_port()
        _run("initdb", "-D", data, "-U", "penstock", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C")
        options = [
            word for option in (*_QUICK, f"port={port}", f"unix_socket_directories={folder}") for word in ("-c", option)
        ]
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(_as_user("postgres", "-D", data, *options), stdout=log, stderr=log)
        _wait(port, process, folder / "server.log")
        yield f"postgresql://penstock@127.0.0.1:{port}/postgres"
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)  # fast: sessions are ended
            process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def _user() -> str | None:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


def _as_user(program: str, *words: object) -> list[str]:
    """A command that does not run as root; `setpriv` replaces itself, so that a signal meets the server."""
    command = [str(_program(program)), *map(str, words)]
    user = _user()
    if os.getuid() != 0 or user is None:
        return command
    found = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups", *command]


def _own(folder: Path) -> None:
    user = _user()
    if os.getuid() == 0 and user is not None:
        shutil.chown(folder, user)


def _run(program: str, *words: object) -> None:
    subprocess.run(_as_user(program, *words), check=True, capture_output=True, cwd="/")


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a session can be opened."""
    import psycopg

    deadline = time.monotonic() + START_S
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(log.read_text()[-3000:])
        try:
            psycopg.connect(f"postgresql://penstock@127.0.0.1:{port}/postgres", connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])
