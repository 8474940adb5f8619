"""Lets Spark interpret the plans of small batches, in one task, and compile those of large ones.

For each batch Spark writes Java source for its plan and for projections in every task, and looks up whether it has
compiled the same before. That pays for many rows only.
"""

from __future__ import annotations

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


def suit(settings: Any, few: bool) -> None:
    """Let Spark plan with these settings of a session for few events, or for many."""
    if plain.uses("interpreting"):
        for name, value in (_FOR_FEW if few else _FOR_MANY).items():
            settings.set(name, value)
    if plain.uses("one_task"):
        settings.set(_FEW, str(few).lower())


class BatchSize:
    """What the session of one query is set for."""

    def __init__(self, few: bool) -> None:
        self._few = few

    def follow(self, settings: Any, events: int) -> None:
        """Let Spark plan the next batch for as many events as this one had."""
        few = events <= FEW_EVENTS
        if few != self._few:
            suit(settings, few)
            self._few = few
