"""Waits while a log is away, for whoever would fail and begin again otherwise, which takes longer: a batch of Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from penstock.errors import LogUnavailableError

T = TypeVar("T")

AWAY_S = 90.0
"""How long an absence is waited for; then the batch fails, and is tried again for as long as it takes."""
_AGAIN_S = 0.5


def patiently(work: Callable[[], T], away_s: float = AWAY_S, ended: Callable[[], bool] = lambda: False) -> T:
    """What `work` gives; again as long as the log is away, until it has `ended` for good. It must have left nothing
    where it says so."""
    deadline = time.monotonic() + away_s
    while True:
        try:
            return work()
        except LogUnavailableError:
            if time.monotonic() > deadline or ended():
                raise
            time.sleep(_AGAIN_S)


def all_of(begin: Callable[[], Iterator[T]], away_s: float = AWAY_S) -> Iterator[T]:
    """All that an iterator gives which is the same each time that it is begun; begun again where it breaks off because
    the log is away."""
    given, deadline = 0, time.monotonic() + away_s
    while True:
        try:
            for each in islice(begin(), given, None):
                given, deadline = given + 1, time.monotonic() + away_s
                yield each
            return
        except LogUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)
