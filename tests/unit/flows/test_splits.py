"""A range is cut into runs of whole commits: as many as there are tasks for, in order, with nothing between."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.config import sqlite_place
from penstock.flows.source import Feed, splits
from penstock.log.log import StreamSpec
from penstock.log.opening import open_log
from penstock.testing.contracts.log_events import SCHEMA, put


@pytest.mark.parametrize(("tasks", "pieces"), [(1, 1), (2, 2), (4, 4), (100, 8)])
def test_a_large_range_is_cut_for_the_tasks_there_are(tasks: int, pieces: int, tmp_path: Path) -> None:
    with closing(open_log(sqlite_place(tmp_path / "edge.db"), app="shop")) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        for first in range(0, 40_000, 1_000):
            put(log, stream, list(range(first, first + 1_000)))
        found = splits(log, Feed(stream, tasks=tasks), (0,), (40_000,), 0)
        assert len(found) == pieces
        assert [split.ends for split in found[:-1]] == [split.starts for split in found[1:]]
        assert (found[0].starts, found[-1].ends) == ((0,), (40_000,))
        assert all(split.ends[0] % 1_000 == 0 for split in found)
        assert max(split.ends[0] - split.starts[0] for split in found) <= 40_000 // pieces + 1_000


def test_a_range_that_begins_within_a_commit_stays_in_one_piece(tmp_path: Path) -> None:
    with closing(open_log(sqlite_place(tmp_path / "edge.db"), app="shop")) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, list(range(20_000)))
        assert len(splits(log, Feed(stream, tasks=4), (5,), (20_000,), None)) == 1
