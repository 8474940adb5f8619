"""How a command changes what only the edge may write: a file per instruction, taken by whoever holds the data folder.

1. A file appears whole and durable (written aside, fsynced, renamed) and can be read and written by its owner alone.
2. It is removed only after what it says is in the log. Taken twice, after a crash in between, it changes nothing more.
3. What cannot be read as an instruction is set aside with `.refused` behind its name, once, and reported.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from penstock.rights.keys import KeyRecord

_MOST_BYTES = 64 * 1024


class Instruction(msgspec.Struct, frozen=True):
    """Create this key, or revoke the one with this id."""

    do: Literal["create", "revoke"]
    id: str
    key: KeyRecord | None = None
    at_us: int = 0


class Inbox:
    """The folder of instructions; any process of the same user may post, only the holder of the log takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def post(self, instruction: Instruction) -> Path:
        """Durable on return; the file is gone once it was taken."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self._folder, 0o700)
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        fresh, final = self._folder / f".{name}", self._folder / f"{name}.json"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(instruction))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.rename(final)
        self._sync()
        return final

    def waiting(self) -> Iterator[tuple[Path, Instruction | Exception]]:
        """What was posted, oldest first; an exception in place of what cannot be read."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(".json"))
        except FileNotFoundError:
            return
        for name in names:
            path = self._folder / name
            try:
                yield path, self._read(path)
            except FileNotFoundError:
                continue  # the command has withdrawn it
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                yield path, error

    def taken(self, path: Path) -> None:
        """It is in the log."""
        path.unlink(missing_ok=True)
        self._sync()

    def refuse(self, path: Path) -> None:
        path.rename(path.with_name(f"{path.name}.refused"))

    def _read(self, path: Path) -> Instruction:
        facts = path.lstat()
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022 or facts.st_size > _MOST_BYTES:
            raise ValueError("it does not belong to this user alone, or is too large")
        instruction = msgspec.json.decode(path.read_bytes(), type=Instruction)
        if instruction.do == "create" and (instruction.key is None or instruction.key.id != instruction.id):
            raise ValueError("it has no key to create")
        return instruction

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
