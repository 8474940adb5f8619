"""What a power cut makes of an SQLite log, played on copies of its files: what was not synced is old, torn or gone.

SQLite orders its writes by fsync, and a cut respects that order: a commit's frames are in the WAL before a checkpoint
moves any into the file, and the header of a WAL that begins anew is there before frames of the old one are overwritten.
Within what two syncs enclose, each sector is independently as before, as after, or (in the WAL) rubbish from the first
byte that was written on: that a write does not harm what lies before it is what SQLite expects of a disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

DB, WAL = "log.db", "log.db-wal"
_HEADER = 32
_SECTOR = 512


def copy(place: Path, into: Path) -> None:
    """The files as they are on the disk; the shared memory beside them does not outlive a power cut."""
    into.mkdir()
    for name in (DB, WAL):
        if (place / name).exists():
            shutil.copyfile(place / name, into / name)


def cut_between(before: Path, after: Path, into: Path, chance: Random) -> None:
    """What may be left when power fails between the copies `before` and `after` one commit."""
    into.mkdir()
    old, new = ((folder / WAL).read_bytes() for folder in (before, after))
    moved = (before / DB).read_bytes() != (after / DB).read_bytes()
    if moved and chance.random() < 0.5:  # the commit is synced, and the checkpoint behind it is under way
        (into / WAL).write_bytes(new)
        (into / DB).write_bytes(_mixed((before / DB).read_bytes(), (after / DB).read_bytes(), 0, chance, rubbish=False))
        return
    shutil.copyfile(before / DB, into / DB)
    begins_anew = old[:_HEADER] != new[:_HEADER]
    if begins_anew and chance.random() < 0.3:
        (into / WAL).write_bytes(chance.choice([old, new])[:_HEADER] + old[_HEADER:])
    else:
        left = new[:_HEADER] + _mixed(old, new, _HEADER, chance, rubbish=True)
        grown = max(len(old), _HEADER)
        (into / WAL).write_bytes(left[: chance.randint(grown, max(grown, len(left)))])


def cut_tail(whole: Path, into: Path, at: int, chance: Random) -> None:
    """A WAL of which only the first `at` bytes are as they were; the rest is gone or rubbish."""
    into.mkdir()
    shutil.copyfile(whole / DB, into / DB)
    written = (whole / WAL).read_bytes()
    rubbish = bytes([written[at] ^ 0xFF]) + chance.randbytes(len(written) - at - 1)
    (into / WAL).write_bytes(written[:at] + chance.choice([b"", rubbish]))


def _mixed(old: bytes, new: bytes, start: int, chance: Random, *, rubbish: bool) -> bytes:
    """`new` from `start` on, with some of the sectors in which it differs from `old` not as they should be."""
    share = chance.choice([0.1, 0.5, 0.9])
    sectors = []
    for at in range(start, max(len(old), len(new)), _SECTOR):
        then, now = old[at : at + _SECTOR], new[at : at + _SECTOR]
        if then == now or chance.random() >= share:
            sectors.append(now or then)
        elif rubbish and chance.random() < 0.3:
            same = next((n for n, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), len(then))
            sectors.append(now[:same] + chance.randbytes(len(now) - same))
        else:
            sectors.append(then.ljust(len(now), b"\0"))
    return b"".join(sectors)
