"""What an index looks like inside: files that were written before are opened as they are."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config import sqlite_place
from penstock.log.index.tables import COMPLETENESS, FORMAT, checksum
from penstock.log.log import StreamSpec
from penstock.log.opening import open_log, open_reader
from penstock.testing.contracts.log_events import SCHEMA, put

FACTS: list[Any] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 10, 11]


def test_the_layout_is_that_of_every_stored_file(tmp_path: Path) -> None:
    """Another layout needs another `FORMAT`, and a way for the files of this one; a further table does not: it is made
    when a writer opens the file, and no reader of such a file asks for it."""
    open_log(sqlite_place(tmp_path / "log.db"), app="unit").close()
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()
    assert [name for name, _ in tables] == [
        "blocks",
        "commits",
        "garbage",
        "meta",
        "payloads",
        "places",
        "schemas",
        "sqlite_sequence",
        "streams",
    ]
    texts = " ".join(" ".join(sql.split()) for _, sql in tables)
    assert (FORMAT, hashlib.sha256(texts.encode()).hexdigest()[:16]) == (2, "43199798ec896f63")


def test_a_checksum_is_that_of_every_stored_block() -> None:
    assert checksum(FACTS, b"data", None) == 2_490_724_755
    assert checksum([*FACTS[:9], None, 11], b"data", b"offsets") == 4_104_199_352


def test_a_checksum_covers_every_part_of_a_block() -> None:
    sums = {checksum(FACTS, b"data", None), checksum(FACTS, b"date", None), checksum(FACTS, b"data", b"offsets")}
    for at in range(len(FACTS)):
        changed = [fact + (number == at) for number, fact in enumerate(FACTS)]
        sums.add(checksum(changed, b"data", None))
    sums.add(checksum([*FACTS[:9], None, 11], b"data", None))
    assert len(sums) == 3 + len(FACTS) + 1


def test_a_file_of_format_1_is_read_as_it_is_and_gets_what_it_lacks_from_its_next_writer(tmp_path: Path) -> None:
    path, spec = tmp_path / "log.db", StreamSpec("numbers", SCHEMA, late_after_us=10)
    with closing(open_log(sqlite_place(path), app="unit")) as log:
        stream = log.create(replace(spec, late_after_us=None))
        put(log, stream, [1], times=[100])
    with closing(sqlite3.connect(path)) as connection:
        for name in COMPLETENESS:
            connection.execute(f"ALTER TABLE commits DROP COLUMN {name}")
        connection.execute("UPDATE meta SET value = 1 WHERE key = 'format'")
        connection.commit()
    with closing(open_reader(sqlite_place(path))) as reader:
        assert [(c.number, c.max_us, c.complete_us) for c in reader.commits(stream, 0)] == [(0, 100, None)]
        with closing(open_log(sqlite_place(path), app="unit")) as log:
            put(log, log.create(spec), [2], times=[150])
        assert [(c.earliest_us, c.complete_us) for c in reader.commits(stream, 0)] == [(None, None), (90, 140)]
        assert [block.earliest_us for block in reader.read(stream, 0, 0)] == [None, 90]
