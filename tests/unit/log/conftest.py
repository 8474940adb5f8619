from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config import sqlite_place
from penstock.log.log import Log, Stream, StreamSpec
from penstock.log.opening import open_log
from penstock.testing.contracts.log_events import SCHEMA, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with closing(open_log(sqlite_place(tmp_path / "log.db"), app="unit", clock=clock)) as log:
        yield log


@pytest.fixture
def stream(log: Log) -> Stream:
    return log.create(StreamSpec("numbers", SCHEMA))
