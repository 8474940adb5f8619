"""Removes what builds have left behind that nothing reads any more, and never what could still be asked for.

1. A build of a declared flow or view stays while it is the newest one or the one that is served, and while such a
   build of another one has read from it: readers' frontiers and `verify` go through it.
2. What the app no longer declares stays for a day, so that a name that was changed can be changed back.
3. A checkpoint that was set aside stays as long as it says that its build is lost, and then for a day, for whoever
   wants to know why.
4. What decides over a build (its keys in the control stream) goes first: a crash leaves streams and folders that
   nobody refers to, never a build that would be continued without its rows.
5. Only `flows.db` is written to: the door's streams, the ledgers and their counts are not touched.

The owner of `flows.db` runs it after its start, and whenever a build has taken over. Files and rows go in slices.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.config import Folder
from penstock.declaration import LEDGERS, Application
from penstock.flows.regroup.hidden_views import shown_name
from penstock.log import control_keys
from penstock.log.builds import batch_meta, build_of
from penstock.log.log import CONTROL, Log, Stream

KEPT_US = 24 * 3_600_000_000
"""How long something that may still be wanted stays."""
_FILES_AT_ONCE = 20
"""Files removed in one step: about a millisecond."""
_OF_A_NAME = (control_keys.build, control_keys.live, control_keys.flow)
_NOTED = control_keys.leftover
_LOST = ".lost"

_log = logging.getLogger(__name__)

Build = tuple[str, str]
"""Name and epoch."""


class BuildCleanup:
    """One round. `starting`: the queries of this process have just begun with their feeds, so that old ones may go."""

    def __init__(
        self, log: Log, folder: Folder, application: Application, now_us: int, *, starting: bool = True
    ) -> None:
        self.removed: list[str] = []
        self._log = log
        self._folder = folder
        self._declared = {node.name for node in application.nodes}
        self._now_us = now_us
        self._starting = starting

    def cleaning(self) -> Iterator[int]:
        """One slice at each step, for `GroupCommit.sliced`; gives the rows that went."""
        self._log.append([])  # raises where another writer has taken over, before a file is touched
        memory = dict(self._log.memory())
        hidden = {family.rest(key) for key in memory for family in _OF_A_NAME if key.startswith(family.prefix)}
        self._declared |= {name for name in hidden if shown_name(name) in self._declared}
        kept = self._kept(memory)
        undeclared = self._undeclared(memory) - {name for name, _ in kept}
        lost = self._lost(kept)
        due = self._due(memory, {*undeclared, *lost})
        for name in sorted(undeclared & due):
            yield from self._remove_name(name, memory)
        for build in sorted(self._builds(memory) - kept):
            if build[0] in self._declared:
                yield from self._remove_build(build, memory)
        for item in sorted(lost.keys() & due):
            yield from self._remove_folder(lost[item], f"the checkpoint that was set aside as {item}")
            self._forget([_NOTED(item)])
        if self._starting:
            yield from self._remove_feeds()

    # What there is, and what of it is needed

    def _builds(self, memory: Mapping[str, Any]) -> set[Build]:
        """Every build of which anything is left."""
        streams = {(stream.name, stream.epoch) for stream in self._streams()}
        skips = {
            (name, epoch)
            for _, name, epoch in (key.split("/") for key in memory if key.startswith(control_keys.skip.prefix))
        }
        folders = {(path.parent.name, path.name) for path in self._checkpoints() if path.suffix != _LOST}
        return streams | skips | folders

    def _streams(self) -> list[Stream]:
        return [s for s in self._log.streams() if s.name not in (CONTROL, *LEDGERS)]

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self._folder.checkpoints.glob("*/*") if path.is_dir())

    def _kept(self, memory: Mapping[str, Any]) -> set[Build]:
        """The newest and the served build of each declared name, and what these have read."""
        kept: set[Build] = set()
        waiting = [build for name in self._declared for build in _current(name, memory)]
        while waiting:
            build = waiting.pop()
            if build not in kept:
                kept.add(build)
                waiting += self._inputs(build, memory)
        return kept

    def _inputs(self, build: Build, memory: Mapping[str, Any]) -> Iterator[Build]:
        stored = memory.get(control_keys.build(build[0]))
        if stored is not None and stored["epoch"] == build[1]:
            yield from build_of(stored).inputs.items()
        stream = self._log.find(*build)
        last = self._log.last_commit(stream) if stream is not None else None
        if last is not None and last.meta is not None:
            yield from ((name, end[0]) for name, end in batch_meta(last.meta).end.items())

    def _undeclared(self, memory: Mapping[str, Any]) -> set[str]:
        told = {family.rest(key) for key in memory for family in _OF_A_NAME if key.startswith(family.prefix)}
        folders = {path.name for path in self._folder.checkpoints.glob("*") if path.is_dir()}
        return (told | folders | {name for name, _ in self._builds(memory)}) - self._declared

    def _lost(self, kept: set[Build]) -> dict[str, Path]:
        """Checkpoints that were set aside, of declared names, whose builds have been replaced."""
        return {
            f"{path.parent.name}/{path.name}": path
            for path in self._checkpoints()
            if path.suffix == _LOST and path.parent.name in self._declared
            if (path.parent.name, path.stem) not in kept
        }

    def _due(self, memory: Mapping[str, Any], items: set[str]) -> set[str]:
        """Which of these have been left over for long enough. What is new to it is noted; what is wanted again, or
        gone, is forgotten."""
        since = {_NOTED.rest(key): us for key, us in memory.items() if key.startswith(_NOTED.prefix)}
        fresh = {_NOTED(item): self._now_us for item in items - since.keys()}
        gone = {_NOTED(item): None for item in since.keys() - items}
        if fresh or gone:
            self._log.append([], {**fresh, **gone})
        for item in sorted(items - since.keys()):
            _log.info("'%s' is not used any more; what it has left is removed after a day", item)
        return {item for item in items if self._now_us - since.get(item, self._now_us) >= KEPT_US}

    # Removing

    def _remove_name(self, name: str, memory: Mapping[str, Any]) -> Iterator[int]:
        """All of a flow or view that is no longer declared."""
        keys = [family(name) for family in _OF_A_NAME]
        self._forget([key for key in memory if key in keys or key.startswith(control_keys.skip(name, ""))])
        rows = 0
        for stream in self._streams():
            if stream.name == name:
                for went in self._log.dropping(stream):
                    rows += went
                    yield went
        yield from _removing(self._folder.checkpoints / name)
        self._forget([_NOTED(name)])
        self._tell(f"'{name}', which the app no longer declares: {rows} rows")

    def _remove_build(self, build: Build, memory: Mapping[str, Any]) -> Iterator[int]:
        name, epoch = build
        rows, stream = 0, self._log.find(name, epoch)
        for went in self._log.dropping(stream) if stream is not None else ():
            rows += went
            yield went
        yield from _removing(self._folder.checkpoints / name / epoch)
        self._forget([key for key in memory if key == control_keys.skip(name, epoch)])
        self._tell(f"the build {epoch} of '{name}', which is no longer served: {rows} rows")

    def _remove_folder(self, path: Path, what: str) -> Iterator[int]:
        yield from _removing(path)
        self._tell(what)

    def _remove_feeds(self) -> Iterator[int]:
        """Feeds are made again when they are needed; one that was used within a day may belong to a `verify`."""
        old = [path for path in sorted(self._folder.feeds.glob("*")) if self._is_old(path)]
        for number, path in enumerate(old, 1):
            path.unlink(missing_ok=True)
            if number % _FILES_AT_ONCE == 0:
                yield 0
        if old:
            self._tell(f"{len(old)} feeds that were not used for a day")

    def _is_old(self, path: Path) -> bool:
        used = path.stat()
        return max(used.st_mtime, used.st_atime) * 1e6 <= self._now_us - KEPT_US

    def _forget(self, keys: list[str]) -> None:
        if keys:
            self._log.append([], dict.fromkeys(keys))

    def _tell(self, what: str) -> None:
        self.removed.append(what)
        _log.info("removed %s", what)


def _current(name: str, memory: Mapping[str, Any]) -> Iterator[Build]:
    stored, live = memory.get(control_keys.build(name)), memory.get(control_keys.live(name))
    if stored is not None:
        yield name, stored["epoch"]
    if live is not None:
        yield name, live


def _removing(path: Path) -> Iterator[int]:
    """Remove a folder, a few files at each step."""
    number = 0
    for folder, folders, files in os.walk(path, topdown=False):
        for name in [*files, *(name for name in folders if Path(folder, name).is_symlink())]:
            Path(folder, name).unlink(missing_ok=True)
            number += 1
            if number % _FILES_AT_ONCE == 0:
                yield 0
        Path(folder).rmdir()
