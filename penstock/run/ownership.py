"""Who may work on a data folder: one app for ever, one `run` at a time, after a dead run's children.

1. The logs in the folder name their app; another app is refused before anything is touched.
2. The supervisor holds `run.lock` (flock) as long as it lives; the file says who it is.
3. The locks of a dying edge (flock) and of a dying JVM (POSIX, by java.nio) are waited for, since they
   outlive a killed supervisor by a moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from penstock.clock import rfc3339
from penstock.config import Folder
from penstock.errors import FolderHeldError, FolderMismatchError, LogRefusedError, LogUnavailableError, MovedError
from penstock.log import control_keys
from penstock.log.opening import check_place, open_reader

AGAIN_S = 1.0
WAIT_S = 15.0
"""How long a new run waits for the children of a run that died: they end within 2 s unless the machine is stuck."""


def check_folder(folder: Folder, app: str, *, ask: bool = True, tell: Callable[[str], None] | None = None) -> None:
    """See that the folder is on a local disk and this app's, or free, and make it. Nothing is touched before. `ask`:
    its logs whose they are, which those that lie elsewhere may not be able to answer yet. `tell`: where the folder is
    in use already, a log that is away now is waited for, and that is said; else it is an error."""
    if folder.root.is_dir():
        _refuse_strangers(folder.root)
        _refuse_other_log(folder)
    for place in (folder.edge_log, folder.flows_log) if ask else ():
        _check_place(place, app, tell if any(folder.index.glob("*.db")) else None)
    if folder.log is None:
        _refuse_moved(folder)
    _make(folder)


def _check_place(place: str, app: str, tell: Callable[[str], None] | None) -> None:
    told = False
    while True:
        try:
            return check_place(place, app)
        except LogRefusedError:
            raise
        except LogUnavailableError as error:
            if tell is None:
                raise
            if not told:
                tell(f"waiting for the log: {error.message} ({error.detail})")
            told = True
            time.sleep(AGAIN_S)


def _refuse_moved(folder: Folder) -> None:
    """Two copies must not both take events."""
    with closing(open_reader(folder.edge_log)) as log:
        said = log.memory().get(control_keys.moved("source"))
    if said is not None:
        raise MovedError(
            f"the data folder '{folder.root}' was moved",
            detail=f"it was exported to '{said['file']}' and closed at {rfc3339(said['at_us'])}",
            hint="run the copy that was imported; if there is none, start this one with --reopen",
        )


def _refuse_strangers(root: Path) -> None:
    """A folder with other files and no log in it was named by mistake."""
    names = sorted(path.name for path in root.iterdir())
    strangers = [name for name in names if name not in Folder.names]
    if strangers and not (Folder.log_names | {"index"}) & set(names):
        raise FolderMismatchError(
            f"'{root}' is not a data folder of Penstock",
            detail=f"it holds {', '.join(strangers[:5])}",
            hint="pass an empty or new folder with --data",
        )


def _refuse_other_log(folder: Folder) -> None:
    """What the folder derives from one log (checkpoints, held rows) is wrong for another."""
    embedded = any((folder.root / name).exists() for name in Folder.log_names)
    if folder.log is not None and embedded:
        raise FolderMismatchError(
            f"the data folder '{folder.root}' holds an embedded log, and --log names another one",
            hint="leave --log out, or pass another folder with --data",
        )
    if folder.log is None and folder.index.exists() and not embedded:
        raise FolderMismatchError(
            f"the data folder '{folder.root}' belongs to a log on Kafka", hint="name it: --log kafka://host:9092"
        )


def _make(folder: Folder) -> None:
    try:
        for path in (folder.root, folder.logs, folder.run):
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderMismatchError(
            f"the data folder '{folder.root}' cannot be made",
            detail=str(error),
            hint="pass another one with --data",
        ) from None


class RunLock:
    """The supervisor's hold on the folder, from `take` until the process ends."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def take(self, who: dict[str, Any]) -> None:
        """Raises `FolderHeldError`, which says who holds it; `FolderMismatchError` where nothing can be written."""
        try:
            file = self._folder.lock.open("a+")
            if not flock(file):
                file.close()
                raise _held(self._folder)
            self._file = file
            self.describe(who)
        except OSError as error:
            raise FolderMismatchError(
                f"the data folder '{self._folder.root}' cannot be written to",
                detail=str(error),
                hint="give this user the right to write there, make room on its disk, or pass another one with --data",
            ) from None

    def describe(self, who: dict[str, Any]) -> None:
        """What a second `run` on this folder will tell its user."""
        assert self._file is not None
        self._file.seek(0)
        self._file.truncate()
        json.dump(who, self._file)
        self._file.flush()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _held(folder: Folder) -> FolderHeldError:
    who = _read_json(folder.lock)
    scheme = who.get("scheme", "http")
    address = f", which serves {scheme}://{who['host']}:{who['port']}," if who.get("port") else ""
    pid = who.get("pid") or holder(folder.lock)
    return FolderHeldError(
        f"another `penstock run` (pid {pid}){address} works on the folder '{folder.root}'",
        detail=f"it was started at {who['started']}" if "started" in who else None,
        hint=f"stop it (kill {pid}), or pass another folder with --data",
    )


def flock(file: IO[Any]) -> bool:
    """Lock the whole file; False when another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_children(folder: Folder, tell: Callable[[str], None], wait_s: float = WAIT_S) -> None:
    """Return when no child of an earlier run holds its lock; raise `FolderHeldError` when one does not
    end."""
    deadline = time.monotonic() + wait_s
    told = False
    locks = {"edge": folder.edge_lock, "flows": folder.flows_lock, "kafka": folder.kafka_lock}
    while name := next((name for name, path in locks.items() if is_locked(path)), None):
        if not told:
            tell(f"waiting for the {name} process of an earlier run to end")
            told = True
        if time.monotonic() > deadline:
            raise _stuck(folder, locks[name])
        time.sleep(0.05)


def _stuck(folder: Folder, path: Path) -> FolderHeldError:
    pid = holder(path)
    who = f"process {pid} ({command_of(pid)})" if pid else "a process"
    return FolderHeldError(
        f"{who} of an earlier run still works on the folder '{folder.root}'",
        detail=f"it holds {path.name}",
        hint=f"end it: kill -9 {pid}" if pid else "end it, or restart the machine",
    )


def is_locked(path: Path) -> bool:
    """Whether any process holds a lock of either family on the file. Never call it in a process that
    holds one."""
    if not path.exists():
        return False
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def holder(path: Path) -> int | None:
    """The process that holds a lock on the file, as the kernel tells it."""
    try:
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "->" not in fields and fields[5].rsplit(":", 1)[-1] == inode:
                return int(fields[4])
    except OSError:
        pass
    return None


def command_of(pid: int | None) -> str:
    """The command line of a process, shortened; empty when it cannot be known."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()[:100]
    except OSError:
        return ""


def write_json(path: Path, value: Any) -> None:
    """Replace the file at once: a reader sees the old content or the new, never half."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(value, indent=1) + "\n")
    fresh.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
