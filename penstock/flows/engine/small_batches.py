"""Lets Spark interpret the plans of small batches, in one task, and compile those of large ones.

For each batch Spark writes Java source for its plan and for projections in every task, and looks up whether it has
compiled the same before. That pays for many rows only.

At the end of a batch Spark looks through all open groups for ones to let go of. Here most batches leave that out
(`Eviction.java`): what a view shows does not depend on it, since the log decides what is late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock import plain

FEW_EVENTS = 5_000
"""Up to here Spark's generated code saves less than generating it costs: 15 % of a small batch's CPU."""
_FOR_MANY = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
_FOR_FEW = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_FEW = "penstock.few"
"""Read by `OneTask.java`."""
_EVICTS = "penstock.evicts"
"""Read by `Eviction.java`."""
EVICT_S = 30.0
EVICT_BATCHES = 100
EVICT_AT_LAST_S = 300.0
"""State goes after so long and so many batches, at last after so long: a look through a million groups takes the CPU of
ten small batches."""


def suit(settings: Any, few: bool) -> None:
    """Let Spark plan with these settings of a session for few events, or for many."""
    if plain.uses("interpreting"):
        for name, value in (_FOR_FEW if few else _FOR_MANY).items():
            settings.set(name, value)
    if plain.uses("one_task"):
        settings.set(_FEW, str(few).lower())


class BatchSize:
    """What the session of one query is set for. Its first batch lets state go."""

    def __init__(self, few: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._few = few
        self._evicts = True
        self._monotonic = monotonic
        self._evicted_at, self._batches = float("-inf"), 0

    def follow(self, settings: Any, events: int) -> None:
        """Let Spark plan the next batch for as many events as this one had."""
        few = events <= FEW_EVENTS
        if few != self._few:
            suit(settings, few)
            self._few = few
        if plain.uses("eviction"):
            self._follow_eviction(settings)

    def _follow_eviction(self, settings: Any) -> None:
        self._batches += 1
        if self._evicts:
            self._evicted_at, self._batches = self._monotonic(), 0
        passed_s = self._monotonic() - self._evicted_at
        evicts = passed_s >= EVICT_AT_LAST_S or (passed_s >= EVICT_S and self._batches >= EVICT_BATCHES)
        if evicts != self._evicts:
            settings.set(_EVICTS, str(evicts).lower())
            self._evicts = evicts
