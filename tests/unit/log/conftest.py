from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.log.log import Log, Stream, StreamSpec
from penstock.log.logs.memory import temporary_place
from penstock.log.opening import open_log
from penstock.testing.contracts.log_events import SCHEMA, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> Iterator[Log]:
    with temporary_place() as place, closing(open_log(place, app="unit", clock=clock)) as log:
        yield log


@pytest.fixture
def stream(log: Log) -> Stream:
    return log.create(StreamSpec("numbers", SCHEMA))
