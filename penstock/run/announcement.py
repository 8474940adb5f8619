"""How the processes of a data folder tell each other who and where they are: small files in its `run/`."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any

from penstock.config import Folder
from penstock.errors import ReadOnlyEdgeError
from penstock.run.ownership import flock, write_json

_READER = "edge-"
_ANYWHERE = ("0.0.0.0", "::", "")


def announce(folder: Folder, name: str, facts: dict[str, object]) -> None:
    """What there is one of, the edge that writes or the flows: `run/<name>.json`."""
    write_json(folder.run / f"{name}.json", {"pid": os.getpid()} | facts)


class Presence:
    """A reading edge's word of itself, `run/edge-<port>.json`. It is locked as long as the process lives, so that
    nobody takes a dead one for one that serves."""

    def __init__(self, folder: Folder, facts: dict[str, object]) -> None:
        port, pid = facts["port"], os.getpid()
        for name in (f"{_READER}{port}", f"{_READER}{port}-{pid}"):  # another address may have the same port
            self._path = folder.run / f"{name}.json"
            self._file = self._path.open("a+")
            if flock(self._file):
                break
            self._file.close()
        self._file.truncate(0)
        self._file.write(json.dumps({"state": "running", "pid": pid} | facts) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()


def processes(folder: Folder) -> dict[str, Any]:
    """How the supervisor's children are, and which edges read beside them."""
    children = _read(folder.run / "supervisor.json").get("processes", {})
    found = {name: child | _plain(folder, name, child) for name, child in children.items()}
    for path in sorted(folder.run.glob(f"{_READER}*.json")):
        if _is_held(path):
            found[path.stem] = _read(path)
    return found


def address(scheme: str, host: str, port: int) -> str:
    """
    >>> address("http", "::1", 8080)
    'http://[::1]:8080'
    """
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class WritingEdge:
    """The one edge of the folder that writes, as an edge sees it that only reads."""

    def __init__(self, folder: Folder) -> None:
        self._file = folder.run / "edge.json"

    def refusal(self, asked_at: str | None = None) -> ReadOnlyEdgeError:
        """What somebody is told who wants what only that edge can do; `asked_at` is the host whom they asked."""
        edge = _read(self._file)
        if "port" not in edge:
            where, hint = "no edge that writes has started on its data folder", "start one: penstock run app.py"
        else:
            host = asked_at or socket.gethostname() if edge["host"] in _ANYWHERE else edge["host"]
            url = address(edge["scheme"], host, edge["port"])
            where, hint = f"the edge that writes is at {url}", f"ask {url}"
        return ReadOnlyEdgeError("this edge only reads", detail=where, hint=hint)


def _plain(folder: Folder, name: str, child: dict[str, Any]) -> dict[str, Any]:
    """The parts that a child does without, as it says itself."""
    said = _read(folder.run / f"{name}.json")
    return {"plain": said["plain"]} if said.get("pid") == child.get("pid") and "plain" in said else {}


def _is_held(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
