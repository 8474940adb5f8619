"""`penstock export` and `import`: an app's data folder as one file, from a running app too, and back.

1. Both logs are copied at one commit each. The flows' log and the checkpoints are taken while every query stands
   between two batches; the edge's log is taken last, so that it holds all that the other one has absorbed.
2. Positions, epochs, ids and producers' numbers are in the logs: whoever reads or sends goes on where it was.
3. Every file has a checksum in the manifest, which is written last: half a file is no archive.
4. A source that is closed says so in its log before it is copied: it does not start again unless it is told to, so that
   two copies do not both take events. The mark does not come along.

What is derived from the logs (held rows, states of ordered flows) is left out and made anew. So are certificates, and
what processes say of themselves.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import signal
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.clock import SystemClock, rfc3339
from penstock.config import Folder
from penstock.errors import ArchiveError, BadLogError, FolderHeldError, FolderMismatchError
from penstock.log import control_keys
from penstock.log.log import Append
from penstock.log.opening import check_place, open_log, open_reader
from penstock.run.ownership import RunLock, flock, is_locked, wait_for_children

FORMAT = 1
_MANIFEST = "manifest.json"
_LOGS = ("flows.db", "edge.db")
_CHUNK = 1024 * 1024
_PAUSE_S = 300.0
"""How long queries may take to come to the end of their batches."""
_STOP_S = 60.0
_POLL_S = 0.02

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Archive:
    """What an archive holds, as its manifest says."""

    app: str
    exported: str
    closed: bool
    files: dict[str, dict[str, Any]]
    """Size and SHA-256 by path."""

    @property
    def bytes(self) -> int:
        return sum(facts["bytes"] for facts in self.files.values())


def export(folder: Folder, app: str, file: Path, *, close: bool, tell: Tell = lambda said: None) -> Archive:
    """Write the archive of an app's data folder, whether it runs or not; with `close` it is stopped first, and stays
    closed. The file is there, whole and durable, when this returns, or it is not there."""
    if folder.log is not None:
        raise BadLogError(
            "only an embedded log is exported",
            hint="a log on Kafka is in reach of any machine",
        )
    if not (folder.root / "edge.db").exists():
        raise FolderMismatchError(f"'{folder.root}' holds no data of an app", hint="run the app, or pass --data")
    check_place(folder.edge_log, app)
    if file.exists():
        raise ArchiveError(f"'{file}' is there already", hint="choose another name, or remove it")
    file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        if close:
            held.enter_context(_stopped(folder, tell))
            _mark(folder, app, {"at_us": SystemClock().now_us(), "file": file.name, "id": secrets.token_hex(6)})
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix=".penstock-export-", dir=file.parent)))
        _copy(folder, place)
        return _packed(place, file, app, closed=close)


def restore(folder: Folder, app: str, file: Path) -> Archive:
    """Make a data folder out of an archive; it is there whole when this returns, or not at all."""
    if folder.log is not None:
        raise BadLogError("an archive becomes an embedded log", hint="leave --log out")
    root = folder.root
    if root.exists() and any(root.iterdir()):
        raise FolderMismatchError(f"the folder '{root}' is not empty", hint="pass a new one with --data")
    root.parent.mkdir(parents=True, exist_ok=True)
    fresh = root.with_name(f".{root.name}.importing")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        archive = _unpacked(file, fresh)
        if archive.app != app:
            raise FolderMismatchError(
                f"'{file}' is an archive of the app '{archive.app}', not of '{app}'", hint="name that app's file"
            )
        if archive.closed:
            _mark(Folder(fresh), app, None)
        if root.exists():
            root.rmdir()
        fresh.rename(root)
        _sync(root.parent)
        return archive
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def reopen(folder: Folder, app: str) -> None:
    """Let a source that was closed start again."""
    if not (folder.root / "edge.db").exists() or folder.log is not None:
        return
    lock = RunLock(folder)
    lock.take({"pid": os.getpid()})
    try:
        wait_for_children(folder, lambda said: None)
        if moved(folder) is not None:
            _mark(folder, app, None)
    finally:
        lock.release()


def moved(folder: Folder) -> dict[str, Any] | None:
    """What a closed folder says of itself; None: it is open."""
    with closing(open_reader(folder.edge_log)) as log:
        found: dict[str, Any] | None = log.memory().get(control_keys.moved("source"))
        return found


def _mark(folder: Folder, app: str, value: dict[str, Any] | None) -> None:
    with closing(open_log(folder.edge_log, app=app)) as log:
        for outcome in log.append([Append(sets={control_keys.moved("source"): value})]):
            if isinstance(outcome, Exception):
                raise outcome


# Standing still


@contextmanager
def _stopped(folder: Folder, tell: Tell) -> Iterator[None]:
    """The app is stopped, if it runs, and does not start meanwhile."""
    deadline = time.monotonic() + _STOP_S
    if is_locked(folder.lock):
        who = json.loads(folder.lock.read_text() or "{}")
        tell(f"stopping the running app (pid {who.get('pid')})")
        os.kill(int(who["pid"]), signal.SIGTERM)
    while is_locked(folder.lock):
        if time.monotonic() > deadline:
            raise FolderHeldError(f"the app on '{folder.root}' does not stop", hint="end it, then export")
        time.sleep(_POLL_S)
    lock = RunLock(folder)
    lock.take({"pid": os.getpid()})
    try:
        wait_for_children(folder, tell)
        yield
    finally:
        lock.release()


@contextmanager
def _between_batches(folder: Folder) -> Iterator[None]:
    """Every query stands between two batches; where no flows run, nothing has to."""
    folder.copy_lock.parent.mkdir(parents=True, exist_ok=True)
    with folder.copy_lock.open("a+") as file:
        if not flock(file):
            raise FolderHeldError(f"another export of '{folder.root}' is under way", hint="wait for it")
        try:
            deadline = time.monotonic() + _PAUSE_S
            while is_locked(folder.flows_lock) and not folder.copy_paused.exists():
                if time.monotonic() > deadline:
                    raise FolderHeldError("the flows do not come to the end of a batch", hint="try again, or stop them")
                time.sleep(_POLL_S)
            yield
        finally:
            folder.copy_lock.unlink()


def _copy(folder: Folder, place: Path) -> None:
    with ExitStack() as opened:
        flows = folder.root / "flows.db"
        source = opened.enter_context(closing(_reading(flows))) if flows.exists() else None
        with _between_batches(folder):
            if source is not None:
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM meta").fetchall()  # from here on it sees this moment
            _copy_tree(folder.checkpoints, place / "checkpoints")
        if source is not None:
            _backup(source, place / "flows.db")
    with closing(_reading(folder.root / "edge.db")) as source:
        _backup(source, place / "edge.db")


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _backup(source: sqlite3.Connection, path: Path) -> None:
    with closing(sqlite3.connect(path)) as copy:
        source.backup(copy, pages=-1)


def _copy_tree(source: Path, target: Path) -> None:
    """What Spark has written, which it never changes: links, where the disk is the same. What it is just writing begins
    with a dot, and what it tidies away meanwhile is not needed."""
    for path in sorted(source.rglob("*")) if source.is_dir() else ():
        name = path.relative_to(source)
        if any(part.endswith(".lost") for part in name.parts) or path.name.endswith(".tmp") or not path.is_file():
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, copy)
        except FileNotFoundError:
            continue
        except OSError:
            shutil.copyfile(path, copy)


# The file


def _packed(place: Path, file: Path, app: str, *, closed: bool) -> Archive:
    files: dict[str, dict[str, Any]] = {}
    part = place / "archive"
    with part.open("wb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(each for each in place.rglob("*") if each.is_file() and each != part):
                name = path.relative_to(place).as_posix()
                files[name] = {"bytes": path.stat().st_size, "sha256": _sum(path)}
                tar.add(path, name, recursive=False)
            archive = Archive(app, rfc3339(SystemClock().now_us()), closed, files)
            manifest = {"format": FORMAT, "app": app, "exported": archive.exported, "closed": closed, "files": files}
            content = json.dumps(manifest, indent=1).encode()
            info = tarfile.TarInfo(_MANIFEST)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        out.flush()
        os.fsync(out.fileno())
    part.rename(file)
    _sync(file.parent)
    return archive


def _unpacked(file: Path, target: Path) -> Archive:
    """Everything in its place, compared with what the manifest says of it."""
    try:
        with tarfile.open(file) as tar:
            for member in tar:
                _extract(tar, member, target)
        said = json.loads((target / _MANIFEST).read_text())
        archive = Archive(said["app"], said["exported"], said["closed"], said["files"])
    except FileNotFoundError as error:
        raise ArchiveError(f"'{file}' is no archive of Penstock, or half of one", detail=str(error)) from None
    except (tarfile.TarError, ValueError, KeyError, OSError) as error:
        raise ArchiveError(f"'{file}' cannot be read", detail=str(error), hint="export it again") from error
    if said.get("format") != FORMAT:
        raise ArchiveError(f"'{file}' is of another version of Penstock", hint="import it with that version")
    (target / _MANIFEST).unlink()
    found = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if path.is_file()}
    wrong = sorted(found.keys() ^ archive.files.keys())
    wrong += [name for name, facts in archive.files.items() if name in found and _sum(found[name]) != facts["sha256"]]
    if wrong:
        raise ArchiveError(
            f"'{file}' is damaged", detail=f"not as they were written: {', '.join(wrong[:5])}", hint="copy it again"
        )
    return archive


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    name = PurePosixPath(member.name)
    inside = member.name in (_MANIFEST, *_LOGS) or name.parts[:1] == ("checkpoints",)
    source = tar.extractfile(member) if member.isfile() and inside and ".." not in name.parts else None
    if source is None:
        raise ValueError(f"it holds '{member.name}', which no archive does")
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        shutil.copyfileobj(source, out, _CHUNK)
        out.flush()
        os.fsync(out.fileno())


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
