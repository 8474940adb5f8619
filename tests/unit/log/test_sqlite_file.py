from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.config import sqlite_place
from penstock.errors import CorruptBlockError, DiskFullError, FolderMismatchError, LogUnavailableError
from penstock.log.log import Log, Stream
from penstock.log.logs import sqlite_file
from penstock.log.logs.sqlite_file import checksum, path_of, refuse_network, translated
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts.log_events import put


def test_every_commit_is_synced(log: Log) -> None:
    pragmas = [log._writer.execute(f"PRAGMA {name}").fetchall()[0][0] for name in ("journal_mode", "synchronous")]
    assert pragmas == ["wal", 2]


def test_the_file_of_another_app_is_refused(log: Log) -> None:
    with pytest.raises(FolderMismatchError, match="belongs to the app 'unit'"):
        open_log(log.place, app="other")
    assert log.append([], {"a": 1}) == []


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    open_log(sqlite_place(path), app="a").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    with pytest.raises(FolderMismatchError, match="newer"):
        open_log(sqlite_place(path), app="a")
    with pytest.raises(FolderMismatchError, match="newer"):
        open_reader(sqlite_place(path)).streams()


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(CorruptBlockError):
        open_log(sqlite_place(path), app="a")
    with pytest.raises(CorruptBlockError):
        open_reader(sqlite_place(path)).streams()


def test_an_empty_file_is_no_log_yet(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    assert sqlite_file.open_reader(path) is None


def test_network_file_systems_are_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path / 'far'} nfs4 rw 0 0\n")
    with pytest.raises(FolderMismatchError, match="nfs4"):
        refuse_network(tmp_path / "far" / "away" / "log.db", str(mounts))
    refuse_network(tmp_path / "near" / "log.db", str(mounts))
    refuse_network(tmp_path / "log.db", str(tmp_path / "no mounts here"))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DiskFullError),
        (sqlite3.SQLITE_IOERR_WRITE, DiskFullError),
        (sqlite3.SQLITE_BUSY, LogUnavailableError),
        (sqlite3.SQLITE_CORRUPT, CorruptBlockError),
    ],
)
def test_failures_have_the_logs_names(code: int, kind: type[Exception]) -> None:
    error = sqlite3.OperationalError("it")
    error.sqlite_errorcode = code
    assert type(translated(error, Path("x"))) is kind


def test_a_checksum_covers_every_part_of_a_block() -> None:
    facts: list[Any] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11]
    sums = {checksum(*facts, b"data", None), checksum(*facts, b"date", None), checksum(*facts, b"data", b"offsets")}
    for at in range(len(facts)):
        changed = [fact + (place == at) for place, fact in enumerate(facts)]
        sums.add(checksum(*changed, b"data", None))
    sums.add(checksum(*facts[:9], None, 11, b"data", None))
    assert len(sums) == 3 + len(facts) + 1


def test_the_wal_stays_bounded_while_readers_come_and_go(
    log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log._writer.execute("PRAGMA wal_autocheckpoint = 50").fetchall()
    log._writer.execute("PRAGMA journal_size_limit = 1000000").fetchall()
    wal = path_of(log.place).with_name("log.db-wal")
    for n in range(200):
        put(log, stream, range(n * 100, n * 100 + 100))
        blocks = log.read(stream, 0, 0)
        next(blocks)
    assert wal.stat().st_size < 2_000_000
    monkeypatch.setattr(sqlite_file, "WAL_BYTES", 1)
    assert list(log.tidying()) == []
    assert wal.stat().st_size == 0


def test_a_reader_that_stays_is_no_trouble_for_tidying(
    log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "WAL_BYTES", 1)
    put(log, stream, [1])
    reader = sqlite_file.open_reader(path_of(log.place))
    assert reader is not None
    with closing(reader):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM meta").fetchall()
        put(log, stream, [2])
        assert list(log.tidying()) == []
        put(log, stream, [3])
