from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.collect.pulling.pull_source import NotNow, SourceReset
from penstock.collect.pulling.sources import file as file_source
from penstock.collect.pulling.sources.file import _Tail

MOST = 1000


def line(n: int) -> bytes:
    return b'{"n": %d, "pad": "%s"}' % (n, b"x" * (n % 50))


class Reading:
    """A tail that can die: what it gave out counts only with the position that came with it."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[bytes]()
        self.position: dict[str, Any] = {}
        self.tail: _Tail | None = None

    def step(self) -> bool:
        if self.tail is None:
            self.tail = _Tail(str(self.path), MOST, SystemClock(), self.position)
        arrived = self.tail.step()
        if arrived is None:
            return False
        self.lines += arrived.raws
        self.position |= arrived.position or {}
        return True

    def die(self) -> None:
        if self.tail is not None:
            self.tail.close()
        self.tail = None

    def all(self) -> list[bytes]:
        idle = 0
        while idle < 12:
            idle = 0 if self.step() else idle + 1
        return self.lines


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_source, "GRACE_S", -1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def append(path: Path, *lines: bytes, end: bytes = b"\n") -> None:
    with path.open("ab") as file:
        file.write(b"\n".join(lines) + end)


def rename(path: Path, number: int) -> None:
    path.rename(f"{path}.{number}")
    path.touch()


def copy(path: Path, number: int) -> None:
    shutil.copy2(path, f"{path}.{number}")
    os.truncate(path, 0)


@pytest.fixture
def reading(path: Path) -> Iterator[Reading]:
    made = Reading(path)
    yield made
    made.die()


def test_a_last_line_without_an_end_is_not_yet_an_event(path: Path, reading: Reading) -> None:
    append(path, b"one", b"tw", end=b"")
    assert reading.all() == [b"one"]
    append(path, b"o", b"three")
    assert reading.all() == [b"one", b"two", b"three"]


@pytest.mark.parametrize("rotate", [rename, copy])
@pytest.mark.parametrize("dies", [False, True])
def test_a_rotated_file_is_finished_before_the_new_one(path: Path, reading: Reading, rotate: Any, dies: bool) -> None:
    append(path, b"one")
    reading.all()
    if dies:
        reading.die()
    append(path, b"two")
    append(path, b"cut", end=b"")
    rotate(path, 1)
    append(path, b"three")
    assert reading.all() == [b"one", b"two", b"cut", b"three"]


def test_several_rotations_while_nobody_reads_lose_nothing(path: Path, reading: Reading) -> None:
    append(path, b"one")
    reading.all()
    reading.die()
    for number, rotate in enumerate([rename, copy, rename, copy], 1):
        append(path, b"more-%d" % number)
        rotate(path, number)
        os.utime(f"{path}.{number}", (number, number + 1e9))
    packed = Path(f"{path}.2.gz")
    packed.write_bytes(gzip.compress(Path(f"{path}.2").read_bytes()))
    os.utime(packed, (2, 2 + 1e9))
    Path(f"{path}.2").unlink()
    append(path, b"last")
    assert reading.all() == [b"one", b"more-1", b"more-2", b"more-3", b"more-4", b"last"]


def test_a_packed_file_is_finished_where_it_was_left(path: Path, reading: Reading) -> None:
    append(path, b"one")
    reading.all()
    reading.die()
    append(path, b"two")
    Path(f"{path}.1.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    append(path, b"three")
    assert reading.all() == [b"one", b"two", b"three"]


def test_a_file_that_is_cut_off_and_written_anew_is_read_anew(path: Path, reading: Reading) -> None:
    append(path, b"one", b"two")
    reading.all()
    path.write_bytes(b"")
    append(path, b"three of a longer kind than before")
    assert reading.all() == [b"one", b"two", b"three of a longer kind than before"]


def test_a_file_that_is_gone_with_lines_unread_is_told(path: Path, reading: Reading) -> None:
    append(path, b"one")
    reading.all()
    reading.die()
    path.unlink()
    append(path, b"other")
    with pytest.raises(SourceReset, match="read up to byte 4, is gone"):
        reading.step()


def test_a_file_that_is_not_there_is_looked_for_again(path: Path, reading: Reading) -> None:
    with pytest.raises(NotNow, match="there is no file"):
        reading.step()


def test_a_line_that_is_too_long_is_cut_off_and_the_next_is_whole(path: Path, reading: Reading) -> None:
    append(path, b"x" * 5_000_000, b"next")
    assert [len(found) for found in reading.all()] == [MOST + 1, 4]


@pytest.mark.parametrize("seed", range(16))
def test_any_order_of_writing_rotating_reading_and_dying_gives_each_line_once(
    path: Path, reading: Reading, seed: int
) -> None:
    random = Random(seed)
    path.touch()
    n = rotations = 0
    written = b""
    while n < 300:
        act = random.random()
        if act < 0.45:
            some = range(n, n + random.randrange(1, 30))
            text = written + b"".join(line(i) + b"\n" for i in some)
            cut = random.randrange(len(text)) if random.random() < 0.5 else len(text)
            with path.open("ab") as file:
                file.write(text[:cut])
            written, n = text[cut:], some.stop
        elif act < 0.55 and not written and path.stat().st_size > 1100:
            while not reading.position and reading.step():
                pass
            rotations += 1
            time.sleep(0.01)  # a file system's clock is coarse, and nobody rotates that often
            if random.random() < 0.5:
                rename(path, rotations)
            else:
                copy(path, rotations)
        elif act < 0.9:
            reading.step()
        else:
            reading.die()
    append(path, written, end=b"")
    assert reading.all() == [line(i) for i in range(n)]
