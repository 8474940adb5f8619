"""What a query of Spark hands over with each of its batches, and the settings that a batch's size asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Batch:
    """What Spark has planned and not run yet."""

    collect: Callable[[], pa.Table]
    """Runs the batch, by one action, and gives its rows in order."""
    closes_us: Callable[[], int | None]
    """Up to which end its topmost aggregation gives windows out in append mode; None: it aggregates nothing."""


Take = Callable[[Batch, int], int]
"""What the sink does with a batch; gives how many events it read."""

FEW_EVENTS = 5_000
"""Up to here Spark's generated code saves less than generating it costs: 15 % of a small batch's CPU."""
_FOR_MANY = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "penstock.few": "false",  # read by `OneTask.java`
}
_FOR_FEW = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "penstock.few": "true",
}
PARTITIONS = "spark.sql.shuffle.partitions"


def suit(settings: Any, few: bool) -> None:
    """Let Spark plan with these settings of a session for few events, or for many."""
    for name, value in (_FOR_FEW if few else _FOR_MANY).items():
        settings.set(name, value)


def state_partitions(cores: int) -> int:
    """Into how many pieces a new build's state is cut; frozen in its checkpoint. With one, `OneTask.java` spares small
    batches their shuffle, which two cores gain more by than by cutting it in two."""
    return 1 if cores <= 2 else min(cores, 8)
