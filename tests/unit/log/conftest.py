from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.log import Stream, StreamSpec
from penstock.log.logs.sqlite import SqliteLog
from penstock.testing.contracts.log_events import SCHEMA, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteLog]:
    with closing(SqliteLog.open(tmp_path / "log.db", app="unit", clock=clock)) as log:
        yield log


@pytest.fixture
def stream(log: SqliteLog) -> Stream:
    return log.create(StreamSpec("numbers", SCHEMA))
